"""One question of a study: its effect over paired seeds, and what must stand beside it.

    effect        the arm − its reference (the same run before RL, or another arm), seed by seed
    null          the same effect in the arm whose reward is noise
    beyond null   the arm − the null arm: what the reward does that RL on noise does not do
    matched       two arms where they are equally accurate, beside the same step
    room          the largest effect possible
    by base       the effect among the seeds of each base

Nothing is judged here; see verdict.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from glasshouse.estimation import Paired, family, paired
from glasshouse.statistics import mean_interval
from glasshouse.study.bounds import Room, room
from glasshouse.study.comparison_points import Place, Values, at_equal_accuracy, at_step, last_step
from glasshouse.study.series import Measured
from glasshouse.study.spec import START, Question, Study

ACCURACY = "accuracy"
COMPANIONS = ("accuracy", "kl", "cot_characters", "sampled_length", "rule_none")
"""Accuracy, KL from the start, CoT length and parse failures: what stands beside every point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """An arm − a reference over paired seeds, with the means of both over the same pairs."""

    arm: str
    reference: str
    before: float | None
    """The reference's mean."""
    after: float | None
    """The arm's mean."""
    paired: Paired

    def corrected(self, p_holm: float | None) -> Contrast:
        return replace(self, paired=replace(self.paired, p_holm=p_holm))

    def as_dict(self) -> dict[str, Any]:
        ends = {"before": self.before, "after": self.after}
        return {"arm": self.arm, "reference": self.reference, **ends, **asdict(self.paired)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A mean over seeds with Student's 95 % interval; one seed alone has none."""

    mean: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the table says to a question."""

    question: Question
    against: str
    place: str
    effect: Contrast
    null: Contrast | None
    beyond_null: Contrast | None
    why_no_null: str
    """Empty where there is a null."""
    matched: Contrast | None
    """Two arms at a step: the same at equal accuracy. At equal accuracy: the same at the last step."""
    matched_place: str
    equal: Place | None
    """The place of equal accuracy, whichever of the two it is; None against the start."""
    room: Room
    by_base: Mapping[str, Contrast]
    companions: Mapping[str, Mapping[str, Mean]]
    """By arm, then by measure, at the question's place."""
    tests: int = 0
    """How many tests Holm's correction was over."""

    @property
    def held_to_null(self) -> bool:
        """A change against the start is the reward's doing only beyond what RL on noise does."""
        directed = self.question.expect != "unchanged"
        return self.against == START and directed and self.beyond_null is not None

    @property
    def p(self) -> float | None:
        """What its verdict rests on. Where the change must also go beyond the null, both tests must
        pass, so the larger p is that of the claim (an intersection-union test)."""
        own = self.effect.paired.p
        if not self.held_to_null or not self.beyond_null or own is None:
            return own
        beyond = self.beyond_null.paired.p
        return None if beyond is None else max(own, beyond)

    def as_dict(self) -> dict[str, Any]:
        q = self.question
        return {
            "ask": q.ask,
            "measure": q.measure,
            "arm": q.arm,
            "against": q.over or self.against,
            "at": self.place,
            "expect": q.expect,
            "margin": q.margin,
            "effect": self.effect.as_dict(),
            "null": self.null and self.null.as_dict(),
            "beyond_null": self.beyond_null and self.beyond_null.as_dict(),
            "why_no_null": self.why_no_null,
            "matched": self.matched and {"at": self.matched_place, **self.matched.as_dict()},
            "equal_accuracy": self.equal and _told(self.equal),
            "ceiling": asdict(self.room),
            "by_base": {base: c.as_dict() for base, c in self.by_base.items()},
            "companions": {
                arm: {name: asdict(mean) for name, mean in means.items()}
                for arm, means in self.companions.items()
            },
            "tests": self.tests,
        }


def answer(question: Question, study: Study, found: Measured) -> Answer:
    """The question's numbers, p-values not yet corrected; see `corrected`."""
    for name in filter(None, (question.measure, question.over)):
        found.known(name)
    against, noise = study.against(question), study.noise(question)
    here, there = _places(question, against, found)
    asked = _Asked(question.measure, found, question.over)
    effect = asked.contrast(here, question.arm, against)
    why = _no_null(question.arm, against, noise, bool(question.over))
    null = beyond = None
    if not why and noise:
        null = asked.contrast(here, noise, noise if question.over else against)
        if not question.over:
            beyond = asked.contrast(here, question.arm, noise)
    involved = dict.fromkeys(a for a in (question.arm, against, noise) if a in found.arms)
    return Answer(
        question=question,
        against=against,
        place=here.name,
        effect=effect,
        null=null,
        beyond_null=beyond,
        why_no_null=why,
        matched=asked.contrast(there, question.arm, against) if there else None,
        matched_place=there.name if there else "",
        equal=here if question.at == ACCURACY else there,
        room=room(question.measure, effect.before),
        by_base={
            base: asked.contrast(here, question.arm, against, base)
            for base in sorted(set(found.bases.values()))
        },
        companions={arm: companions(here, arm, found) for arm in involved if arm},
    )


def corrected(answers: Sequence[Answer]) -> list[Answer]:
    """Holm's correction over the study's questions, each by the p that its verdict rests on."""
    adjusted = family([replace(a.effect.paired, p=a.p) for a in answers])
    tests = sum(one.p is not None for one in adjusted)
    return [
        replace(
            a,
            tests=tests,
            effect=a.effect.corrected(one.p_holm),
            beyond_null=a.beyond_null
            and a.beyond_null.corrected(one.p_holm if a.held_to_null else None),
        )
        for a, one in zip(answers, adjusted, strict=True)
    ]


def _told(place: Place) -> dict[str, Any]:
    when = dict(place.when)
    return {"at": place.name, "passed_at_step": when, "early": place.early, "reason": place.reason}


def companions(place: Place, arm: str, found: Measured) -> dict[str, Mean]:
    return {
        name: mean(list(place.read(arm, name).values()))
        for name in COMPANIONS
        if found.of(arm, name)
    }


def mean(values: Sequence[float | None]) -> Mean:
    """Over the seeds in which it is defined."""
    known = [v for v in values if v is not None]
    if not known:
        return Mean(mean=None, low=None, high=None, n=0)
    middle, low, high = mean_interval(known)
    if len(known) == 1:
        return Mean(mean=middle, low=None, high=None, n=1)
    return Mean(mean=middle, low=low, high=high, n=len(known))


@dataclass(frozen=True, slots=True)
class _Asked:
    """A measure, to be compared between arms."""

    measure: str
    found: Measured
    over: str = ""
    """The reference's measure, where it is another one."""

    def contrast(self, place: Place, arm: str, reference: str, base: str = "") -> Contrast:
        """Over every seed of the study, or of one base; a pair that lacks a value is dropped."""
        after = place.read(arm, self.measure)
        before = (
            at_step(self.found, 0).read(arm, self.measure)
            if reference == START
            else place.read(reference, self.over or self.measure)
        )
        bases = self.found.bases
        seeds = [s for s in self.found.seeds if not base or bases[s] == base]
        both = [s for s in seeds if after.get(s) is not None and before.get(s) is not None]
        done = paired([after.get(s) for s in seeds], [before.get(s) for s in seeds])
        if done.effect is None:
            done = replace(done, reason=self._why(place, arm, reference) or done.reason)
        return Contrast(
            arm=arm,
            reference=self.over or reference,
            before=_mean(before, both),
            after=_mean(after, both),
            paired=done,
        )

    def _why(self, place: Place, arm: str, reference: str) -> str:
        for one in (arm, reference):
            if one != START and not self.found.of(one, self.measure):
                return f"{one} has no run that measured {self.measure}"
        if place.reason:
            return place.reason
        steps = sorted({s for run in self.found.of(arm, self.measure).values() for s in run})
        if place.name.startswith("step ") and int(place.name.removeprefix("step ")) not in steps:
            listed = ", ".join(map(str, steps))
            return f"{self.measure} was not measured at {place.name}, but at {listed}"
        if reference == START and 0 not in steps:
            return f"{self.measure} was not measured before RL"
        return ""


def _places(question: Question, against: str, found: Measured) -> tuple[Place, Place | None]:
    """Where the question is asked, and where it is asked again beside that."""
    last = last_step(found.of(question.arm, question.measure))
    if against == START or question.over:
        return at_step(found, question.at if isinstance(question.at, int) else last), None
    equal = at_equal_accuracy(found, [question.arm, against])
    if question.at == ACCURACY:
        return equal, at_step(found, last)
    return at_step(found, last if question.at is None else int(question.at)), equal


def _no_null(arm: str, against: str, noise: str | None, within: bool) -> str:
    if not noise:
        return "the study has no null arm"
    if noise == arm or (noise == against and not within):
        return f"{noise} is the null arm itself"
    return ""


def _mean(values: Values, seeds: Sequence[int]) -> float | None:
    return mean([values[s] for s in seeds]).mean if seeds else None
