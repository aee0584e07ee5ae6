"""The audit of a run: evaluation against what its record says it was trained on, not its plan.

Before each evaluation (`Guard`), and after the fact for any run directory and any problem file
(`audit_run`, which is `glasshouse data audit`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glasshouse.data import files
from glasshouse.data.contamination import Audit, Leak
from glasshouse.errors import RunError
from glasshouse.store import rollout_reader
from glasshouse.store.rollout_rows import problem_of
from glasshouse.types import Problem

TRAINING = ("train", "replaced")
"""What training asked: a group that dynamic sampling replaced was not learned from, but it was
asked, and it decided what was; an evaluation keeps away from it too."""


class Guard:
    """Stands between an oversized evaluation set and each evaluation of a run.

    Example: `Guard(oversized, wanted=200).check(run / "results" / "rollouts")`
    """

    def __init__(self, oversized: Sequence[Problem], wanted: int) -> None:
        self.audit = Audit(oversized)
        self.wanted = min(wanted, len(self.audit.problems))  # a small space may hold fewer

    def check(self, record: Path) -> tuple[list[Problem], dict[str, Any]]:
        """The problems to evaluate on, and what was found. Reads only the steps that are new."""
        self.audit.read(rollout_reader.read(record, *TRAINING, after=self.audit.last_step))
        clean = self.audit.clean(self.wanted)
        found = {
            "checked": len(self.audit.problems),
            "removed": len(self.audit.leaks),
            "left": len(self.audit.problems) - len(self.audit.leaks),
        }
        if len(clean) < self.wanted:
            raise RunError(
                f"{found['removed']} of the {found['checked']} evaluation problems have been trained on, "
                f"and the {found['left']} left are fewer than the {self.wanted} that evaluate.problems asks "
                "for. Raise evaluate.oversize, lower evaluate.problems, or train on other problems; the "
                f"first that leaked: {self.audit.leaks[min(self.audit.leaks)].problem.question!r}."
            )
        return clean, found


@dataclass(frozen=True, slots=True)
class Report:
    """What an audit after the fact found."""

    checked: int
    trained: int
    """Problems that training asked, repeats included."""
    leaks: list[Leak]


def audit_run(run: Path, file: Path | None = None) -> Report:
    """With a file: which of its problems the run was trained on at any step. Without: which of the
    problems that the run was evaluated on it had been trained on before that evaluation."""
    record = run / "results" / "rollouts"
    if not (record / "manifest.jsonl").is_file():
        raise RunError(f"{run} is not a run directory with a record: it has no {record.name}/.")
    evaluated = {} if file else _evaluated(record)
    problems = files.read(file) if file else [problem for problem, _ in evaluated.values()]
    if not problems:
        raise RunError(f"{run} has evaluated nothing; name the problems to check with --file.")
    audit = Audit(problems)
    trained = audit.read(rollout_reader.read(record, *TRAINING))
    leaks = [leak for _, leak in sorted(audit.leaks.items())]
    if not file:  # trained on only after its last evaluation: no leak
        leaks = [k for k in leaks if k.step <= evaluated[k.problem.task, k.problem.key][1]]
    return Report(len(problems), trained, leaks)


def _evaluated(record: Path) -> dict[tuple[str, str], tuple[Problem, int]]:
    """Every problem that the record says was evaluated, with the last step at which it was."""
    found: dict[tuple[str, str], tuple[Problem, int]] = {}
    for row in rollout_reader.read(record, "validation"):
        found[row["task"], row["key"]] = problem_of(row), row["step"]
    return found
