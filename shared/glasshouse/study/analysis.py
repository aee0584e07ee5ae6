"""Turn a study's table into curves, comparisons and verdicts: a pure function of (study, table).

    table ──► questions ──► Holm correction ──► verdicts
         └──► curves: mean over seeds with a 95 % band

It depends on no clock or path: the same table gives the same bytes of study.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from glasshouse.files import write_text
from glasshouse.measurement.registry import companion_measures
from glasshouse.study.answers import Answer, answer_questions, pairs_needed
from glasshouse.study.contrasts import mean_over_seeds
from glasshouse.study.evaluations import Row
from glasshouse.study.freeze import list_amendments
from glasshouse.study.monitors import MonitorSummary, summarize_monitors
from glasshouse.study.run_changes import RunChange, list_run_changes
from glasshouse.study.sentences import compose_headline, explain_answer
from glasshouse.study.spec import Study
from glasshouse.study.table import Run, Table

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
    is_cut: tuple[bool, ...]
    """Whether the interval was cut at a bound of the measure, by step."""
    events: int | None
    """Of a ratio: the events that it is taken over, in the run that has the fewest at the last step."""
    first: Mapping[int, float | None]
    """Value at the first step, by seed."""
    last: Mapping[int, float | None]
    """Value at the last step, by seed."""


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
    amendments: tuple[str, ...]
    """What differs from the frozen study."""
    monitors: tuple[MonitorSummary, ...]
    """Every monitor that read the evaluation rollouts, and what each pair of the study's monitors agrees on."""
    run_changes: tuple[RunChange, ...] = ()
    """Of a study without questions whose evaluation rollouts are known."""

    @property
    def num_tests(self) -> int:
        """Number of tests that Holm's correction covers."""
        return self.answers[0].num_tests if self.answers else 0

    @property
    def arms(self) -> list[str]:
        """The arms that have runs, in the study's order."""
        return list(dict.fromkeys(curve.arm for curve in self.curves))

    def as_dict(self) -> dict[str, Any]:
        frozen = self.study.frozen
        return {
            "title": self.study.title,
            "about": self.study.about,
            "frozen": frozen and {"date": str(frozen.date), "sha256": frozen.sha256},
            "amendments": list(self.amendments),
            "headline": self.headline,
            "questions": [answer.as_dict() for answer in self.answers],
            "curves": [asdict(curve) for curve in self.curves],
            "arms": self.arms,
            "control": self.study.control,
            "null_arm": self.study.null_arm,
            "bases": self.bases,
            "monitors": [asdict(monitor) for monitor in self.monitors],
            "tests": self.num_tests,
            "pairs_needed": pairs_needed(self.num_tests),
        } | ({"run_changes": [asdict(own) for own in self.run_changes]} if self.run_changes else {})


def analyse_study(
    study: Study, table: Table, rollouts: Mapping[Run, Sequence[Row]] | None = None
) -> Analysis:
    """`rollouts`: those that the study kept, for the changes within each run.

    Example: `analyse_study(study, table).headline` lists what is shown, then what is not.
    """
    for name in study.named_measures():
        table.check_measure(name)
    answers = answer_questions(study, table)
    return Analysis(
        study=study,
        headline=compose_headline(answers),
        answers=tuple(replace(answer, explanation=explain_answer(answer)) for answer in answers),
        curves=tuple(
            mean_curve(table, arm, measure)
            for measure in dict.fromkeys([*study.measures, *companion_measures()])
            for arm in study.arms
            if table.runs_of(arm, measure)
        ),
        bases=table.bases,
        amendments=tuple(list_amendments(study, table)),
        monitors=tuple(summarize_monitors(study, table)),
        run_changes=tuple(list_run_changes(study, rollouts or {})),
    )


def mean_curve(table: Table, arm: str, measure: str) -> ArmCurve:
    """Example: two seeds with 0.2 and 0.4 at step 0 have the mean 0.3 there, (-0.97, 1.57)."""
    runs, steps = table.runs_of(arm, measure), table.steps_of(arm, measure)
    means = [mean_over_seeds([run.get(step) for run in runs.values()], measure) for step in steps]
    mean, low, high, n, is_cut = zip(*means, strict=True)
    return ArmCurve(
        arm=arm,
        measure=measure,
        steps=tuple(steps),
        mean=mean,
        low=low,
        high=high,
        n=n,
        is_cut=is_cut,
        events=table.fewest_events(arm, measure, steps[-1]),
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
