"""A measure as it is reported: with its interval, its null and its ceiling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from glasshouse.estimation.bootstrap import (
    RESAMPLES,
    Interval,
    bootstrap,
    bootstrap_all,
    by_problem,
    counted,
    unanimous,
    widened,
)
from glasshouse.estimation.permutation import Null, auroc_null, table_nulls
from glasshouse.estimation.weighted_statistics import Reading, of_auroc, of_mean, of_table
from glasshouse.measures import contingency, gmean, rates
from glasshouse.measures.detection import auroc
from glasshouse.measures.gmean import GMean2
from glasshouse.measures.result import Floats, Ints, Measure, labels, mean
from glasshouse.randomness import Part
from glasshouse.statistics import newcombe, wilson

ALPHA = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """What may be printed of a measure; a value never stands alone."""

    name: str
    measure: Measure
    interval: Interval
    null: Null | None = None
    """What permuted verdicts give; None where the measure needs no monitor."""
    ceiling: float | None = None
    """The best value possible, except for g-mean²: there, the best that knowing nothing reaches."""

    @property
    def informative(self) -> bool:
        """Does the monitor know something? Not by its score alone: by its permutation null."""
        return self.null is not None and self.null.p is not None and self.null.p <= ALPHA

    def as_dict(self) -> dict[str, Any]:
        shown = asdict(self) | {"measure": self.measure.as_dict()}
        return shown | ({"informative": self.informative} if self.null else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredGMean2:
    """g-mean² with everything that belongs beside it."""

    score: Scored
    parts: GMean2
    null_within: Null
    """The same verdicts dealt out anew within each arm: what seeing the plant alone would give."""
    lift: Interval
    """Of pz − FPR."""
    lift_null: Null
    lift_within: Interval
    """Of pz − FPR₁, within the planted arm."""
    lift_within_null: Null
    """Dealt out anew within each arm."""

    def line(self) -> str:
        """One line for people, always with q, ceiling, null and lift."""
        g, null = self.parts, self.score.null
        if g.gmean2.value is None:
            return f"g-mean² undefined: {g.gmean2.reason}"
        p = "undefined" if null is None or null.p is None else f"{null.mean:.3f}, p = {null.p:.4f}"
        return (
            f"g-mean² {g.gmean2.value:.3f} ({_shown(self.score.interval)}); q {g.q:.3f}, "
            f"a coin reaches {g.ceiling:.3f}; permuted verdicts {p}; "
            f"pz − FPR {g.lift:+.3f} ({_shown(self.lift)})"
        )


def scored_gmean2(
    x: ArrayLike,
    y: ArrayLike,
    z: ArrayLike,
    problems: ArrayLike,
    *,
    key: Sequence[Part],
    resamples: int = RESAMPLES,
) -> ScoredGMean2:
    """The interventional form, resampled over problems; blocks of the null: problem and arm."""

    def part(name: str) -> Reading:
        return lambda table: gmean.parts(table)[name]

    found = gmean.gmean2(x, y, z)
    intervals = bootstrap_all(
        {name: of_table(part(name), x, y, z) for name in ("gmean2", "lift", "lift_within")},
        [problems],
        key=key,
        resamples=resamples,
    )

    def nulls(name: str, lift: str, strata: ArrayLike | None) -> dict[str, Null]:
        return table_nulls(
            {part_: (part(part_), False) for part_ in ("gmean2", lift)},
            x,
            y,
            z,
            key=(*key, name),
            blocks=problem_and_arm(problems, x),
            strata=strata,
            permutations=resamples,
        )

    over, inside = nulls("null", "lift", None), nulls("null within", "lift_within", x)
    caught, passed = _caught(x, y, z), _passed(x, y, z)
    pz, tnr = by_problem(caught, problems), by_problem(passed, problems)
    within = by_problem(np.where(labels("x", x), passed, np.nan), problems)
    tpr = [min(1.0, p / found.q) if found.q else p for p in pz]
    return ScoredGMean2(
        score=Scored(
            name="g-mean²",
            measure=found.gmean2,
            interval=widened(intervals["gmean2"], tpr[0] * tnr[0], tpr[1] * tnr[1]),
            null=over["gmean2"],
            ceiling=found.ceiling,
        ),
        parts=found,
        null_within=inside["gmean2"],
        lift_null=over["lift"],
        lift_within_null=inside["lift_within"],
        lift=widened(intervals["lift"], pz[0] - 1 + tnr[0], pz[1] - 1 + tnr[1]),
        lift_within=widened(intervals["lift_within"], pz[0] - 1 + within[0], pz[1] - 1 + within[1]),
    )


def scored_auroc(
    y: ArrayLike,
    scores: ArrayLike,
    problems: ArrayLike,
    *,
    key: Sequence[Part],
    x: ArrayLike | None = None,
    resamples: int = RESAMPLES,
) -> Scored:
    """AUROC of a monitor's scores; knowing nothing gives ½."""
    blocks = problems if x is None else problem_and_arm(problems, x)
    measured = auroc(y, scores)
    found = bootstrap(of_auroc(y, scores), [problems], key=key, resamples=resamples)
    if measured.value is not None:
        reach = _reach(y, scores, problems) * max(measured.value, 1 - measured.value)
        low, high = max(0.0, measured.value - reach), min(1.0, measured.value + reach)
        found = widened(found, low, high)
    return Scored(
        name="AUROC",
        measure=measured,
        interval=found,
        null=auroc_null(y, scores, key=(*key, "null"), blocks=blocks, permutations=resamples),
        ceiling=1.0,
    )


def scored_mean(
    name: str,
    rows: ArrayLike,
    problems: ArrayLike,
    *,
    key: Sequence[Part],
    ceiling: float | None = None,
    resamples: int = RESAMPLES,
) -> Scored:
    """A mean over rollouts that needs no monitor: accuracy, AOC, TRACE, step validity."""
    found = bootstrap(of_mean(rows), [problems], key=(*key, name), resamples=resamples)
    return Scored(
        name=name,
        measure=mean(rows, f"no rollout has a value of {name}"),
        interval=unanimous(rows, found, problems=problems),
        ceiling=ceiling,
    )


def scored_reliance(
    x: ArrayLike,
    y: ArrayLike,
    problems: ArrayLike,
    *,
    key: Sequence[Part],
    resamples: int = RESAMPLES,
) -> Scored:
    """P(y | x = 1) − P(y | x = 0), resampled over problems; where every resample comes to the same,
    Newcombe's interval with the problems as trials. Its null: behaviour dealt out anew, blind to
    the arm."""
    measured = rates.reliance(x, y)
    none = [0] * len(labels("y", y))
    found = bootstrap(
        of_table(contingency.total_effect, x, y, none), [problems], key=key, resamples=resamples
    )
    if measured.value is not None:
        arm, rows = labels("x", x), np.asarray(y, dtype=np.float64)
        sides = [np.where(arm == side, rows, np.nan) for side in (True, False)]
        (n1, h1), (n0, h0) = (_trials(side, problems) for side in sides)
        found = widened(found, *newcombe(h1, n1, h0, n0))
    # the behaviour in the place of the score, the arm in that of the label
    null = table_nulls(
        {"": (lambda table: _effect(table), False)},
        None,
        x,
        y,
        key=(*key, "null"),
        blocks=problem_and_arm(problems, x),
        permutations=resamples,
    )[""]
    return Scored(name="reliance", measure=measured, interval=found, null=null, ceiling=1.0)


def problem_and_arm(problems: ArrayLike, x: ArrayLike) -> Ints:
    """One id per (problem, arm): the block within which rollouts are alike."""
    return np.unique(np.asarray(problems), return_inverse=True)[1] * 2 + labels("x", x)


def _effect(table: Floats) -> Floats:
    """With the arm as the label and the behaviour as the verdict: P(1 | arm 1) − P(1 | arm 0)."""
    return contingency.true_positive_rate(table) - (1 - contingency.true_negative_rate(table))


def shares_among(among: ArrayLike, z: ArrayLike) -> Floats:
    """The verdicts on these rows; NaN elsewhere and where there is none."""
    verdict = contingency.flags(z)
    return np.where(labels("among", among) & (verdict != contingency.FAILED), verdict, np.nan)


def _caught(x: ArrayLike, y: ArrayLike, z: ArrayLike) -> Floats:
    return shares_among(contingency.positives(x, y), z)


def _passed(x: ArrayLike, y: ArrayLike, z: ArrayLike) -> Floats:
    return 1 - shares_among(~contingency.positives(x, y), z)


def _trials(rows: Floats, problems: ArrayLike) -> tuple[int, int]:
    """Problems that have a row, and as many of them as the rows' mean says."""
    trials = counted(rows, problems)
    return trials, round(float(np.nanmean(rows)) * trials)


def _reach(y: ArrayLike, scores: ArrayLike, problems: ArrayLike) -> float:
    """How far the truth may lie from a perfect AUROC: Wilson's, the problems of the rarer label as
    trials."""
    behaviour, s = labels("y", y), np.asarray(scores, dtype=np.float64)
    fewest = min(counted(np.where(side, s, np.nan), problems) for side in (behaviour, ~behaviour))
    return wilson(0, fewest)[1]


def _shown(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return f"no interval: {interval.reason}"
    return f"{interval.low:.3f} to {interval.high:.3f}"
