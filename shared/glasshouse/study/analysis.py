"""Turn a study's table into curves, comparisons and verdicts: a pure function of (study, table).

    table ──► series ──► questions ──► Holm correction ──► verdicts
                   └───► curves: mean over seeds with a 95 % band

It depends on no clock or path: the same table gives the same bytes of study.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from glasshouse.files import write_text
from glasshouse.measurement.registry import companion_measures
from glasshouse.study.freeze import list_amendments
from glasshouse.study.questions import (
    Comparison,
    apply_holm,
    evaluate_question,
    mean_over_seeds,
)
from glasshouse.study.sentences import compose_headline, explain_comparison
from glasshouse.study.series import StudySeries, group_series, point_at_step
from glasshouse.study.spec import Study
from glasshouse.study.table import Table
from glasshouse.study.verdict import Verdict, decide_verdict, pairs_needed

ANALYSIS_FILE = "study.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmCurve:
    """One measure of one arm over steps: the mean over seeds with Student's 95 % interval, and the
    seeds at both ends. A mean needs one seed with a value, an interval two; otherwise None."""

    arm: str
    measure: str
    steps: tuple[int, ...]
    mean: tuple[float | None, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]
    n: tuple[int, ...]
    """Seeds with a value, by step."""
    first: Mapping[int, float | None]
    """Value at the first step, by seed."""
    last: Mapping[int, float | None]
    """Value at the last step, by seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A question with its numbers and its verdict."""

    comparison: Comparison
    verdict: Verdict
    explanation: str

    def as_dict(self) -> dict[str, Any]:
        verdict = {"verdict": self.verdict.value, "explanation": self.explanation}
        return {**self.comparison.as_dict(), **verdict}


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """All results of a study."""

    study: Study
    headline: str
    answers: tuple[Answer, ...]
    curves: tuple[ArmCurve, ...]
    """Ordered by measure (the study's, then the companions), then by arm."""
    bases: Mapping[int, str]
    """The base of each seed."""
    num_tests: int
    """Number of tests that Holm's correction covers."""

    @property
    def arms(self) -> list[str]:
        """The arms that have runs, in the study's order."""
        return list(dict.fromkeys(curve.arm for curve in self.curves))

    @property
    def measures(self) -> list[str]:
        return list(dict.fromkeys(curve.measure for curve in self.curves))

    @property
    def over_bases(self) -> bool:
        """Whether bases are the unit of the comparisons, as a random effect."""
        return any(answer.comparison.effect.paired.num_bases for answer in self.answers)

    def curve(self, arm: str, measure: str) -> ArmCurve | None:
        return next((c for c in self.curves if (c.arm, c.measure) == (arm, measure)), None)

    def as_dict(self) -> dict[str, Any]:
        frozen = self.study.frozen
        return {
            "title": self.study.title,
            "about": self.study.about,
            "frozen": frozen and {"date": str(frozen.date), "sha256": frozen.sha256},
            "amendments": list_amendments(self.study),
            "headline": self.headline,
            "questions": [answer.as_dict() for answer in self.answers],
            "curves": [asdict(curve) for curve in self.curves],
            "arms": self.arms,
            "control": self.study.control,
            "null_arm": self.study.null_arm,
            "bases": dict(self.bases),
            "tests": self.num_tests,
            "pairs_needed": pairs_needed(self.num_tests),
        }


def analyse_study(study: Study, table: Table) -> Analysis:
    """Example: `analyse_study(study, table).headline` lists what is shown, then what is not."""
    series = group_series(table)
    for name in study.measures:
        series.check_measure(name)
    comparisons = apply_holm([evaluate_question(q, study, series) for q in study.questions])
    return Analysis(
        study=study,
        headline=compose_headline(comparisons),
        answers=tuple(
            Answer(comparison=c, verdict=decide_verdict(c), explanation=explain_comparison(c))
            for c in comparisons
        ),
        curves=tuple(
            mean_curve(series, arm, measure)
            for measure in dict.fromkeys([*study.measures, *companion_measures()])
            for arm in study.arms
            if series.get(arm, measure)
        ),
        bases=series.bases,
        num_tests=comparisons[0].num_tests if comparisons else 0,
    )


def describe_test(analysis: Analysis) -> str:
    """The test behind the p-values: over seeds, or over bases if there are enough of them."""
    return "t test over base means" if analysis.over_bases else "exact sign-flip test over seeds"


def mean_curve(series: StudySeries, arm: str, measure: str) -> ArmCurve:
    """Example: two seeds with 0.2 and 0.4 at step 0 have the mean 0.3 there, (-0.97, 1.57)."""
    runs = series.get(arm, measure)
    steps = sorted({step for run in runs.values() for step in run})
    means = [
        mean_over_seeds(list(point_at_step(series, step).values_of(arm, measure).values()))
        for step in steps
    ]
    return ArmCurve(
        arm=arm,
        measure=measure,
        steps=tuple(steps),
        mean=tuple(m.mean for m in means),
        low=tuple(m.low for m in means),
        high=tuple(m.high for m in means),
        n=tuple(m.n for m in means),
        first={seed: run.get(steps[0]) for seed, run in sorted(runs.items())},
        last={seed: run.get(steps[-1]) for seed, run in sorted(runs.items())},
    )


def write_analysis(analysis: Analysis, results: Path) -> Path:
    """Write results/study.json with sorted keys."""
    text = json.dumps(
        analysis.as_dict(), sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False
    )
    write_text(results / ANALYSIS_FILE, text + "\n")
    return results / ANALYSIS_FILE
