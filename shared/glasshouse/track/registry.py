"""The trackers by name: where each one's code is, and which library it needs."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

from glasshouse.errors import ConfigError, TrackError, nearest
from glasshouse.track.base import Mirror


@dataclass(frozen=True, slots=True)
class Kept:
    """A tracker that is not imported until a run asks for it."""

    module: str
    name: str
    library: str


MIRRORS = {
    "mlflow": Kept("glasshouse.track.mlflow", "MLflow", "mlflow"),
    "tensorboard": Kept("glasshouse.track.tensorboard", "TensorBoard", "tensorboard"),
    "trackio": Kept("glasshouse.track.trackio", "Trackio", "trackio"),
    "wandb": Kept("glasshouse.track.wandb", "Wandb", "wandb"),
}


def check(names: Sequence[str]) -> None:
    """Before anything else is done: every tracker is known, and its library is there."""
    for name in names:
        if name not in MIRRORS:
            raise ConfigError(f'track: there is no tracker "{name}".{nearest(name, MIRRORS)}')
        if importlib.util.find_spec(MIRRORS[name].library) is None:
            raise TrackError(
                f"The tracker {name} needs {MIRRORS[name].library}, which is not installed: "
                f'pip install "glasshouse[{name}]".'
            )


def make(name: str) -> Mirror:
    kept = MIRRORS[name]
    mirror: Mirror = getattr(importlib.import_module(kept.module), kept.name)()
    return mirror
