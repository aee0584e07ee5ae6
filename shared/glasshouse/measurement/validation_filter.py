"""Compares evaluation problems with those that a run was trained on, according to its rollout log.

`ValidationFilter` runs before each evaluation; `audit_run` checks a run directory afterwards
(`glasshouse check audit`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glasshouse.errors import RunError
from glasshouse.runs.rollout_log import RolloutReader, read_rows
from glasshouse.runs.rows import RolloutFilter, problem_from_row
from glasshouse.tasks.contamination import ContaminationCheck, Leak
from glasshouse.tasks.problem_files import read_problem_file
from glasshouse.types import Problem

TRAINING_SPLITS = ("train", "discarded")
"""Discarded groups count as training: they were not learned from, but their rewards decided which
groups were."""


class ValidationFilter:
    """Selects the problems of an evaluation from a larger set, leaving out those trained on.

    Example: `ValidationFilter(oversized, 200).select_clean(run)`
    """

    def __init__(self, oversized: Sequence[Problem], count: int) -> None:
        self.check = ContaminationCheck(oversized)
        self.unreadable: set[str] = set()
        """The damage of the rollout log so far."""
        self.count = min(count, len(self.check.problems))  # a small task may have fewer problems

    def select_clean(self, run: Path) -> tuple[list[Problem], dict[str, Any]]:
        """Return the problems to evaluate on and the counts of checked, removed and remaining ones,
        and `unreadable`, if frames of the log are damaged: their problems cannot be compared. Reads
        only steps that were logged since the last call."""
        reader = RolloutReader(run)
        first = self.check.last_step + 1
        self.check.scan(reader.iter_rows(RolloutFilter(splits=TRAINING_SPLITS, first_step=first)))
        self.unreadable |= set(reader.damage)
        clean = self.check.clean_problems(self.count)
        checked, removed = len(self.check.problems), len(self.check.leaks)
        if len(clean) < self.count:
            leak = self.check.leaks[min(self.check.leaks)]
            raise RunError(
                f"evaluate.problems asks for {self.count} problems, but {removed} of the {checked} "
                f"held-out problems have been trained on, so only {checked - removed} remain. Raise "
                "evaluate.oversize, lower evaluate.problems, or train on other problems. The first "
                f"one trained on: {leak.problem.question!r}."
            )
        audit = {"checked": checked, "removed": removed, "left": checked - removed}
        return clean, audit | ({"unreadable": len(self.unreadable)} if self.unreadable else {})


def describe_unreadable(count: int) -> str:
    """The warning about frames of the rollout log that could not be compared."""
    return (
        f"{count} damaged part{'s' * (count > 1)} of the rollout log could not be read, so the held-out "
        "problems were not compared with the training problems there."
    )


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of `audit_run`."""

    checked: int
    trained: int
    """Number of training problems, repeats included."""
    leaks: list[Leak]


def audit_run(run: Path, file: Path | None = None) -> AuditReport:
    """Find problems that a run was trained on: those of a file at any step, or without a file, those
    that the run was evaluated on, at steps before their last evaluation."""
    evaluated = {} if file else _read_evaluated_problems(run)
    problems = read_problem_file(file) if file else [problem for problem, _ in evaluated.values()]
    if not problems:
        raise RunError(f"{run} has no evaluations. Name the problems to check with --file.")
    check = ContaminationCheck(problems)
    trained = check.scan(read_rows(run, *TRAINING_SPLITS))
    leaks = [leak for _, leak in sorted(check.leaks.items())]
    if not file:  # a problem trained on only after its last evaluation is no leak
        leaks = [k for k in leaks if k.step <= evaluated[k.problem.task, k.problem.key][1]]
    return AuditReport(len(problems), trained, leaks)


def _read_evaluated_problems(run: Path) -> dict[tuple[str, str], tuple[Problem, int]]:
    """Read every evaluated problem from the log, with the last step at which it was evaluated."""
    problems: dict[tuple[str, str], tuple[Problem, int]] = {}
    for row in read_rows(run, "validation"):
        problems[row["task"], row["key"]] = problem_from_row(row), row["step"]
    return problems
