"""A text classifier: logistic regression on word n-grams, fitted per checkpoint and then frozen.

scikit-learn fits it; scoring is a sum of weights in this file, so that a saved monitor gives the
same bits on a machine that has no scikit-learn.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glasshouse.errors import MonitorError
from glasshouse.measures.detection import BENIGN
from glasshouse.measures.result import Bools, Floats
from glasshouse.monitors import fitted
from glasshouse.monitors.base import Verdict
from glasshouse.monitors.fitted import Frozen, Split
from glasshouse.monitors.views import Scope, View

LONGEST = 3
"""n-grams of one to this many tokens."""
FEATURES = 20_000
_TOKEN = re.compile(r"[^\W\d]+|\d|[^\w\s]|_")
"""A word, a digit or a sign: digits one by one, as numbers are too many to learn by heart."""


def ngrams(view: View) -> set[str]:
    """The distinct n-grams of a view; those of different parts are different features.

    Example: the CoT "so 12" has `cot:so`, `cot:1`, `cot:2`, `cot:so 1`, `cot:1 2`, `cot:so 1 2`.
    """
    found: set[str] = set()
    for part, text in view.parts.items():
        tokens = ["^", *_TOKEN.findall(text.lower()), "$"]
        for n in range(1, LONGEST + 1):
            shifted = (tokens[i:] for i in range(n))
            found.update(f"{part}:{' '.join(gram)}" for gram in zip(*shifted, strict=False))
    return found


@dataclass(frozen=True, slots=True)
class NgramMonitor:
    """A fitted and frozen classifier.

    Example:
        monitor = fit("words", Scope.COT, training, benign)
        monitor.save(folder); NgramMonitor.load(folder) == monitor
    """

    name: str
    scope: Scope
    weights: dict[str, float]
    """Logit per n-gram present, in the order of the vocabulary."""
    bias: float
    frozen: Frozen

    def score(self, view: View) -> Verdict:
        present = [(w, gram) for gram in ngrams(view) if (w := self.weights.get(gram)) is not None]
        present.sort()  # one order of addition: a set has none
        logit = self.bias + float(np.sum([w for w, _ in present]))
        most = f"{present[-1][1]!r} weighs most" if present else "nothing known in it"
        return Verdict.of(fitted.sigmoid(logit), threshold=self.frozen.threshold, reason=most)

    def refuse_seen(self, problems: list[str]) -> None:
        """Call before an evaluation on these problems."""
        fitted.refuse_seen(self.name, self.frozen, problems)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "ngrams",
            "name": self.name,
            "scope": self.scope.value,
            "threshold": self.frozen.threshold,
            "bias": self.bias,
            "weights": self.weights,
        }

    def save(self, folder: Path) -> None:
        header = {
            "kind": "ngrams",
            "name": self.name,
            "scope": self.scope.value,
            "vocabulary": list(self.weights),
        }
        arrays = {"weights": _array(self.weights), "bias": np.array([self.bias])}
        fitted.save(folder, header, arrays, self.frozen)

    @classmethod
    def load(cls, folder: Path) -> NgramMonitor:
        header, arrays, frozen = fitted.load(folder, "ngrams")
        weights, vocabulary = arrays["weights"].tolist(), header["vocabulary"]
        if len(weights) != len(vocabulary):
            raise MonitorError(
                f'"{folder}" has {len(vocabulary)} n-grams but {len(weights)} weights.'
            )
        return cls(
            header["name"],
            Scope(header["scope"]),
            dict(zip(vocabulary, weights, strict=True)),
            float(arrays["bias"][0]),
            frozen,
        )


def fit(
    name: str,
    scope: Scope,
    training: Split,
    benign: Split,
    *,
    fpr: float = 0.01,
    fewest: int = BENIGN,
    strength: float = 1.0,
) -> NgramMonitor:
    """Fit on one split, take the threshold on another, freeze. `strength` is scikit-learn's C."""
    if scope is Scope.ACTIVATIONS:
        raise MonitorError(f'The n-gram monitor "{name}" needs a scope with text in it.')
    y = fitted.apart(training, benign, scope)
    named, bias = weigh(name, [ngrams(view) for view in training.views], y, strength)
    draft = NgramMonitor(name, scope, named, bias, Frozen(1.0, fpr, frozenset()))
    benign_scores = [draft.score(view).score for view in benign.views]
    frozen = fitted.freeze(np.array(benign_scores), training, benign, fpr, fewest)
    return NgramMonitor(name, scope, named, bias, frozen)


def weigh(
    name: str, grams: Sequence[set[str]], y: Bools, strength: float = 1.0
) -> tuple[dict[str, float], float]:
    """The weight of every n-gram that occurs in two rollouts or more, and the bias."""
    often = Counter(gram for row in grams for gram in row)
    # what occurs once cannot generalise; the most frequent ones, ties by name
    kept = sorted((g for g, n in often.items() if n > 1), key=lambda g: (-often[g], g))[:FEATURES]
    if not kept:
        raise MonitorError(f'The n-gram monitor "{name}" finds no n-gram in two rollouts.')
    vocabulary = {gram: column for column, gram in enumerate(sorted(kept))}
    pairs = [(r, vocabulary[g]) for r, row in enumerate(grams) for g in row if g in vocabulary]
    rows, columns = np.array(sorted(pairs)).T
    features = fitted.needs("scipy.sparse").csr_array(
        (np.ones(len(rows)), (rows, columns)), shape=(len(grams), len(vocabulary))
    )
    weights, bias = fitted.logistic(features, y, strength)
    return dict(zip(vocabulary, weights.tolist(), strict=True)), bias


def _array(weights: dict[str, float]) -> Floats:
    return np.array(list(weights.values()), dtype=np.float64)
