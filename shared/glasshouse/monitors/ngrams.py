"""A text classifier: logistic regression on n-grams, fitted on labelled rollouts and then frozen.

scikit-learn fits it; scoring is a sum of weights in this file, so that a saved monitor gives
bitwise equal scores on a machine without scikit-learn.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from glasshouse.errors import MonitorError
from glasshouse.monitors import fitted
from glasshouse.monitors.base import MonitorOutput, Scope, View
from glasshouse.monitors.fitted import MIN_BENIGN, NOT_CALIBRATED, Calibration, LabelledViews
from glasshouse.values import Bools

MAX_N = 3
"""n-grams of 1 to this many tokens."""
MAX_FEATURES = 20_000
_TOKEN = re.compile(r"[^\W\d]+|\d|[^\w\s]|_")
"""A word, a digit or a symbol. Digits are separate, because numbers are too many to memorise."""


def extract_ngrams(view: View) -> set[str]:
    """The distinct n-grams of a view; those of different parts are different features.

    Example: the CoT "so 12" has `cot:so`, `cot:1`, `cot:2`, `cot:so 1`, `cot:1 2`, `cot:so 1 2`.
    """
    grams: set[str] = set()
    for part, text in view.parts.items():
        tokens = ["^", *_TOKEN.findall(text.lower()), "$"]
        for n in range(1, MAX_N + 1):
            shifted = (tokens[i:] for i in range(n))
            grams.update(f"{part}:{' '.join(gram)}" for gram in zip(*shifted, strict=False))
    return grams


@dataclass(frozen=True, slots=True)
class NgramMonitor(fitted.FittedMonitor):
    """A fitted and frozen classifier.

    Example:
        monitor = fit_ngram_monitor("words", Scope.COT, training, benign)
        monitor.save(folder)
        assert NgramMonitor.load(folder) == monitor
    """

    kind: ClassVar[str] = "ngrams"
    name: str
    scope: Scope
    weights: dict[str, float]
    """Logit per n-gram, in the order of the vocabulary."""
    bias: float
    calibration: Calibration

    def score(self, view: View) -> MonitorOutput:
        present = [
            (weight, gram)
            for gram in extract_ngrams(view)
            if (weight := self.weights.get(gram)) is not None
        ]
        present.sort()  # a fixed order of addition: a set has none
        logit = self.bias + float(np.sum([weight for weight, _ in present]))
        reason = f"highest weight: {present[-1][1]!r}" if present else "no known n-gram"
        return self.output(logit, reason)

    def describe(self) -> dict[str, Any]:
        return fitted.FittedMonitor.describe(self) | {"weights": self.weights}

    def save(self, folder: Path) -> None:
        self.save_weights(folder, list(self.weights.values()), vocabulary=list(self.weights))

    @classmethod
    def load(cls, folder: Path) -> NgramMonitor:
        header, weights, bias, calibration = fitted.load_weights(folder, cls.kind)
        vocabulary = header["vocabulary"]
        if len(weights) != len(vocabulary):
            raise MonitorError(
                f'"{folder}" has {len(vocabulary)} n-grams but {len(weights)} weights.'
            )
        by_gram = dict(zip(vocabulary, weights, strict=True))
        return cls(header["name"], Scope(header["scope"]), by_gram, bias, calibration)


def fit_ngram_monitor(
    name: str,
    scope: Scope,
    training: LabelledViews,
    benign: LabelledViews,
    *,
    fpr: float = 0.01,
    min_benign: int = MIN_BENIGN,
) -> NgramMonitor:
    """Fits on the training split, sets the threshold on the benign split, and freezes both."""
    if scope is Scope.ACTIVATIONS:
        raise MonitorError(f'The n-gram monitor "{name}" needs a scope with text.')
    labels = fitted.check_training_splits(training, benign, scope)
    weights, bias = fit_ngram_weights(name, [extract_ngrams(v) for v in training.views], labels)
    draft = NgramMonitor(name, scope, weights, bias, NOT_CALIBRATED)
    return fitted.calibrate(draft, training, benign, fpr, min_benign)


def fit_ngram_weights(
    name: str, grams: Sequence[set[str]], labels: Bools
) -> tuple[dict[str, float], float]:
    """The weight of every n-gram that occurs in at least two rollouts, and the bias."""
    counts = Counter(gram for row in grams for gram in row)
    # an n-gram that occurs once cannot generalise; the most frequent ones, ties by name
    frequent = sorted((g for g, n in counts.items() if n > 1), key=lambda g: (-counts[g], g))
    if not frequent:
        raise MonitorError(f'The n-gram monitor "{name}": no n-gram occurs in two rollouts.')
    vocabulary = {gram: column for column, gram in enumerate(sorted(frequent[:MAX_FEATURES]))}
    pairs = [(r, vocabulary[g]) for r, row in enumerate(grams) for g in row if g in vocabulary]
    rows, columns = np.array(sorted(pairs)).T
    features = fitted.import_for_fitting("scipy.sparse").csr_array(
        (np.ones(len(rows)), (rows, columns)), shape=(len(grams), len(vocabulary))
    )
    weights, bias = fitted.fit_logistic_regression(features, labels, c=1.0)
    return dict(zip(vocabulary, weights.tolist(), strict=True)), bias
