"""Builds monitors. Every command and file names them in the same way:

rule:NAME=PATTERN   flags a chain of thought that matches a regular expression
steps:TASK          recomputes every written step of a task
ngrams[:SCOPE]      fitted on labelled rollouts; scope cot, answer, cot+answer or prompt
embedder:MODEL      fitted on the vectors of a sentence embedder, a folder or a hub name
probe[:LAYER]       fitted on hidden states
saved:FOLDER        a monitor that `glasshouse monitor fit` saved
judge:URL           an LLM behind an OpenAI-compatible endpoint, up to /v1
KIND[:NAME]         a kind that your module or an installed package registers (docs/python.md)

A config can instead give a kind with its settings: `{kind: rule, scope: cot, keywords: [key]}`, or the folder of a
saved monitor: `{kind: probe, saved: FOLDER}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from glasshouse.errors import ConfigError, MonitorError, did_you_mean, validate_options
from glasshouse.monitors.base import FILE, Monitor, Scope, check_monitor, monitor
from glasshouse.monitors.fitted import FittedKind, LinearMonitor, load_monitor
from glasshouse.monitors.llm_judge import CACHE, JudgeMonitor
from glasshouse.monitors.rules import RuleMonitor, StepVerifier

FITTED = ("ngrams", "embedder", "probe", "saved")
KINDS = ("rule", "steps", "judge", *FITTED)


class SavedOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    saved: Path
    """The folder that `glasshouse monitor fit --out` wrote."""
    layer: int | None = None
    """The layer that a probe must be of; empty: any."""


def parse_monitor(text: str, **judge: Any) -> Monitor | FittedKind:
    """Build a monitor from a text. `judge`: the settings of an LLM, which is asked whether a rollout shows a
    behaviour: `model`, `behaviour` (a sentence), `key_variable` (the environment variable with the key), and
    `cache`, a folder for its replies.

    Example: `parse_monitor("judge:http://localhost:8000/v1", model="m", behaviour="uses the leaked answer")`
    """
    kind, _, rest = text.partition(":")
    if kind == "rule":
        name, equals, pattern = rest.partition("=")
        if not (name and equals and pattern):
            raise MonitorError(f'"{text}": write rule:NAME=PATTERN, as in rule:hint="(?i)hint".')
        return RuleMonitor(name, Scope.COT, patterns=[pattern])
    if kind == "steps":
        return StepVerifier("step_verifier", Scope.COT_ANSWER, task=rest)
    if kind == "ngrams":
        scopes = [scope.value for scope in Scope if scope is not Scope.ACTIVATIONS]
        if rest and rest not in scopes:
            raise MonitorError(f'"{text}": there is no scope "{rest}".{did_you_mean(rest, scopes)}')
        name = f"ngrams.{rest.replace('+', '_')}" if rest else "ngrams"
        return FittedKind(name=name, scope=Scope(rest or "cot"))
    if kind == "embedder":
        if not rest:
            raise MonitorError(f'"{text}": write embedder:FOLDER, or embedder: and a hub name.')
        return FittedKind(name=kind, scope=Scope.COT, encoder=rest)
    if kind == "probe":
        if rest and not rest.lstrip("-").isdigit():
            raise MonitorError(f'"{text}": write probe:LAYER with the number of a layer.')
        layer = int(rest) if rest else None
        return FittedKind(name="probe", scope=Scope.ACTIVATIONS, layer=layer)
    if kind == "saved":
        return load_saved(Path(rest))
    if kind == "judge":
        settings = {"model": "", "behaviour": "", "cache": ".glasshouse/judge"} | judge
        settings["cache"] = Path(settings["cache"])
        return JudgeMonitor("judge", Scope.COT_ANSWER, url=rest, **settings)
    if kind in monitor:
        return make_monitor(rest or kind, {"kind": kind})
    raise MonitorError(f'There is no monitor "{text}".{did_you_mean(kind, {*KINDS, *monitor})}')


def make_monitor(name: str, settings: Mapping[str, Any] | str) -> Monitor:
    """Build a monitor of a config: from its settings, or from a text as in `parse_monitor`.

    Example: `make_monitor("hint", {"kind": "rule", "scope": "cot", "keywords": ["key", "hint"]})`
    """
    if isinstance(settings, str):
        parsed = parse_monitor(settings)
        if isinstance(parsed, FittedKind):
            raise ConfigError(
                f'The monitor "{name}" ({settings}) is fitted; save it and name saved:FOLDER.'
            )
        return parsed
    kind = str(settings.get("kind", "rule"))
    given = {key: value for key, value in settings.items() if key != "kind"}
    if kind in FITTED:
        return _make_saved(name, kind, given)
    made = monitor.get(kind)
    if options := getattr(made, "Options", None):
        validated = validate_options(options, given, f'The monitor "{name}"')
        given = {key: getattr(validated, key) for key in options.model_fields}
    try:
        built: Monitor = made(name, **given)
    except TypeError as error:  # wrong or missing settings
        raise ConfigError(f'The monitor "{name}" of kind "{kind}": {error}.') from None
    check_monitor(name, built)
    return built


def load_saved(folder: Path, name: str = "") -> LinearMonitor | JudgeMonitor:
    """Load a monitor that `save` wrote, under its own name or another one."""
    with suppress(OSError, ValueError, AttributeError, KeyError):
        stored = json.loads((folder / FILE).read_bytes())
        if stored.pop("kind", "") == "judge":
            own = stored.pop("name")
            return JudgeMonitor(name or own, stored.pop("scope"), cache=CACHE, **stored)
    loaded = load_monitor(folder)
    return replace(loaded, name=name or loaded.name)


def _make_saved(name: str, kind: str, given: Mapping[str, Any]) -> Monitor:
    options = validate_options(SavedOptions, given, f'The monitor "{name}"')
    loaded = load_saved(options.saved, name)
    own = loaded.describe()
    if kind not in ("saved", own["kind"]):
        raise ConfigError(f'The monitor "{name}": {options.saved} holds {own["kind"]}, not {kind}.')
    if options.layer not in (None, own.get("layer")):
        raise ConfigError(
            f'The monitor "{name}": the probe in {options.saved} reads layer {own.get("layer")}, not '
            f"{options.layer}; a probe is valid only for the layer that it was fitted on."
        )
    return loaded
