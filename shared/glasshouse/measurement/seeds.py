"""Comparisons over seeds, and over bases.

The unit of a claim about RL is the seed, paired across arms: a pair has the same starting weights, problem order and
evaluation set. If the arm has no effect, the sign of the difference within a pair is a coin toss.

Seeds of one base share its weights, so their differences are alike. With several bases the question is about bases
that were not trained, and the unit is the base: Student's t over the bases' mean differences. With as many seeds in
every base this equals a mixed model with a random effect of the base on the arm's effect (REML, Kenward–Roger); with
unequal numbers it stays close (`python -m proofs.base_intervals` simulates its coverage).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from glasshouse import randomness
from glasshouse.measurement.closed_forms import holm_adjust, mean_interval

MAX_EXACT_PAIRS = 16
"""Up to this many pairs all sign flips are enumerated; beyond, 2¹⁶ of them are drawn."""
ALPHA = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedComparison:
    """Treatment − control over paired seeds."""

    effect: float | None = None
    """Mean difference."""
    low: float | None = None
    high: float | None = None
    """Student's 95 % interval of the mean difference, over seeds or over bases."""
    p: float | None = None
    """Two-sided: exact sign-flip test over seeds, or Student's t test over bases."""
    smallest_p: float | None = None
    """The smallest p that this number of pairs can give: below six pairs it is above 0.05. None over
    bases: a t test has no smallest p."""
    d: float | None = None
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

    Example: `compare_paired([.9, .8, .85], [.5, .5, .6]).p` is 0.25: three seeds can show nothing.
    """
    pairs = zip(treatment, control, strict=True)
    differences = [t - c for t, c in pairs if t is not None and c is not None]
    return compare_differences(differences, len(treatment) - len(differences))


def compare_differences(differences: Sequence[float], dropped: int = 0) -> PairedComparison:
    """The comparison of seeds' differences: is their mean zero?"""
    n = len(differences)
    if n < 2:
        reason = f"{n} pair{'s' * (n != 1)} of seeds with the measure defined in both arms: two are needed"
        return PairedComparison(n=n, dropped=dropped, reason=reason)
    return replace(
        _compare_units(differences),
        p=sign_flip_test(differences),
        smallest_p=2.0 ** (1 - n) if n <= MAX_EXACT_PAIRS else 1 / (1 + 2**MAX_EXACT_PAIRS),
        dropped=dropped,
    )


def compare_over_bases(
    differences: Sequence[float], bases: Sequence[str], dropped: int = 0
) -> PairedComparison:
    """The comparison whose interval and test hold for bases like these; `bases[i]` is that of `differences[i]`.

    Example: `compare_over_bases([1, 3, 2, 4, 3, 5], list("aabbcc"))` has the interval of the means 2, 3 and 4.
    """
    means = [math.fsum(group) / len(group) for group in _group(differences, bases)]
    if len(means) < 2:
        return compare_differences(differences, dropped)
    compared = _compare_units(means)
    n = len(differences)
    return replace(compared, p=t_test(means), n=n, num_bases=len(means), dropped=dropped)


def _compare_units(values: Sequence[float]) -> PairedComparison:
    effect, low, high = mean_interval(values)
    deviation = float(np.std(values, ddof=1))
    d = effect / deviation if deviation > 0 else None
    return PairedComparison(effect=effect, low=low, high=high, d=d, n=len(values))


def sign_flip_test(differences: Sequence[float]) -> float:
    """Two-sided p-value that differences are symmetric about 0, by flipping their signs: Fisher's
    randomisation test. Example: `sign_flip_test([1, 2, 3])` is 2/8: only all plus and all minus are as extreme.
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


def t_test(values: Sequence[float]) -> float:
    """Two-sided p of Student's test that the mean is 0. Example: `t_test([1, 2, 3])` is 0.0742."""
    n, mean = len(values), math.fsum(values) / len(values)
    error = float(np.std(values, ddof=1)) / math.sqrt(n)
    if error == 0:
        return 1.0 if mean == 0 else 0.0
    return float(2 * special.stdtr(n - 1, -abs(mean / error)))


def holm_correct(comparisons: Sequence[PairedComparison]) -> list[PairedComparison]:
    """The same comparisons with Holm's correction over those that have a p-value."""
    known = [i for i, c in enumerate(comparisons) if c.p is not None]
    adjusted = dict(zip(known, holm_adjust([comparisons[i].p or 0.0 for i in known]), strict=True))
    return [replace(c, p_holm=adjusted.get(i)) for i, c in enumerate(comparisons)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseInteraction:
    """Does the arm's effect differ between bases by more than between seeds of one base?"""

    f: float | None = None
    """One-way analysis of variance of the differences, by base."""
    df_between: int
    df_within: int
    p: float | None = None
    sd_between: float | None = None
    """Standard deviation of the effect between bases, without the noise of seeds; at least 0."""
    sd_within: float | None = None
    """Standard deviation of the difference between seeds of one base."""
    reason: str = ""
    """Why there is no test; empty if there is one."""


def estimate_interaction(differences: Sequence[float], bases: Sequence[str]) -> BaseInteraction:
    """Test the base × arm interaction: since arms are paired within seeds, it is the variation of
    the differences between bases. Example: `estimate_interaction([1, 3, 2, 4, 7, 9], list("aabbcc")).f` is 10.33.
    """
    groups = _group(differences, bases)
    n, k = len(differences), len(groups)
    df_between, df_within = max(0, k - 1), max(0, n - k)
    if k < 2 or not df_within:
        reason = "one base" if k < 2 else "one seed per base"
        return BaseInteraction(df_between=df_between, df_within=df_within, reason=reason)
    grand = math.fsum(differences) / n
    means = [math.fsum(group) / len(group) for group in groups]
    between = math.fsum(len(g) * (m - grand) ** 2 for g, m in zip(groups, means, strict=True))
    within = math.fsum((v - m) ** 2 for g, m in zip(groups, means, strict=True) for v in g)
    mean_square, noise = between / df_between, within / df_within
    seeds_per_base = (n - math.fsum(len(g) ** 2 for g in groups) / n) / df_between
    f = mean_square / noise if noise > 0 else None
    return BaseInteraction(
        f=f,
        df_between=df_between,
        df_within=df_within,
        p=None if f is None else float(special.fdtrc(df_between, df_within, f)),
        sd_between=math.sqrt(max(0.0, mean_square - noise) / seeds_per_base),
        sd_within=math.sqrt(noise),
        reason="" if f is not None else "seeds of one base do not differ",
    )


def _group(differences: Sequence[float], bases: Sequence[str]) -> list[list[float]]:
    """The differences of each base, in the order of the bases."""
    groups: dict[str, list[float]] = {}
    for value, base in zip(differences, bases, strict=True):
        groups.setdefault(base, []).append(value)
    return [groups[base] for base in sorted(groups)]
