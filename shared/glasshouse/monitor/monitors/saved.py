"""A monitor that was fitted, frozen and saved, whatever its kind."""

from __future__ import annotations

import json
from pathlib import Path

from glasshouse.errors import MonitorError
from glasshouse.monitor.monitors.base import Monitor
from glasshouse.monitor.monitors.ngrams import NgramMonitor
from glasshouse.monitor.monitors.probe import ProbeMonitor
from glasshouse.monitor.monitors.trained import HEADER


def saved(folder: Path) -> Monitor:
    """Example: `saved(Path("monitors/hints"))`"""
    try:
        kind = json.loads((folder / HEADER).read_text(encoding="utf-8"))["kind"]
    except (OSError, ValueError, KeyError, TypeError):
        raise MonitorError(f'"{folder}" is not a saved monitor: it has no {HEADER}.') from None
    return ProbeMonitor.load(folder) if kind == "probe" else NgramMonitor.load(folder)
