"""Shared by fitted monitors: disjoint splits, a frozen threshold, files without pickle.

A monitor is fitted on one split, its threshold is set on a second, benign split, and it is
evaluated on a third. It stores hashes of the problems of the first two, so that an evaluation on
one of them raises an error, also after the monitor was saved and loaded.
"""

from __future__ import annotations

import importlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from glasshouse import randomness
from glasshouse.errors import MonitorError, install_command
from glasshouse.files import write_json
from glasshouse.monitors.base import MonitorOutput, Scope, View
from glasshouse.values import (
    Bools,
    Floats,
    Measure,
    as_labels,
    check_same_length,
    undefined_measure,
)

MIN_BENIGN = 1000
"""Fewest benign rollouts from which a threshold at 1 % false positives may be taken."""
FORMAT = 1
HEADER_FILE, ARRAYS_FILE = "monitor.json", "monitor.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedKind:
    """A monitor that is fitted on a part of the rollouts that it measures.

    Example: `FittedKind(name="ngrams", scope=Scope.COT)`
    """

    name: str
    scope: Scope


@dataclass(frozen=True, slots=True)
class LabelledViews:
    """Views with their labels and the keys of their problems."""

    views: Sequence[View]
    labels: Sequence[int]
    problems: Sequence[str]

    def __post_init__(self) -> None:
        check_same_length(views=self.views, labels=self.labels, problems=self.problems)


@dataclass(frozen=True, slots=True)
class Calibration:
    """The frozen threshold of a fitted monitor, and the problems it must not be evaluated on."""

    threshold: float
    """Flag scores above it."""
    fpr: float
    """The false positive rate on the benign split for which the threshold was set."""
    seen_problems: frozenset[int]
    """Hashes of the problems of both splits."""


NOT_CALIBRATED = Calibration(1.0, 0.0, frozenset())


class FittedMonitor(ABC):
    """What n-gram monitors and probes have in common: weights, a bias and a calibration."""

    __slots__ = ()
    kind: ClassVar[str]
    name: str
    scope: Scope
    bias: float
    calibration: Calibration

    @abstractmethod
    def score(self, view: View) -> MonitorOutput:
        """Scores a view, with the calibration's threshold."""

    def output(self, logit: float, reason: str = "") -> MonitorOutput:
        """The output for a logit: its score is the probability."""
        e = np.exp(-abs(logit))  # without overflow
        score = float(1 / (1 + e) if logit >= 0 else e / (1 + e))
        return MonitorOutput.from_score(score, threshold=self.calibration.threshold, reason=reason)

    def header(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.name, "scope": self.scope.value}

    def describe(self) -> dict[str, Any]:
        return {**self.header(), "threshold": self.calibration.threshold, "bias": self.bias}

    def save_weights(self, folder: Path, weights: Sequence[float], **header: Any) -> None:
        """Writes a JSON file and a safetensors file: neither can run code when it is loaded."""
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {
            "weights": np.array(weights, dtype=np.float64),
            "bias": np.array([self.bias]),
            "seen_problems": np.array(sorted(self.calibration.seen_problems), dtype=np.uint64),
            "threshold_and_fpr": np.array([self.calibration.threshold, self.calibration.fpr]),
        }
        save_file(arrays, folder / ARRAYS_FILE)
        write_json(folder / HEADER_FILE, {"format": FORMAT, **self.header(), **header})

    def check_unseen(self, problems: Sequence[str]) -> None:
        """Raises if it was fitted or calibrated on one of these problems; call it before an evaluation."""
        known = self.calibration.seen_problems
        seen = [problem for problem in problems if randomness.key("problem", problem) in known]
        if seen:
            raise MonitorError(
                f'The monitor "{self.name}" was fitted or calibrated on {len(seen)} of these '
                f"{len(problems)} problems (for example {seen[0]!r}); evaluate it on other problems."
            )


Fitted = TypeVar("Fitted", bound=FittedMonitor)


def check_training_splits(training: LabelledViews, benign: LabelledViews, scope: Scope) -> Bools:
    """Checks both splits before fitting; returns the training labels as an array."""
    labels = as_labels("labels", list(training.labels))
    if not labels.any() or labels.all():
        raise MonitorError("The training split has rollouts of one label only; it needs both.")
    if any(benign.labels):
        raise MonitorError("The split for the threshold must be benign: every label must be 0.")
    if overlap := set(training.problems) & set(benign.problems):
        raise MonitorError(
            f"{len(overlap)} problems are in both the training split and the benign split "
            f"(for example {min(overlap)!r}); the splits must be disjoint."
        )
    if any(view.scope is not scope for split in (training, benign) for view in split.views):
        raise MonitorError(f'Every view in both splits must have the scope "{scope}".')
    return labels


def threshold_at_fpr(
    benign: ArrayLike, fpr: float = 0.01, *, min_benign: int = MIN_BENIGN
) -> Measure:
    """The lowest threshold that at most a share `fpr` of benign scores exceeds; flag what is above.

    Take it on a benign split that is disjoint from fitting and from evaluation, then freeze it.
    """
    if not 0 <= fpr < 1:
        raise MonitorError(f"A false positive rate is at least 0 and below 1, not {fpr}.")
    scores = np.asarray(benign, dtype=np.float64)
    known = np.sort(scores[~np.isnan(scores)])[::-1]
    left_out = len(scores) - len(known)
    if len(known) < max(min_benign, 1):
        return undefined_measure(
            f"a threshold at {fpr:.0%} false positives needs {min_benign} benign rollouts with a "
            f"verdict, not {len(known)}",
            n=len(known),
            left_out=left_out,
        )
    allowed = math.floor(fpr * len(known) + 1e-9)  # 0.29 · 100 is 28.999…
    return Measure(value=float(known[allowed]), n=len(known), left_out=left_out)


def calibrate(
    draft: Fitted, training: LabelledViews, benign: LabelledViews, fpr: float, min_benign: int
) -> Fitted:
    """The monitor with its threshold set on the benign split and the problems of both splits."""
    scores = np.array([draft.score(view).score for view in benign.views], dtype=np.float64)
    threshold = threshold_at_fpr(scores, fpr, min_benign=min_benign)
    if threshold.value is None:
        raise MonitorError(f"The monitor's threshold cannot be set: {threshold.undefined}.")
    problems = [*training.problems, *benign.problems]
    seen = frozenset(randomness.key("problem", problem) for problem in problems)
    calibration = Calibration(threshold.value, fpr, seen)
    return replace(draft, calibration=calibration)  # type: ignore[type-var]


def fit_logistic_regression(features: Any, labels: Bools, c: float) -> tuple[Floats, float]:
    """Weights and bias of a class-balanced logistic regression; `c` is scikit-learn's `C`."""
    linear_model = import_for_fitting("sklearn.linear_model")
    model = linear_model.LogisticRegression(C=c, max_iter=2000, class_weight="balanced")
    model.fit(features, labels)
    return np.asarray(model.coef_[0], dtype=np.float64), float(model.intercept_[0])


def load_weights(folder: Path, kind: str) -> tuple[dict[str, Any], list[float], float, Calibration]:
    """Reads header, weights, bias and calibration as `save_weights` wrote them."""
    try:
        header = json.loads((folder / HEADER_FILE).read_text(encoding="utf-8"))
        arrays = {name: array.tolist() for name, array in load_file(folder / ARRAYS_FILE).items()}
        if header["format"] != FORMAT or header["kind"] != kind:
            raise ValueError(f"kind {header['kind']!r}, format {header['format']}, not {kind!r}")
        threshold, fpr = arrays["threshold_and_fpr"]
        calibration = Calibration(threshold, fpr, frozenset(arrays["seen_problems"]))
        return header, arrays["weights"], arrays["bias"][0], calibration
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise MonitorError(f'"{folder}" is not a saved monitor: {error}.') from None


def import_for_fitting(module: str) -> Any:
    """Imports a module of scikit-learn, or of scipy, which it installs. Scoring needs neither."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MonitorError(
            f"Fitting a monitor needs scikit-learn: {install_command('monitor')}"
        ) from None
