"""The numbers of one question and the verdict on it; sentences.py puts them in words.

    effect        the arm − its reference (the same run before RL, or another arm), seed by seed
    null          the same effect in the arm whose reward is noise
    beyond null   the arm − the null arm: the effect of the reward beyond that of RL on noise
    matched       a comparison of two arms at equal accuracy, besides that at the same step
    by base       the effect over the seeds of each base
    by monitor    a question that names no monitor: its answer for each informative one
    reached       the bases whose effect reaches the question's criterion, and the mean over these

A change is shown if its p, Holm-corrected over the study's questions, is at most 0.05 and Student's
95 % interval excludes zero. A change from the start must also exceed that of the null arm, because
RL on noise moves weights too: its p is the larger of the two, and both intervals must exclude zero.
`unchanged` is shown if the whole 95 % interval lies within the margin, which is stricter than the
usual equivalence test (TOST) with its 90 % interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from functools import partial
from typing import Any

from glasshouse.measurement.intervals import ALPHA, holm_correct, wilson_interval
from glasshouse.study.contrasts import (
    Contrast,
    Point,
    contrast_arms,
    mean_over_seeds,
    point_at_equal_accuracy,
    point_at_equal_kl,
    point_at_step,
)
from glasshouse.study.monitors import summarize_monitors
from glasshouse.study.spec import START, Question, Study
from glasshouse.study.table import Table


class Verdict(Enum):
    """In the order in which results are listed."""

    SHOWN = "Shown"
    OPPOSITE = "Not as predicted"
    NOT_SHOWN = "Not shown"
    UNDEFINED = "Not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """In how many bases (or seeds) the effect reaches a criterion, with Wilson's interval of the share."""

    count: int
    units: int
    low: float
    high: float
    mean: float | None
    """The mean effect over these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A question with its numbers and its verdict."""

    question: Question
    reference: str
    """An arm or `start`."""
    point: str
    effect: Contrast
    null: Contrast | None
    beyond_null: Contrast | None
    is_null_arm: bool
    """Whether the null arm itself is compared, so that there is no other null."""
    matched: Contrast | None
    """The same contrast at equal accuracy."""
    equal_accuracy: Point | None
    """The point of equal accuracy; None for a change from the start."""
    by_base: Mapping[str, Contrast]
    by_monitor: Mapping[str, Answer]
    """Of a question that names no monitor: this answer is that of the monitor with the weakest evidence."""
    not_informative: tuple[str, ...] = ()
    """Monitors of the study that the question was not answered for."""
    null_point: str
    """Where the null arm was taken."""
    num_tests: int = 0
    """Number of tests that Holm's correction covers."""
    explanation: str = ""

    @property
    def claims(self) -> list[Contrast]:
        """What must be shown: the effect and, if it is a change from the start, that it exceeds the null
        arm's. Both tests must pass, so the p of the claim is the larger one (an intersection-union test)."""
        if self.beyond_null and self.reference == START and self.question.margin is None:
            return [self.effect, self.beyond_null]
        return [self.effect]

    @property
    def p(self) -> float | None:
        known = [claim.p for claim in self.claims if claim.p is not None]
        return max(known) if len(known) == len(self.claims) else None

    @property
    def reached(self) -> Reached | None:
        """How often the effect reaches the question's criterion; None without one."""
        criterion, units = self.question.criterion, self.effect.units
        if criterion is None or not units:
            return None
        sign = 1 if self.question.expect == "rises" else -1
        among = [unit for unit in units if sign * unit >= criterion]
        low, high = wilson_interval(len(among), len(units))
        mean = mean_over_seeds(among).mean
        return Reached(count=len(among), units=len(units), low=low, high=high, mean=mean)

    @property
    def verdict(self) -> Verdict:
        if self.by_monitor:
            verdicts = {answer.verdict for answer in self.by_monitor.values()}
            return verdicts.pop() if len(verdicts) == 1 else Verdict.NOT_SHOWN
        effect, margin = self.effect, self.question.margin
        if effect.effect is None:
            return Verdict.UNDEFINED
        if effect.low is None or effect.high is None:  # equal differences, and no bounds
            return Verdict.NOT_SHOWN
        if margin is not None:
            if -margin <= effect.low and effect.high <= margin:
                return Verdict.NOT_SHOWN if self.has_too_few_pairs else Verdict.SHOWN
            outside = effect.low > margin or effect.high < -margin
            return Verdict.OPPOSITE if effect.shown and outside else Verdict.NOT_SHOWN
        directions = {"rises" if (claim.effect or 0.0) > 0 else "falls" for claim in self.claims}
        if len(directions) > 1 or not all(claim.shown for claim in self.claims):
            return Verdict.NOT_SHOWN
        return Verdict.SHOWN if self.question.expect in directions else Verdict.OPPOSITE

    @property
    def has_too_few_pairs(self) -> bool:
        """Whether even the clearest effect could not be shown."""
        smallest = self.effect.smallest_p
        return smallest is not None and smallest * self.tests_in_family > ALPHA

    @property
    def tests_in_family(self) -> int:
        """The number of tests that the question's p is corrected for. `unchanged` is not part of Holm's
        family but needs as many pairs as a single test: two or three seeds may agree by chance."""
        return 1 if self.question.margin is not None else max(1, self.num_tests)

    @property
    def ceiling(self) -> float | None:
        """The largest possible effect in the expected direction."""
        rise, fall = self.effect.ceiling.rise, self.effect.ceiling.fall
        return {"rises": rise, "falls": fall}.get(self.question.expect)

    def as_dict(self) -> dict[str, Any]:
        question, equal = self.question, self.equal_accuracy
        return {
            **question.model_dump(
                include={"ask", "measure", "arm", "expect", "margin", "criterion"}
            ),
            "against": question.against_measure or self.reference,
            "at": self.point,
            "effect": self.effect.as_dict(),
            "null_at": self.null_point,
            "null": self.null and self.null.as_dict(),
            "beyond_null": self.beyond_null and self.beyond_null.as_dict(),
            "matched": self.matched and equal and {"at": equal.name, **self.matched.as_dict()},
            "equal_accuracy": equal
            and {
                "at": equal.name,
                "mean_steps": equal.mean_steps,
                "is_before_first_evaluation": equal.is_before_first_evaluation,
                "reason": equal.reason,
            },
            "ceiling": asdict(self.effect.ceiling),
            "by_base": {base: contrast.as_dict() for base, contrast in self.by_base.items()},
            "by_monitor": {
                monitor: {"effect": own.effect.as_dict(), "verdict": own.verdict.value}
                for monitor, own in self.by_monitor.items()
            },
            "not_informative": list(self.not_informative),
            "reached": self.reached and asdict(self.reached),
            "tests": self.num_tests,
            "verdict": self.verdict.value,
            "explanation": self.explanation,
        }


def answer_questions(study: Study, table: Table) -> list[Answer]:
    """Answer all questions, with Holm's correction over them by the p of each claim."""
    informative = {m.monitor: m.is_informative for m in summarize_monitors(study, table)}
    answers = [_answer_for_all(question, study, table, informative) for question in study.questions]
    corrected = holm_correct([replace(answer.effect, p=answer.p) for answer in answers])
    num_tests = sum(paired.p is not None for paired in corrected)
    pairs = zip(answers, corrected, strict=True)
    return [_correct(answer, paired.p_holm, num_tests) for answer, paired in pairs]


def _correct(answer: Answer, p_holm: float | None, num_tests: int) -> Answer:
    """The answer with its corrected p. Those for single monitors get the same one, that of the weakest."""
    beyond = answer.beyond_null
    if beyond:
        beyond = replace(beyond, p_holm=p_holm if len(answer.claims) > 1 else None)
    return replace(
        answer,
        num_tests=num_tests,
        effect=replace(answer.effect, p_holm=p_holm),
        beyond_null=beyond,
        by_monitor={m: _correct(own, p_holm, num_tests) for m, own in answer.by_monitor.items()},
    )


def pairs_needed(num_tests: int) -> int:
    """The fewest pairs whose smallest possible p survives Holm's correction over the tests.

    Example: `pairs_needed(1)` is 6: 2/2⁶ = 0.031. `pairs_needed(8)` is 9: 8 · 2/2⁹ = 0.031.
    """
    return 1 + math.ceil(math.log2(max(1, num_tests) / ALPHA))


def _answer_for_all(
    question: Question, study: Study, table: Table, informative: Mapping[str, bool]
) -> Answer:
    """The answer; to a question that names no monitor, for the informative monitors together."""
    measures = study.measures_of(question)
    if measures == [question.measure]:
        return _answer(question, study, table)
    monitors = dict(zip(study.monitors, measures, strict=True))
    answers = {
        monitor: _answer(question.model_copy(update={"measure": measure}), study, table)
        for monitor, measure in monitors.items()
        if informative.get(monitor)
    }
    others = tuple(monitor for monitor in monitors if monitor not in answers)
    if not answers:
        empty = _answer(question, study, table)
        reason = "no monitor of the study is informative at the base"
        undefined = replace(empty, effect=replace(empty.effect, reason=reason))
        return replace(undefined, not_informative=others)

    def weakness(answer: Answer) -> tuple[float, float]:
        """The larger, the weaker the evidence: p, then the smaller effect; for `unchanged`, the end of the interval
        that is farthest from zero."""
        effect, low, high = (
            own or 0.0 for own in (answer.effect.effect, answer.effect.low, answer.effect.high)
        )
        if question.margin is not None:
            return max(abs(low), abs(high)), 0.0
        return math.inf if answer.p is None else answer.p, -abs(effect)

    weakest = max(answers.values(), key=weakness)
    return replace(weakest, question=question, by_monitor=answers, not_informative=others)


def _answer(question: Question, study: Study, table: Table) -> Answer:
    arm, reference = question.arm, study.reference_of(question)
    null_arm = study.null_arm_of(question)
    step = question.at
    if step is None:
        step = max(table.steps_of(arm, question.measure), default=0)
    point = point_at_step(table, step)
    contrast = partial(contrast_arms, question, table)
    equal = null = beyond = None
    if reference != START and not question.against_measure:
        equal = point_at_equal_accuracy(table, [arm, reference])
    is_null_arm = null_arm == arm or (null_arm == reference and not question.against_measure)
    null_point = point
    if null_arm and not is_null_arm:
        if study.null_at == "kl":
            null_point = point_at_equal_kl(table, point, arm, null_arm)
        null = contrast(null_point, null_arm, null_arm if question.against_measure else reference)
        if not question.against_measure:
            beyond = contrast(null_point, arm, null_arm)
    return Answer(
        question=question,
        reference=reference,
        point=point.name,
        effect=contrast(point, arm, reference),
        null=null,
        null_point=null_point.name,
        beyond_null=beyond,
        is_null_arm=is_null_arm,
        matched=contrast(equal, arm, reference) if equal else None,
        equal_accuracy=equal,
        by_base={
            base: contrast(point, arm, reference, base)
            for base in sorted(set(table.bases.values()))
        },
        by_monitor={},
    )
