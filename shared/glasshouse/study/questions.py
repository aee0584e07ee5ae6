"""The numbers of one question: its effect over paired seeds, and what is reported with it.

    effect        the arm − its reference (the same run before RL, or another arm), seed by seed
    null          the same effect in the arm whose reward is noise
    beyond null   the arm − the null arm: the effect of the reward beyond that of RL on noise
    matched       a comparison of two arms at equal accuracy, besides that at the same step
    max effect    the largest possible effect
    by base       the effect over the seeds of each base

Verdicts are decided in verdict.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from glasshouse.measurement.closed_forms import mean_interval
from glasshouse.measurement.paired_seeds import PairedComparison, compare_differences, holm_correct
from glasshouse.measurement.random_bases import (
    BaseInteraction,
    compare_over_bases,
    estimate_interaction,
)
from glasshouse.measurement.registry import companion_measures, lookup
from glasshouse.study.bounds import MaxEffect, max_effect, respect_bounds
from glasshouse.study.series import (
    ComparisonPoint,
    SeedValues,
    StudySeries,
    point_at_equal_accuracy,
    point_at_equal_kl,
    point_at_step,
)
from glasshouse.study.spec import MIN_RANDOM_BASES, START, Question, Study

ACCURACY = "accuracy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """An arm − a reference over paired seeds, with the means of both over the same pairs."""

    arm: str
    reference: str
    before: float | None
    """Mean of the reference."""
    after: float | None
    """Mean of the arm."""
    paired: PairedComparison
    interaction: BaseInteraction
    """Base × arm."""
    ceiling: MaxEffect
    differences: tuple[float, ...]
    """The difference of each pair, for figures; not part of study.json, since the table has them."""

    @property
    def mean_difference(self) -> float | None:
        """Defined from one pair on, unlike the effect, which has an interval."""
        return None if self.before is None or self.after is None else self.after - self.before

    def with_p_holm(self, p_holm: float | None) -> Contrast:
        return replace(self, paired=replace(self.paired, p_holm=p_holm))

    def as_dict(self) -> dict[str, Any]:
        means = {"before": self.before, "after": self.after}
        interaction = asdict(self.interaction)
        return {
            "arm": self.arm,
            "reference": self.reference,
            **means,
            **asdict(self.paired),
            "interaction": interaction,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedMean:
    """A mean over seeds with Student's 95 % interval, which a single seed does not have."""

    mean: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All numbers of a question."""

    question: Question
    reference: str
    """An arm or `start`."""
    point: str
    effect: Contrast
    null: Contrast | None
    beyond_null: Contrast | None
    why_no_null: str
    """Empty if there is a null."""
    null_point: str
    """Where the null arm is compared: the question's point, or equal KL."""
    matched: Contrast | None
    """The same contrast at equal accuracy; for a question at equal accuracy, at the last step."""
    matched_point: str
    equal_accuracy: ComparisonPoint | None
    """The point of equal accuracy; None for a change from the start."""
    max_effect: MaxEffect
    by_base: Mapping[str, Contrast]
    companions: Mapping[str, Mapping[str, SeedMean]]
    """By arm, then by measure, at the question's point."""
    num_tests: int = 0
    """Number of tests that Holm's correction covers."""

    @property
    def must_exceed_null(self) -> bool:
        """A change from the start is caused by the reward only as far as it exceeds the null arm's."""
        directed = self.question.expect != "unchanged"
        return self.reference == START and directed and self.beyond_null is not None

    @property
    def p(self) -> float | None:
        """The p of the claim. If the effect must also exceed the null, both tests must pass, so it is
        the larger p (an intersection-union test)."""
        own = self.effect.paired.p
        if not self.must_exceed_null or not self.beyond_null or own is None:
            return own
        beyond = self.beyond_null.paired.p
        return None if beyond is None else max(own, beyond)

    def as_dict(self) -> dict[str, Any]:
        q, equal = self.question, self.equal_accuracy
        return {
            "ask": q.ask,
            "measure": q.measure,
            "arm": q.arm,
            "against": q.against_measure or self.reference,
            "at": self.point,
            "expect": q.expect,
            "margin": q.margin,
            "effect": self.effect.as_dict(),
            "null": self.null and self.null.as_dict(),
            "beyond_null": self.beyond_null and self.beyond_null.as_dict(),
            "why_no_null": self.why_no_null,
            "null_at": self.null_point,
            "matched": self.matched and {"at": self.matched_point, **self.matched.as_dict()},
            "equal_accuracy": equal
            and {
                "at": equal.name,
                "mean_steps": dict(equal.mean_steps),
                "is_before_first_evaluation": equal.is_before_first_evaluation,
                "reason": equal.reason,
            },
            "ceiling": asdict(self.max_effect),
            "by_base": {base: contrast.as_dict() for base, contrast in self.by_base.items()},
            "companions": {
                arm: {name: asdict(mean) for name, mean in means.items()}
                for arm, means in self.companions.items()
            },
            "tests": self.num_tests,
        }


def evaluate_question(question: Question, study: Study, series: StudySeries) -> Comparison:
    """Compute the numbers of a question; `apply_holm` corrects the p-values afterwards."""
    for name in filter(None, (question.measure, question.against_measure)):
        series.check_measure(name)
    reference, null_arm = study.reference_of(question), study.null_arm_of(question)
    point, matched_point = _choose_points(question, reference, series)
    contrasts = _Contrasts(series, question.measure, question.against_measure)
    effect = contrasts.at(point, question.arm, reference)
    why_no_null = _why_no_null(question, reference, null_arm)
    null = beyond = None
    null_point = point
    if not why_no_null and null_arm:
        if question.null_at == "kl":
            null_point = point_at_equal_kl(series, point, question.arm, null_arm)
        if question.against_measure:
            null = contrasts.at(null_point, null_arm, null_arm)
        else:
            null = contrasts.at(null_point, null_arm, reference)
            beyond = contrasts.at(null_point, question.arm, null_arm)
    arms = dict.fromkeys(a for a in (question.arm, reference, null_arm) if a in series.arms)
    return Comparison(
        question=question,
        reference=reference,
        point=point.name,
        effect=effect,
        null=null,
        beyond_null=beyond,
        why_no_null=why_no_null,
        null_point=null_point.name,
        matched=contrasts.at(matched_point, question.arm, reference) if matched_point else None,
        matched_point=matched_point.name if matched_point else "",
        equal_accuracy=point if question.at == ACCURACY else matched_point,
        max_effect=effect.ceiling,
        by_base={
            base: contrasts.at(point, question.arm, reference, base)
            for base in sorted(set(series.bases.values()))
        },
        companions={arm: _companion_means(point, arm, series) for arm in arms if arm},
    )


def apply_holm(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Holm's correction over the questions of a study, by the p of each claim."""
    corrected = holm_correct([replace(c.effect.paired, p=c.p) for c in comparisons])
    num_tests = sum(paired.p is not None for paired in corrected)
    return [
        replace(
            c,
            num_tests=num_tests,
            effect=c.effect.with_p_holm(paired.p_holm),
            beyond_null=c.beyond_null
            and c.beyond_null.with_p_holm(paired.p_holm if c.must_exceed_null else None),
        )
        for c, paired in zip(comparisons, corrected, strict=True)
    ]


def mean_over_seeds(values: Sequence[float | None]) -> SeedMean:
    """The mean over the seeds for which the measure is defined."""
    known = [v for v in values if v is not None]
    if not known:
        return SeedMean(mean=None, low=None, high=None, n=0)
    mean, low, high = mean_interval(known)
    if len(known) == 1:
        return SeedMean(mean=mean, low=None, high=None, n=1)
    return SeedMean(mean=mean, low=low, high=high, n=len(known))


@dataclass(frozen=True, slots=True)
class _Contrasts:
    """Contrasts of one measure between arms."""

    series: StudySeries
    measure: str
    against_measure: str = ""
    """The measure of the reference, if it is another one."""

    def at(self, point: ComparisonPoint, arm: str, reference: str, base: str = "") -> Contrast:
        """Over all seeds, or those of one base; a pair without both values is dropped."""
        after = point.values_of(arm, self.measure)
        before = (
            point_at_step(self.series, 0).values_of(arm, self.measure)
            if reference == START
            else point.values_of(reference, self.against_measure or self.measure)
        )
        seeds = [s for s in self.series.seeds if not base or self.series.bases[s] == base]
        differences = _differences(after, before, seeds)
        both, dropped = list(differences), len(seeds) - len(differences)
        bases = [self.series.bases[seed] for seed in both]
        if len(set(bases)) >= MIN_RANDOM_BASES:
            paired = compare_over_bases(list(differences.values()), bases, dropped)
        else:
            paired = compare_differences(list(differences.values()), dropped)
        if paired.effect is None:
            reason = self._why_undefined(point, arm, reference)
            paired = replace(paired, reason=reason or paired.reason)
        references = self._unit_means(before, both, paired)
        ceiling = max_effect(self.measure, references)
        return Contrast(
            arm=arm,
            reference=self.against_measure or reference,
            before=mean_over_seeds(references).mean,
            after=mean_over_seeds(self._unit_means(after, both, paired)).mean,
            paired=respect_bounds(paired, ceiling),
            ceiling=ceiling,
            interaction=estimate_interaction(list(differences.values()), bases),
            differences=tuple(differences.values()),
        )

    def _unit_means(
        self, values: SeedValues, seeds: Sequence[int], paired: PairedComparison
    ) -> list[float]:
        """The values of the seeds or, if bases are the unit, the mean of each base."""
        by_unit: dict[Any, list[float]] = {}
        for seed in seeds:
            value = values[seed]
            if value is not None:
                unit = seed if paired.num_bases is None else self.series.bases[seed]
                by_unit.setdefault(unit, []).append(value)
        return [math.fsum(group) / len(group) for group in by_unit.values()]

    def _why_undefined(self, point: ComparisonPoint, arm: str, reference: str) -> str:
        label = lookup(self.measure).label
        for name in (arm, reference):
            if name != START and not self.series.get(name, self.measure):
                return f"no run of {name} measured {label}"
        if point.reason:
            return point.reason
        steps = sorted({s for run in self.series.get(arm, self.measure).values() for s in run})
        if point.name.startswith("step ") and int(point.name.removeprefix("step ")) not in steps:
            measured_at = ", ".join(map(str, steps))
            return f"{label} was measured at steps {measured_at}, not at {point.name}"
        if reference == START and 0 not in steps:
            return f"{label} was not measured before RL"
        return ""


def _choose_points(
    question: Question, reference: str, series: StudySeries
) -> tuple[ComparisonPoint, ComparisonPoint | None]:
    """The point of the question and, for two arms, a second point to report with it."""
    last = series.last_step(question.arm, question.measure)
    if reference == START or question.against_measure:
        return point_at_step(series, question.at if isinstance(question.at, int) else last), None
    equal = point_at_equal_accuracy(series, [question.arm, reference])
    if question.at == ACCURACY:
        return equal, point_at_step(series, last)
    return point_at_step(series, last if question.at is None else int(question.at)), equal


def _why_no_null(question: Question, reference: str, null_arm: str | None) -> str:
    if not null_arm:
        return "the study has no null arm"
    if null_arm == question.arm or (null_arm == reference and not question.against_measure):
        return f"{null_arm} is the null arm"
    return ""


def _companion_means(point: ComparisonPoint, arm: str, series: StudySeries) -> dict[str, SeedMean]:
    return {
        name: mean_over_seeds(list(point.values_of(arm, name).values()))
        for name in companion_measures()
        if series.get(arm, name)
    }


def _differences(after: SeedValues, before: SeedValues, seeds: Sequence[int]) -> dict[int, float]:
    """After − before of the seeds that have both."""
    pairs = {seed: (after.get(seed), before.get(seed)) for seed in seeds}
    return {s: a - b for s, (a, b) in pairs.items() if a is not None and b is not None}
