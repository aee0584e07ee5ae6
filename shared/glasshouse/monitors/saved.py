"""A monitor that was fitted, frozen and saved, whatever its kind."""

from __future__ import annotations

import json
from pathlib import Path

from glasshouse.errors import MonitorError
from glasshouse.monitors.activation_probe import ProbeMonitor
from glasshouse.monitors.base import Monitor
from glasshouse.monitors.fitted import HEADER
from glasshouse.monitors.ngrams import NgramMonitor


def saved(folder: Path) -> Monitor:
    """Example: `saved(Path("monitors/hints"))`"""
    try:
        kind = json.loads((folder / HEADER).read_text(encoding="utf-8"))["kind"]
    except (OSError, ValueError, KeyError, TypeError):
        raise MonitorError(f'"{folder}" is not a saved monitor: it has no {HEADER}.') from None
    return ProbeMonitor.load(folder) if kind == "probe" else NgramMonitor.load(folder)
