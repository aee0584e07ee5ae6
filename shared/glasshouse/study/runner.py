"""Arms × seeds, trained by a crew; killed at any moment, the same command goes on.

    OUT/study.yaml                  the study, with the overrides in it
    OUT/runs/<arm>/seed-<s>/        a run directory; results/rows.jsonl says that it is finished
    OUT/results/table.jsonl         all their rows

A run's rows are written whole, and only then are its checkpoints and rollouts removed.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from glasshouse.config import Config
from glasshouse.errors import ConfigError, RunError, nearest
from glasshouse.store.atomic_files import write_text
from glasshouse.store.run_directory import held, holds_run, locked, unlike
from glasshouse.study import spec
from glasshouse.study.process_pool import Crew, Done, Job, Lost, Stepped
from glasshouse.study.spec import Study
from glasshouse.study.table import Row, Table, rows_of

FILE, ROWS, TABLE = "study.yaml", "rows.jsonl", "table.jsonl"
KEPT = {"summary.json", "metrics.jsonl", "events.jsonl", "monitor.json", ROWS}
"""What stays of a finished run's results, beside its config.yaml."""
PATIENCE = 10.0
"""Seconds for the hands of a crew that was killed to save their runs and let go of them."""


@dataclass(frozen=True, slots=True)
class Planned:
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
    def finished(self) -> bool:
        return (self.path / "results" / ROWS).is_file()

    def rows(self) -> Sequence[Row]:
        return Table.read(self.path / "results" / ROWS).rows


class Watcher:
    """Told how a study comes along; says nothing."""

    def planned(self, runs: Sequence[Planned], finished: int) -> None: ...
    def stepped(self, run: Planned, step: int) -> None: ...
    def done(self, run: Planned, seconds: float, rows: Sequence[Row]) -> None: ...
    def warn(self, sentence: str) -> None: ...


def plan(study: Study, out: Path) -> list[Planned]:
    """All runs, in the order in which they are trained."""
    planned = []
    for arm, seed in study.runs():
        path = out / "runs" / arm / f"seed-{seed}"
        planned.append(Planned(arm, study.base(seed), seed, path, study.run(arm, seed, path)))
    return planned


def carry_out(
    study: Study, out: Path, *, jobs: int = 2, keep: bool = False, watcher: Watcher | None = None
) -> Table:
    """Train what is missing and write the table."""
    watcher = watcher or Watcher()
    runs = plan(study, out)
    known = _known_arms(study, out)
    missing = [run for run in runs if not run.finished]
    with Crew(jobs) as crew:
        _check_runs([run for run in missing if run.arm not in known], crew)
        out.mkdir(parents=True, exist_ok=True)
        with locked(out):
            for run in runs:
                _check_same(run)
            write_text(out / FILE, spec.dump(study))
            watcher.planned(runs, len(runs) - len(missing))
            for run in runs:
                if run.finished:
                    _check_measures(study, run.arm, run.rows())
                    _prune(run, keep)  # it may have been killed in the midst of that
            _train(study, missing, crew, keep, watcher)
            table = Table(row for run in runs for row in run.rows())
            table.write(out / "results" / TABLE)
    return table


def _train(
    study: Study, missing: Sequence[Planned], crew: Crew, keep: bool, watcher: Watcher
) -> None:
    given = {_job(run): run for run in missing}
    for run in missing:
        _wait(lambda path=run.path: not held(path))  # type: ignore[misc]
    for heard in crew.work(given):
        run = given[heard.job]
        match heard:
            case Stepped(step=step):
                watcher.stepped(run, step)
            case Lost(sentence=sentence):
                watcher.warn(sentence)
            case Done(summary=summary):
                rows = rows_of(run.path, run.arm, run.base, run.seed)
                _check_measures(study, run.arm, rows)
                Table(rows).write(run.path / "results" / ROWS)
                _prune(run, keep)
                watcher.done(run, summary["seconds"], rows)


def _job(run: Planned, work: Literal["train", "check"] = "train") -> Job:
    name = f"The run {run.name} ({run.base})"
    return Job(name=name, config=run.config, work=work, monitor=run.config.monitor.at_end)


def _check_runs(missing: Sequence[Planned], crew: Crew) -> None:
    """Make one run of each arm and base, so that what is wrong with any is said before all."""
    firsts = {(run.arm, run.base): run for run in reversed(missing)}
    for _ in crew.work(_job(run, "check") for run in reversed(firsts.values())):
        pass


def _known_arms(study: Study, out: Path) -> set[str]:
    """The arms that were begun before; a directory that holds another study is refused."""
    if not (out / FILE).exists():
        if out.exists() and (not out.is_dir() or any(p.name[0] != "." for p in out.iterdir())):
            raise RunError(
                f"{out} already holds files, and they are not a study's. Choose another --out, or "
                "remove it."
            )
        return set()
    there = spec.load(out / FILE)
    if differing := there.differs(study):
        raise RunError(
            f"{out} holds another study: {'; '.join(differing)}. Choose another --out, or remove it."
        )
    return set(there.arms)


def _check_same(run: Planned) -> None:
    """A run that is there counts only if it is the run that is asked for."""
    if holds_run(run.path) and (differing := unlike(run.path, run.config)):
        raise RunError(
            f"{run.path} holds a run with another configuration (these differ: "
            f"{', '.join(differing)}). Choose another --out, or remove it."
        )


def _check_measures(study: Study, arm: str, rows: Sequence[Row]) -> None:
    """Every measure that is drawn or asked about must be there, at the step that is asked about."""
    steps: dict[str, set[int]] = {}
    for row in rows:
        steps.setdefault(row.measure, set()).add(row.step)
    asked: list[tuple[str, str, int | None]] = [
        (f'measures: "{name}"', name, None) for name in study.measures
    ]
    for number, question in enumerate(study.questions):
        if arm in (question.arm, study.against(question)):
            at = question.at if isinstance(question.at, int) else None
            for name in filter(None, (question.measure, question.over)):
                asked.append((f'questions.{number}: "{name}"', name, at))
    for where, name, at in asked:
        if name not in steps:
            raise ConfigError(f"{where} is nothing that a run measures.{nearest(name, steps)}")
        if at is not None and at not in steps[name]:
            there = ", ".join(map(str, sorted(steps[name])))
            raise ConfigError(
                f"{where} is asked about at step {at}, and measured at steps {there}; change `at`, or "
                "evaluate.every."
            )


def _prune(run: Planned, keep: bool) -> None:
    """Remove what the table does not need; what is kept is small."""
    if keep:
        return
    for folder, kept in ((run.path, {"config.yaml", "results"}), (run.path / "results", KEPT)):
        for entry in folder.iterdir():
            if entry.name in kept:
                continue
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()


def _wait(until: Callable[[], bool]) -> None:
    """A little while; who comes too late is told so by the lock."""
    end = time.monotonic() + PATIENCE
    while not until() and time.monotonic() < end:
        time.sleep(0.1)
