"""What trained monitors share: splits that never meet, a frozen threshold, files without pickle.

A monitor is fitted on one split, its threshold is taken on a second one that is benign, and it is
evaluated on a third. The first two are remembered by the hashes of their problems, so that an
evaluation on one of them is refused, also after the monitor was saved and loaded again.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from glasshouse import randomness
from glasshouse.errors import MonitorError
from glasshouse.measures.detection import threshold_at_fpr
from glasshouse.measures.result import Bools, Floats, labels, same_length
from glasshouse.monitors.views import Scope, View
from glasshouse.store.atomic_files import write_json

FORMAT = 1
HEADER, ARRAYS = "monitor.json", "monitor.safetensors"


@dataclass(frozen=True, slots=True)
class Split:
    """Views with their labels and the keys of their problems."""

    views: Sequence[View]
    y: Sequence[int]
    problems: Sequence[str]

    def __post_init__(self) -> None:
        same_length(views=self.views, y=self.y, problems=self.problems)


@dataclass(frozen=True, slots=True)
class Frozen:
    """What every trained monitor carries and no evaluation may change."""

    threshold: float
    """Flag what scores above it."""
    fpr: float
    """The false positive rate that the threshold was chosen for, on the benign split."""
    seen: frozenset[int]
    """Hashes of the problems of both splits."""


def apart(fit: Split, benign: Split, scope: Scope) -> Bools:
    """Check two splits before anything is fitted; gives the labels of the first as an array."""
    y = labels("y", list(fit.y))
    if not y.any() or y.all():
        raise MonitorError("A monitor cannot be fitted on rollouts of one label only; give both.")
    if any(benign.y):
        raise MonitorError("The split that fixes the threshold must be benign: every y must be 0.")
    if both := set(fit.problems) & set(benign.problems):
        raise MonitorError(
            f"{len(both)} problems are in the split for fitting and in the one for the threshold "
            f"({min(both)!r}, say); the splits must be disjoint."
        )
    if any(view.scope is not scope for split in (fit, benign) for view in split.views):
        raise MonitorError(
            f'Every view that a monitor of scope "{scope}" is fitted on must have it.'
        )
    return y


def freeze(benign_scores: ArrayLike, fit: Split, benign: Split, fpr: float, fewest: int) -> Frozen:
    """The threshold from the benign split, with the memory of both splits."""
    threshold = threshold_at_fpr(benign_scores, fpr, fewest=fewest)
    if threshold.value is None:
        raise MonitorError(f"The monitor cannot be frozen: {threshold.reason}.")
    return Frozen(threshold.value, fpr, hashes([*fit.problems, *benign.problems]))


def hashes(problems: Iterable[str]) -> frozenset[int]:
    return frozenset(randomness.key("problem", problem) for problem in problems)


def refuse_seen(name: str, frozen: Frozen, problems: Sequence[str]) -> None:
    """Stop an evaluation on problems that the monitor was fitted or frozen on."""
    seen = [problem for problem in problems if randomness.key("problem", problem) in frozen.seen]
    if seen:
        raise MonitorError(
            f'The monitor "{name}" was fitted or frozen on {len(seen)} of these {len(problems)} '
            f"problems ({seen[0]!r}, say); evaluate it on others."
        )


def logistic(features: Any, y: Bools, strength: float) -> tuple[Floats, float]:
    """Weights and bias of a logistic regression, classes balanced. Needs scikit-learn."""
    linear = needs("sklearn.linear_model")
    model = linear.LogisticRegression(C=strength, max_iter=2000, class_weight="balanced")
    model.fit(features, y)
    return np.asarray(model.coef_[0], dtype=np.float64), float(model.intercept_[0])


def sigmoid(logit: float) -> float:
    """The probability of a logit, without overflow."""
    e = np.exp(-abs(logit))
    return float(1 / (1 + e) if logit >= 0 else e / (1 + e))


def save(
    folder: Path, header: dict[str, Any], arrays: dict[str, np.ndarray], frozen: Frozen
) -> None:
    """A folder of two files, JSON and safetensors: nothing that runs code when it is opened."""
    folder.mkdir(parents=True, exist_ok=True)
    seen = np.array(sorted(frozen.seen), dtype=np.uint64)
    threshold = np.array([frozen.threshold, frozen.fpr], dtype=np.float64)
    save_file({**arrays, "seen": seen, "frozen": threshold}, str(folder / ARRAYS))
    write_json(folder / HEADER, {"format": FORMAT, **header})


def load(folder: Path, kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray], Frozen]:
    """What `save` wrote, to the last bit."""
    try:
        header = json.loads((folder / HEADER).read_text(encoding="utf-8"))
        arrays = load_file(str(folder / ARRAYS))
        if header["format"] != FORMAT or header["kind"] != kind:
            raise MonitorError(
                f'"{folder}" holds a monitor of kind {header["kind"]!r}, format {header["format"]}; '
                f"expected {kind!r}, format {FORMAT}."
            )
        threshold, fpr = arrays.pop("frozen").tolist()
        seen = frozenset(arrays.pop("seen").tolist())
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        if isinstance(error, MonitorError):
            raise
        raise MonitorError(f'"{folder}" is not a saved monitor: {error}.') from None
    return header, arrays, Frozen(threshold, fpr, seen)


def needs(module: str) -> Any:
    """A module of scikit-learn or of scipy, which comes with it; fitting needs them, scoring not."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MonitorError(
            'Fitting a monitor needs scikit-learn: pip install "glasshouse[monitor]".'
        ) from None
