"""Comparisons over seeds. The unit of a claim about RL is the seed, paired across arms.

A pair has the same starting weights, problem order and evaluation set, so the difference within
it is the arm's doing plus noise; its sign, were the arm to do nothing, is a coin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from glasshouse import randomness
from glasshouse.errors import MonitorError
from glasshouse.measures.result import Floats
from glasshouse.statistics import holm, mean_interval

EXACT = 16
"""Up to this many pairs all sign flips are enumerated; beyond, 2¹⁶ of them are drawn."""
ALPHA = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """Treatment − control over paired seeds."""

    effect: float | None
    """Mean difference."""
    low: float | None
    high: float | None
    """Student's 95 % interval of the mean difference."""
    p: float | None
    """Exact two-sided sign-flip test."""
    smallest_p: float | None
    """The smallest p that so many pairs can give: below six pairs it is above 0.05."""
    d: float | None
    """Mean difference in units of its standard deviation over seeds."""
    n: int
    """Pairs compared."""
    dropped: int = 0
    """Pairs in which an arm's measure is undefined."""
    reason: str = ""
    p_holm: float | None = None
    """p after Holm's correction over the family of comparisons; see `family`."""

    @property
    def shown(self) -> bool:
        """Is there an effect? Only if the corrected p and the interval both say so."""
        p = self.p if self.p_holm is None else self.p_holm
        if p is None or self.low is None or self.high is None:
            return False
        return p <= ALPHA and not self.low <= 0 <= self.high


def paired(treatment: Sequence[float | None], control: Sequence[float | None]) -> Paired:
    """Compare two arms seed by seed; None is a measure that is undefined in that seed.

    Example: `paired([.9, .8, .85], [.5, .5, .6]).effect` is 0.3166…, and its p is 0.25: three
    seeds can show nothing.
    """
    if len(treatment) != len(control):
        raise MonitorError(
            f"Paired arms need the same seeds: one has {len(treatment)}, the other {len(control)}."
        )
    pairs = [
        (t, c) for t, c in zip(treatment, control, strict=True) if t is not None and c is not None
    ]
    dropped = len(treatment) - len(pairs)
    return over_seeds([t - c for t, c in pairs], dropped)


def over_seeds(differences: Sequence[float], dropped: int = 0) -> Paired:
    """The same of differences already taken, or of slopes: is their mean zero?"""
    n = len(differences)
    if n < 2:
        why = f"{n} pair{'s' * (n != 1)} of seeds with the measure defined in both arms: two are needed"
        return Paired(
            effect=None,
            low=None,
            high=None,
            p=None,
            smallest_p=None,
            d=None,
            n=n,
            dropped=dropped,
            reason=why,
        )
    effect, low, high = mean_interval(differences)
    deviation = float(np.std(differences, ddof=1))
    return Paired(
        effect=effect,
        low=low,
        high=high,
        p=sign_flip(differences),
        smallest_p=2.0 ** (1 - n) if n <= EXACT else 1 / (1 + 2**EXACT),
        d=effect / deviation if deviation > 0 else None,
        n=n,
        dropped=dropped,
    )


def sign_flip(differences: Sequence[float]) -> float:
    """Two-sided p-value that differences are symmetric about 0, by flipping their signs.

    Exact up to 16 differences: Fisher's randomisation test. Example: `sign_flip([1, 2, 3])` is
    2/8: only all plus and all minus are as extreme.
    """
    values = np.asarray(differences, dtype=np.float64)
    n = len(values)
    if n <= EXACT:
        flipped = (np.arange(2**n)[:, None] >> np.arange(n)) & 1 == 1  # (2ⁿ, n)
        counted = 0
    else:
        keys = np.array([randomness.key("sign flip", n, i) for i in range(n)], dtype=np.uint64)
        flipped = randomness.uniforms(keys, 0, 2**EXACT).T < 0.5
        counted = 1  # the observed signs are one of the draws
    return _as_extreme(np.where(flipped, -1.0, 1.0), values, counted)


def _as_extreme(signs: Floats, values: Floats, counted: int) -> float:
    sums = np.abs(signs @ values)
    observed = abs(math.fsum(values.tolist()))
    slack = 1e-12 * float(np.abs(values).sum())  # equal sums, added in another order
    return float((counted + (sums >= observed - slack).sum()) / (counted + len(signs)))


def slope(steps: Sequence[float], values: Sequence[float | None]) -> float | None:
    """A seed's trend over checkpoints, by least squares; None with fewer than two points.

    Example: `over_seeds([slope(steps, seed) for seed in curves])` tests a trend over seeds.
    """
    points = [(s, v) for s, v in zip(steps, values, strict=True) if v is not None]
    if len({s for s, _ in points}) < 2:
        return None
    x, y = np.array(points, dtype=np.float64).T
    return float(((x - x.mean()) @ (y - y.mean())) / ((x - x.mean()) @ (x - x.mean())))


def family(comparisons: Sequence[Paired]) -> list[Paired]:
    """The same comparisons with Holm's correction over those that have a p-value."""
    known = [i for i, c in enumerate(comparisons) if c.p is not None]
    adjusted = dict(zip(known, holm([comparisons[i].p or 0.0 for i in known]), strict=True))
    return [replace(c, p_holm=adjusted.get(i)) for i, c in enumerate(comparisons)]
