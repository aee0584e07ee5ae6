"""Builds monitors: those without fitting from a config, fitted ones from their folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from glasshouse.errors import ConfigError, MonitorError, did_you_mean, plain_reason
from glasshouse.monitors.activation_probe import ProbeMonitor
from glasshouse.monitors.base import Monitor
from glasshouse.monitors.fitted import HEADER_FILE
from glasshouse.monitors.ngrams import NgramMonitor
from glasshouse.monitors.rule import RuleMonitor
from glasshouse.monitors.step_verifier import StepVerifier
from glasshouse.monitors.views import Scope
from glasshouse.registry import describe_missing, find_missing, list_plugins, load_plugin


class MonitorOptions(BaseModel):
    """One monitor in a config.

    Example: `{kind: rule, scope: cot, keywords: [key, hint]}`
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    kind: Literal["rule", "steps"] = "rule"
    """`rule`: keywords and patterns; `steps`: recomputes every written step."""
    scope: Scope = Scope.COT
    """What it sees: prompt, answer, cot or cot+answer."""
    keywords: tuple[str, ...] = ()
    """rule: whole words or phrases, case-insensitive."""
    patterns: tuple[str, ...] = ()
    """rule: regular expressions."""
    task: str = ""
    """steps: the task whose steps it checks."""


MONITOR_KINDS: dict[str, Callable[..., Monitor]] = {}
"""Kinds of monitors besides the built-in ones: classes that take a name and their settings."""
MonitorClass = TypeVar("MonitorClass", bound=Callable[..., Monitor])
MEMBERS = ("scope", "score", "describe")


def monitor_kind(name: str) -> Callable[[MonitorClass], MonitorClass]:
    """Registers a class under a kind, for `evaluate.monitors` and `glasshouse measure --monitor`.

    Example: `@monitor_kind("length")` above `class LengthMonitor`, then `{kind: length, limit: 200}`
    """

    def register(made: MonitorClass) -> MonitorClass:
        MONITOR_KINDS[name] = made
        return made

    return register


def make_registered_monitor(kind: str, name: str, settings: Mapping[str, Any]) -> Monitor:
    """Builds a monitor of a registered kind, or of one that an installed package offers."""
    made = MONITOR_KINDS.get(kind) or load_plugin("monitors", kind)
    if made is None:
        known = ["rule", "steps", *MONITOR_KINDS, *list_plugins("monitors")]
        raise ConfigError(
            f'The monitor "{name}": unknown kind "{kind}".{did_you_mean(kind, known)}'
        )
    try:
        monitor: Monitor = made(name, **settings)
    except TypeError as error:  # wrong or missing settings
        raise ConfigError(f'The monitor "{name}" of kind "{kind}": {error}.') from None
    if missing := find_missing(monitor, MEMBERS):
        raise ConfigError(
            describe_missing("monitor", monitor, missing, "glasshouse/monitors/base.py")
        )
    return monitor


def make_monitor(name: str, settings: Mapping[str, Any]) -> Monitor:
    """Builds a monitor from its settings in a config."""
    kind = settings.get("kind", "rule")
    if isinstance(kind, str) and kind not in ("rule", "steps"):
        others = {key: value for key, value in settings.items() if key != "kind"}
        return make_registered_monitor(kind, name, others)
    try:
        options = MonitorOptions.model_validate(dict(settings))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "settings"
        if first["type"] == "extra_forbidden":
            known = did_you_mean(key, MonitorOptions.model_fields)
            raise ConfigError(f'The monitor "{name}" has no setting "{key}".{known}') from None
        raise ConfigError(f'The monitor "{name}", {key}: {plain_reason(first["msg"])}.') from None
    if options.kind == "steps":
        return StepVerifier(name, options.scope, task=options.task)
    return RuleMonitor(name, options.scope, keywords=options.keywords, patterns=options.patterns)


def load_monitor(folder: Path) -> Monitor:
    """Loads a fitted monitor of any kind.

    Example: `load_monitor(Path("monitors/hints"))`
    """
    try:
        kind = json.loads((folder / HEADER_FILE).read_text(encoding="utf-8"))["kind"]
    except (OSError, ValueError, KeyError, TypeError):
        raise MonitorError(
            f'"{folder}" is not a saved monitor: it has no valid {HEADER_FILE}.'
        ) from None
    return ProbeMonitor.load(folder) if kind == "probe" else NgramMonitor.load(folder)
