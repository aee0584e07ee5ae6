"""A study's table as curves, comparisons and verdicts: a pure function of (study, table).

    table ──► series ──► questions ──► Holm over the study ──► verdicts
                   └───► curves: mean over seeds with a 95 % band

Nothing here knows a clock or a path: the same table gives the same bytes of study.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from glasshouse.store.atomic_files import write_text
from glasshouse.study import sentences
from glasshouse.study.comparison_points import at_step
from glasshouse.study.questions import COMPANIONS, Answer, answer, corrected, mean
from glasshouse.study.series import Measured, measured
from glasshouse.study.spec import Study
from glasshouse.study.table import Table
from glasshouse.study.verdict import Verdict, decide, pairs_needed

FILE = "study.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One arm's curve of one measure: the mean over seeds, Student's 95 % interval, and the seeds
    themselves at both ends. None where no seed has a value, or one alone an interval."""

    arm: str
    measure: str
    steps: tuple[int, ...]
    mean: tuple[float | None, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]
    n: tuple[int, ...]
    """Seeds with a value, by step."""
    first: Mapping[int, float | None]
    """Each seed's value at the first step."""
    last: Mapping[int, float | None]
    """Each seed's value at the last step."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A question with its numbers and its verdict."""

    answer: Answer
    verdict: Verdict
    sentence: str

    def as_dict(self) -> dict[str, Any]:
        said = {"verdict": self.verdict.value, "sentence": self.sentence}
        return {**self.answer.as_dict(), **said}


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """Everything that a study says."""

    study: Study
    headline: str
    answers: tuple[Answered, ...]
    lines: tuple[Line, ...]
    """By measure as the study lists them, companions after them; then by arm."""
    bases: Mapping[int, str]
    """What each seed started from."""
    tests: int
    """How many tests Holm's correction was over."""

    @property
    def arms(self) -> list[str]:
        """Those that were run, in the study's order."""
        return list(dict.fromkeys(line.arm for line in self.lines))

    def line(self, arm: str, measure: str) -> Line | None:
        return next((x for x in self.lines if (x.arm, x.measure) == (arm, measure)), None)

    def as_dict(self) -> dict[str, Any]:
        return {
            "title": self.study.title,
            "about": self.study.about,
            "headline": self.headline,
            "questions": [a.as_dict() for a in self.answers],
            "curves": [line.as_dict() for line in self.lines],
            "arms": self.arms,
            "control": self.study.control,
            "null": self.study.null_arm,
            "bases": dict(self.bases),
            "tests": self.tests,
            "pairs_needed": pairs_needed(self.tests),
        }


def analyse(study: Study, table: Table) -> Analysis:
    """Example: `analyse(study, table).headline` says first what is shown, then what is not."""
    found = measured(table)
    for name in study.measures:
        found.known(name)
    answers = corrected([answer(question, study, found) for question in study.questions])
    return Analysis(
        study=study,
        headline=sentences.headline(answers),
        answers=tuple(
            Answered(answer=a, verdict=decide(a), sentence=sentences.sentence(a)) for a in answers
        ),
        lines=tuple(
            line(found, arm, measure)
            for measure in dict.fromkeys([*study.measures, *COMPANIONS])
            for arm in study.arms
            if found.of(arm, measure)
        ),
        bases=found.bases,
        tests=answers[0].tests if answers else 0,
    )


def line(found: Measured, arm: str, measure: str) -> Line:
    """Example: two seeds with 0.2 and 0.4 at step 0 have the mean 0.3 there, (-0.97, 1.57)."""
    series = found.of(arm, measure)
    steps = sorted({step for run in series.values() for step in run})
    means = [mean(list(at_step(found, step).read(arm, measure).values())) for step in steps]
    return Line(
        arm=arm,
        measure=measure,
        steps=tuple(steps),
        mean=tuple(m.mean for m in means),
        low=tuple(m.low for m in means),
        high=tuple(m.high for m in means),
        n=tuple(m.n for m in means),
        first={seed: run.get(steps[0]) for seed, run in sorted(series.items())},
        last={seed: run.get(steps[-1]) for seed, run in sorted(series.items())},
    )


def write(analysis: Analysis, results: Path) -> Path:
    """results/study.json: sorted keys, no time and no path, the same bytes for the same table."""
    text = json.dumps(
        analysis.as_dict(), sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False
    )
    write_text(results / FILE, text + "\n")
    return results / FILE
