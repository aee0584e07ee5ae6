"""The trackers by name: the class of each, and the library that it needs."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from glasshouse.errors import ConfigError, TrackError, did_you_mean
from glasshouse.extras import install_command
from glasshouse.registry import describe_missing, find_missing, list_plugins, load_plugin
from glasshouse.track.base import Tracker


@dataclass(frozen=True, slots=True)
class TrackerSpec:
    """Where a tracker's class is; its module is imported only when a run uses it."""

    module: str
    class_name: str
    library: str


TRACKERS = {
    "mlflow": TrackerSpec("glasshouse.track.mlflow", "MLflow", "mlflow"),
    "tensorboard": TrackerSpec("glasshouse.track.tensorboard", "TensorBoard", "tensorboard"),
    "trackio": TrackerSpec("glasshouse.track.trackio", "Trackio", "trackio"),
    "wandb": TrackerSpec("glasshouse.track.wandb", "Wandb", "wandb"),
}


OWN_TRACKERS: dict[str, type[Any]] = {}
"""Trackers of the user's modules and of installed packages."""
MEMBERS = ("start", "log", "finish")


def tracker(name: str) -> Callable[[type[Any]], type[Any]]:
    """Registers a class with the methods of `Tracker` under a name, for the config key `trackers`.

    Example: `@tracker("csv")` above `class CsvTracker`, then `trackers: [csv]`
    """

    def register(made: type[Any]) -> type[Any]:
        if missing := find_missing(made, MEMBERS):
            raise TrackError(describe_missing("tracker", made, missing, "glasshouse/track/base.py"))
        OWN_TRACKERS[name] = made
        return made

    return register


def validate_trackers(names: Sequence[str]) -> None:
    """Raise if a tracker is unknown or its library is not installed."""
    for name in names:
        if name not in TRACKERS and name not in OWN_TRACKERS:
            made = load_plugin("trackers", name)
            if made is None:
                known = [*TRACKERS, *OWN_TRACKERS, *list_plugins("trackers")]
                raise ConfigError(f'trackers: unknown tracker "{name}".{did_you_mean(name, known)}')
            tracker(name)(made)
        if name in OWN_TRACKERS:
            continue
        library = TRACKERS[name].library
        if importlib.util.find_spec(library) is None:
            raise TrackError(
                f"trackers: {name} needs {library}, which is not installed: {install_command(name)}"
            )


def make_tracker(name: str) -> Tracker:
    if name in OWN_TRACKERS:
        own: Tracker = OWN_TRACKERS[name]()
        return own
    spec = TRACKERS[name]
    made: Tracker = getattr(importlib.import_module(spec.module), spec.class_name)()
    return made
