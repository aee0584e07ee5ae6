"""Builds monitors: those without fitting from a config, fitted ones from their folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from glasshouse.errors import ConfigError, MonitorError, did_you_mean, plain_reason
from glasshouse.monitors.activation_probe import ProbeMonitor
from glasshouse.monitors.base import Monitor, check_monitor, monitor
from glasshouse.monitors.fitted import HEADER_FILE
from glasshouse.monitors.ngrams import NgramMonitor


def make_monitor(name: str, settings: Mapping[str, Any]) -> Monitor:
    """Build a monitor from its settings in a config.

    Example: `make_monitor("hint", {"kind": "rule", "scope": "cot", "keywords": ["key", "hint"]})`
    """
    made = monitor.get(str(settings.get("kind", "rule")))
    given = {key: value for key, value in settings.items() if key != "kind"}
    if options := getattr(made, "Options", None):
        try:
            validated = options.model_validate(given)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"])) or "settings"
            if first["type"] == "extra_forbidden":
                known = did_you_mean(key, options.model_fields)
                raise ConfigError(f'The monitor "{name}" has no setting "{key}".{known}') from None
            reason = plain_reason(first["msg"])
            raise ConfigError(f'The monitor "{name}", {key}: {reason}.') from None
        given = {key: getattr(validated, key) for key in options.model_fields}
    try:
        built: Monitor = made(name, **given)
    except TypeError as error:  # wrong or missing settings
        raise ConfigError(f'The monitor "{name}" of kind "{settings["kind"]}": {error}.') from None
    check_monitor(name, built)
    return built


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
