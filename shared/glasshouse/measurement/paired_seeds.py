"""Comparisons over seeds. The unit of a claim about RL is the seed, paired across arms.

A pair has the same starting weights, problem order and evaluation set, so that the difference within
it is the arm's effect plus noise; if the arm has no effect, its sign is a coin toss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from glasshouse import randomness
from glasshouse.errors import MonitorError
from glasshouse.measurement.closed_forms import holm_adjust, mean_interval

MAX_EXACT_PAIRS = 16
"""Up to this many pairs all sign flips are enumerated; beyond, 2¹⁶ of them are drawn."""
ALPHA = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedComparison:
    """Treatment − control over paired seeds."""

    effect: float | None
    """Mean difference."""
    low: float | None
    high: float | None
    """Student's 95 % interval of the mean difference, over seeds or over bases."""
    p: float | None
    """Two-sided: exact sign-flip test over seeds, or Student's t test over bases."""
    smallest_p: float | None
    """The smallest p that this number of pairs can give: below six pairs it is above 0.05. None over
    bases: a t test has no smallest p."""
    d: float | None
    """Mean difference in units of its standard deviation over seeds, or over bases."""
    n: int
    """Pairs compared."""
    num_bases: int | None = None
    """The number of bases, if they are the unit of the comparison; None if seeds are."""
    dropped: int = 0
    """Pairs in which an arm's measure is undefined."""
    reason: str = ""
    p_holm: float | None = None
    """p after Holm's correction; see `holm_correct`."""

    @property
    def shown(self) -> bool:
        """Is there an effect? Only if the corrected p and the interval both say so."""
        p = self.p if self.p_holm is None else self.p_holm
        if p is None or self.low is None or self.high is None:
            return False
        return p <= ALPHA and not self.low <= 0 <= self.high


def compare_paired(
    treatment: Sequence[float | None], control: Sequence[float | None]
) -> PairedComparison:
    """Compare two arms seed by seed; None is a measure that is undefined in that seed.

    Example: `compare_paired([.9, .8, .85], [.5, .5, .6]).effect` is 0.3166…, and its p is 0.25: three
    seeds can show nothing.
    """
    if len(treatment) != len(control):
        raise MonitorError(
            f"Paired arms need the same seeds: one has {len(treatment)}, the other {len(control)}."
        )
    pairs = [
        (t, c) for t, c in zip(treatment, control, strict=True) if t is not None and c is not None
    ]
    return compare_differences([t - c for t, c in pairs], len(treatment) - len(pairs))


def compare_differences(differences: Sequence[float], dropped: int = 0) -> PairedComparison:
    """The comparison of seeds' differences: is their mean zero?"""
    n = len(differences)
    if n < 2:
        return PairedComparison(
            effect=None,
            low=None,
            high=None,
            p=None,
            smallest_p=None,
            d=None,
            n=n,
            dropped=dropped,
            reason=f"{n} pair{'s' * (n != 1)} of seeds with the measure defined in both arms: two are needed",
        )
    effect, low, high = mean_interval(differences)
    deviation = float(np.std(differences, ddof=1))
    return PairedComparison(
        effect=effect,
        low=low,
        high=high,
        p=sign_flip_test(differences),
        smallest_p=2.0 ** (1 - n) if n <= MAX_EXACT_PAIRS else 1 / (1 + 2**MAX_EXACT_PAIRS),
        d=effect / deviation if deviation > 0 else None,
        n=n,
        dropped=dropped,
    )


def sign_flip_test(differences: Sequence[float]) -> float:
    """Two-sided p-value that differences are symmetric about 0, by flipping their signs.

    Exact up to 16 differences: Fisher's randomisation test. Example: `sign_flip_test([1, 2, 3])` is
    2/8: only all plus and all minus are as extreme.
    """
    values = np.asarray(differences, dtype=np.float64)
    n = len(values)
    if n <= MAX_EXACT_PAIRS:
        flipped = (np.arange(2**n)[:, None] >> np.arange(n)) & 1 == 1  # (2ⁿ, n)
        observed_draws = 0
    else:
        keys = np.array([randomness.key("sign flip", n, i) for i in range(n)], dtype=np.uint64)
        flipped = randomness.uniforms(keys, 0, 2**MAX_EXACT_PAIRS).T < 0.5
        observed_draws = 1  # the observed signs count as one of the draws
    sums = np.abs(np.where(flipped, -1.0, 1.0) @ values)
    observed = abs(math.fsum(values.tolist()))
    slack = 1e-12 * float(np.abs(values).sum())  # equal sums, added in another order
    as_extreme = (sums >= observed - slack).sum()
    return float((observed_draws + as_extreme) / (observed_draws + len(sums)))


def holm_correct(comparisons: Sequence[PairedComparison]) -> list[PairedComparison]:
    """The same comparisons with Holm's correction over those that have a p-value."""
    known = [i for i, c in enumerate(comparisons) if c.p is not None]
    adjusted = dict(zip(known, holm_adjust([comparisons[i].p or 0.0 for i in known]), strict=True))
    return [replace(c, p_holm=adjusted.get(i)) for i, c in enumerate(comparisons)]
