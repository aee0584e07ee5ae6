"""Train the runs of a study, arms × seeds, and collect their rows in one table.

    OUT/study.yaml                  the study, with overrides
    OUT/runs/<arm>/seed-<s>/        a run directory; finished once results/rows.jsonl exists
    OUT/results/table.jsonl         the rows of all runs

Can be killed at any time and resumed: a run's rows are written atomically, and only then are its
checkpoints and rollouts deleted.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from glasshouse.config.schema import Config
from glasshouse.errors import ConfigError, RunError, did_you_mean
from glasshouse.files import check_output_folder, write_text
from glasshouse.runs.run_config import config_diff, is_run_directory
from glasshouse.runs.run_directory import acquire_lock, is_locked
from glasshouse.study.display import StudyProgress
from glasshouse.study.process_pool import (
    ProcessPool,
    RunFinished,
    RunRequest,
    RunRestarted,
    StepDone,
)
from glasshouse.study.spec import Study, dump_study, load_study
from glasshouse.study.table import StudyRow, Table, collect_rows

STUDY_FILE, ROWS_FILE, TABLE_FILE = "study.yaml", "rows.jsonl", "table.jsonl"
KEPT_RESULTS = {"summary.json", "metrics.jsonl", "events.jsonl", "monitor.json", ROWS_FILE}
"""Result files of a finished run that are not deleted; config.yaml is kept as well."""
LOCK_WAIT_SECONDS = 10.0
"""How long the workers of a killed command may take to save their runs and release the locks."""


@dataclass(frozen=True, slots=True)
class StudyRun:
    """One run of a study."""

    arm: str
    base: str
    seed: int
    path: Path
    config: Config

    @property
    def name(self) -> str:
        return f"{self.arm} seed {self.seed}"

    @property
    def is_finished(self) -> bool:
        return (self.path / "results" / ROWS_FILE).is_file()

    def load_rows(self) -> Sequence[StudyRow]:
        return Table.load(self.path / "results" / ROWS_FILE).rows


def plan_runs(study: Study, out: Path) -> list[StudyRun]:
    """All runs, in the order in which they are trained; raises if `out` cannot be a folder."""
    check_output_folder("--out", out)
    runs = []
    for arm, seed in study.arm_seed_pairs():
        path = out / "runs" / arm / f"seed-{seed}"
        config = study.run_config(arm, seed, path)
        runs.append(StudyRun(arm, study.base_of(seed), seed, path, config))
    return runs


def train_study(
    study: Study,
    out: Path,
    *,
    jobs: int = 2,
    keep_rollouts: bool = False,
    progress: StudyProgress | None = None,
) -> Table:
    """Train the runs that are not finished and write the table.

    Example: `train_study(load_study("mine.yaml"), Path("runs/studies/mine"), jobs=4)`
    """
    progress = progress or StudyProgress()
    runs = plan_runs(study, out)
    known_arms = _load_known_arms(study, out)
    unfinished = [run for run in runs if not run.is_finished]
    with progress, ProcessPool(jobs) as pool:
        _check_new_arms([run for run in unfinished if run.arm not in known_arms], pool)
        out.mkdir(parents=True, exist_ok=True)
        with acquire_lock(out):
            for run in runs:
                _check_same_config(run)
            write_text(out / STUDY_FILE, dump_study(study))
            progress.on_start(runs, len(runs) - len(unfinished))
            for run in runs:
                if run.is_finished:
                    _check_measures(study, run.arm, run.load_rows())
                    _prune(run, keep_rollouts)  # the command may have been killed while pruning
            _train_runs(study, unfinished, pool, keep_rollouts, progress)
            table = Table(row for run in runs for row in run.load_rows())
            table.save(out / "results" / TABLE_FILE)
    return table


def _train_runs(
    study: Study,
    unfinished: Sequence[StudyRun],
    pool: ProcessPool,
    keep_rollouts: bool,
    progress: StudyProgress,
) -> None:
    runs = {_request(run): run for run in unfinished}
    _wait_for_locks(unfinished)
    for event in pool.run(runs):
        run = runs[event.request]
        match event:
            case StepDone(step=step):
                progress.on_step(run, step)
            case RunRestarted(message=message):
                progress.on_warning(message)
            case RunFinished(summary=summary):
                rows = collect_rows(run.path, run.arm, run.base, run.seed, _named_measures(study))
                _check_measures(study, run.arm, rows)
                Table(rows).save(run.path / "results" / ROWS_FILE)
                _prune(run, keep_rollouts)
                progress.on_run_finished(run, summary["seconds"], rows)


def _request(run: StudyRun, action: Literal["train", "check"] = "train") -> RunRequest:
    name = f"The run {run.name} ({run.base})"
    return RunRequest(
        name=name, config=run.config, action=action, monitor=run.config.monitor.at_end
    )


def _check_new_arms(runs: Sequence[StudyRun], pool: ProcessPool) -> None:
    """Build one run per arm and base, so that any error is reported before training starts."""
    firsts = {(run.arm, run.base): run for run in reversed(runs)}
    for _ in pool.run(_request(run, "check") for run in reversed(firsts.values())):
        pass


def _load_known_arms(study: Study, out: Path) -> set[str]:
    """The arms that were started before; raises if the directory holds another study."""
    if not (out / STUDY_FILE).exists():
        if out.exists() and any(p.name[0] != "." for p in out.iterdir()):
            raise RunError(
                f"{out} already contains files that are not a study's. Choose another --out, or "
                "remove it."
            )
        return set()
    previous = load_study(out / STUDY_FILE)
    if differences := previous.run_differences(study):
        raise RunError(
            f"{out} holds another study: {'; '.join(differences)}. Choose another --out, or remove it."
        )
    return set(previous.arms)


def _check_same_config(run: StudyRun) -> None:
    if is_run_directory(run.path) and (differing := config_diff(run.path, run.config)):
        raise RunError(
            f"{run.path} holds a run with another configuration (these differ: "
            f"{', '.join(differing)}). Choose another --out, or remove it."
        )


def _named_measures(study: Study) -> set[str]:
    """Every measure that the study draws or asks about."""
    asked = {name for q in study.questions for name in (q.measure, q.against_measure)}
    return {*study.measures, *asked}


def _check_measures(study: Study, arm: str, rows: Sequence[StudyRow]) -> None:
    """Every measure that the study draws or asks about must exist, at the step in question."""
    steps: dict[str, set[int]] = {}
    for row in rows:
        steps.setdefault(row.measure, set()).add(row.step)
    required: list[tuple[str, str, int | None]] = [
        (f'measures: "{name}"', name, None) for name in study.measures
    ]
    for number, question in enumerate(study.questions):
        if arm in (question.arm, study.reference_of(question)):
            at = question.at if isinstance(question.at, int) else None
            for name in filter(None, (question.measure, question.against_measure)):
                required.append((f'questions.{number}: "{name}"', name, at))
    for where, name, at in required:
        if name not in steps:
            raise ConfigError(f"{where} is not a measure of these runs.{did_you_mean(name, steps)}")
        if at is not None and at not in steps[name]:
            measured = ", ".join(map(str, sorted(steps[name])))
            raise ConfigError(
                f"{where} was measured at steps {measured}, not at step {at}. Change `at` or "
                "evaluate.every."
            )


def _prune(run: StudyRun, keep_rollouts: bool) -> None:
    """Delete what the table does not need."""
    if keep_rollouts:
        return
    for folder, kept in (
        (run.path, {"config.yaml", "results"}),
        (run.path / "results", KEPT_RESULTS),
    ):
        for entry in folder.iterdir():
            if entry.name in kept:
                continue
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()


def _wait_for_locks(runs: Sequence[StudyRun]) -> None:
    """Workers of a killed command may still be saving; opening a run raises if its lock is held longer."""
    deadline = time.monotonic() + LOCK_WAIT_SECONDS
    while any(is_locked(run.path) for run in runs) and time.monotonic() < deadline:
        time.sleep(0.1)
