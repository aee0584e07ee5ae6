"""What changed within each run of a study that asks no questions, where intervals over few seeds would say little.

evaluation rollouts ──► first and last evaluation of a run, on the same problems ──► change, interval over problems
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from glasshouse.measurement.measure import measure, measure_change
from glasshouse.study.evaluations import Row, score_evaluations
from glasshouse.study.spec import Study
from glasshouse.study.table import Run
from glasshouse.values import Measure


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChange:
    """A measure of one run at its first and last evaluation."""

    measure: str
    arm: str
    seed: int
    first: Measure
    last: Measure
    change: Measure | None
    """Its interval resamples problems, with their rollouts of both times; None if one of the two is undefined."""


def list_run_changes(study: Study, by_run: Mapping[Run, Sequence[Row]]) -> list[RunChange]:
    """By measure of the study, arm and seed; only of a study without questions. Nothing here runs a model, so that a
    published study can be analysed anywhere: measures of monitors that run one are left out.

    Example: `list_run_changes(study, load_rollouts(Path("results/evaluations.jsonl.zst")))[0].change`
    """
    if study.questions:
        return []
    found = [own for run, rows in by_run.items() for own in _changes_of_run(study, run, rows)]
    place = {name: n for n, name in enumerate([*study.measures, *study.arms])}
    return sorted(found, key=lambda own: (place[own.measure], place[own.arm], own.seed))


def _changes_of_run(study: Study, run: Run, rows: Sequence[Row]) -> Iterator[RunChange]:
    arm, seed = run
    if arm not in study.arms or seed not in study.seeds:
        return
    steps = list(score_evaluations(rows, study.run_config(arm, seed), embedders=False))
    if len(steps) < 2:
        return
    first, last = ((step.columns, step.scores) for step in (steps[0], steps[-1]))
    key = ("run_changes", seed)  # arms that start from equal rollouts get equal intervals
    changes = measure_change(first, last, "study", key=key)
    before, after = (
        measure(columns, "study", scores, key=key).measures for columns, scores in (first, last)
    )
    for name in study.measures:
        if name in before and name in after:
            yield RunChange(
                measure=name,
                arm=arm,
                seed=seed,
                first=before[name],
                last=after[name],
                change=changes.get(name),
            )
