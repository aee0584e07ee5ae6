"""The trackers by name: the class of each, and the library that it needs."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

from glasshouse.errors import ConfigError, TrackError, did_you_mean
from glasshouse.extras import install_command
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


def validate_trackers(names: Sequence[str]) -> None:
    """Raise if a tracker is unknown or its library is not installed."""
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(f'trackers: unknown tracker "{name}".{did_you_mean(name, TRACKERS)}')
        library = TRACKERS[name].library
        if importlib.util.find_spec(library) is None:
            raise TrackError(
                f"trackers: {name} needs {library}, which is not installed: {install_command(name)}"
            )


def make_tracker(name: str) -> Tracker:
    spec = TRACKERS[name]
    tracker: Tracker = getattr(importlib.import_module(spec.module), spec.class_name)()
    return tracker
