"""Intervals and tests of rates and means, and comparisons over seeds and over bases.

The unit of a claim about RL is the seed, paired across arms: a pair has the same starting weights, problem order and
evaluation set. If the arm has no effect, the sign of the difference within a pair is a coin toss. Seeds of one base
share its weights, so their differences are alike. With several bases the unit is the base: Student's t over the bases'
mean differences. With as many seeds in every base this equals a mixed model with a random effect of the base on the
arm's effect (REML, Kenward–Roger); otherwise it stays close (`python -m proofs.base_intervals` simulates its coverage).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy  # its parts are imported when they are used

from glasshouse import randomness

Z_975 = 1.959963984540054
"""97.5 % quantile of the normal distribution."""


def wilson_interval(successes: float, trials: float) -> tuple[float, float]:
    """95 % interval of a rate. Example: `wilson_interval(90, 100)` is about (0.826, 0.945)."""
    if trials == 0:
        return 0.0, 1.0
    rate, z2 = successes / trials, Z_975**2
    centre = (rate + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z_975 * math.sqrt(rate * (1 - rate) / trials + z2 / (4 * trials**2)) / (1 + z2 / trials)
    low = centre - half if successes else 0.0  # exactly, where rounding would leave 1e-17
    return low, centre + half if successes < trials else 1.0


def clustered_rate_interval(shares: Sequence[float], samples: int) -> tuple[float, float]:
    """95 % interval of a rate over problems, from each problem's share of correct samples: Wilson's, with the number
    of independent samples that has the variance seen between problems. That is as many as problems if the samples of a
    problem agree. Example: `clustered_rate_interval([0.0, 1.0] * 50, 4)` is that of 50 of 100.
    """
    problems = len(shares)
    if not problems:
        return 0.0, 1.0
    rate = math.fsum(shares) / problems
    effective = float(problems)
    if problems > 1 and 0 < rate < 1:
        variance = math.fsum((share - rate) ** 2 for share in shares) / (problems - 1)
        if variance > 0:
            effective = rate * (1 - rate) * problems / variance
        effective = min(max(effective, problems), problems * samples)
    return wilson_interval(rate * effective, effective)


def t_quantile_975(freedom: int) -> float:
    """97.5 % quantile of Student's t."""
    return float(scipy.special.stdtrit(freedom, 0.975))


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % t interval over seeds. One value alone has no interval: infinite ends."""
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return mean, -math.inf, math.inf
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    half = t_quantile_975(n - 1) * deviation / math.sqrt(n)
    return mean, mean - half, mean + half


def pass_at_k(correct: int, samples: int, k: int) -> float:
    """Unbiased chance that at least one of `k` samples is correct, from `correct` of `samples`."""
    if samples - correct < k:
        return 1.0
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def newcombe_interval(
    successes: int, trials: int, other_successes: int, other_trials: int
) -> tuple[float, float]:
    """95 % interval of the difference of two independent rates, from their Wilson intervals.
    Example: `newcombe_interval(56, 70, 48, 80)` is about (0.052, 0.334), Newcombe's own example."""
    if not trials or not other_trials:
        return -1.0, 1.0
    return difference_interval(
        (successes / trials, *wilson_interval(successes, trials)),
        (other_successes / other_trials, *wilson_interval(other_successes, other_trials)),
    )


def difference_interval(
    estimate: tuple[float, float, float], other: tuple[float, float, float]
) -> tuple[float, float]:
    """95 % interval of the difference of two independent estimates, each given as (value, low, high)."""
    (p, low, high), (o, other_low, other_high) = estimate, other
    return (
        p - o - math.hypot(p - low, other_high - o),
        p - o + math.hypot(high - p, o - other_low),
    )


def holm_adjust(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given: rejecting those of at most α keeps the family-wise error
    rate at α. Example: `holm_adjust([0.01, 0.04, 0.03])` is `[0.03, 0.06, 0.06]`."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


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


def compare_differences(
    differences: Sequence[float], dropped: int = 0, bases: Sequence[str] = ()
) -> PairedComparison:
    """The comparison of seeds' differences: is their mean zero? With the base of each, interval and test are over the
    bases' means, and hold for bases like these.

    Example: `compare_differences([1, 3, 2, 4, 3, 5], bases=list("aabbcc"))` has the interval of the means 2, 3 and 4.
    """
    n = len(differences)
    means = [math.fsum(group) / len(group) for group in _group(differences, bases or [""] * n)]
    if len(means) > 1:
        compared = replace(_compare_units(means), p=t_test(means))
        return replace(compared, n=n, num_bases=len(means), dropped=dropped)
    if n < 2:
        reason = f"{n} pair{'s' * (n != 1)} of seeds with the measure defined in both arms: two are needed"
        return PairedComparison(n=n, dropped=dropped, reason=reason)
    return replace(
        _compare_units(differences),
        p=sign_flip_test(differences),
        smallest_p=2.0 ** (1 - n) if n <= MAX_EXACT_PAIRS else 1 / (1 + 2**MAX_EXACT_PAIRS),
        dropped=dropped,
    )


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
    return float(2 * scipy.special.stdtr(n - 1, -abs(mean / error)))


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
    pairs = [(group, math.fsum(group) / len(group)) for group in groups]
    between = math.fsum(len(group) * (mean - grand) ** 2 for group, mean in pairs)
    within = math.fsum((value - mean) ** 2 for group, mean in pairs for value in group)
    mean_square, noise = between / df_between, within / df_within
    seeds_per_base = (n - math.fsum(len(g) ** 2 for g in groups) / n) / df_between
    f = mean_square / noise if noise > 0 else None
    return BaseInteraction(
        f=f,
        df_between=df_between,
        df_within=df_within,
        p=None if f is None else float(scipy.special.fdtrc(df_between, df_within, f)),
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
