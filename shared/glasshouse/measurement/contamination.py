"""Which held-out problems were asked in training, according to the rollout log.

A problem is contaminated if a training problem has

- `key`: the same task and canonical key (`345 * 12` is `12 * 345`);
- `question`: the same words, ignoring case, spacing and punctuation, under any task name;
- `reordered`: for problems without a canonical key (foreign files), the same words and numbers in
  another order, and the same answer.

`ValidationFilter` runs before each evaluation; `audit_run` checks a run directory with it (`glasshouse check audit`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glasshouse import randomness
from glasshouse.errors import ConfigError, RunError
from glasshouse.runs.rollout_log import RolloutReader, read_rows
from glasshouse.runs.rows import RolloutFilter, problem_from_row
from glasshouse.runs.run_directory import load_events
from glasshouse.tasks.problem_files import normalize_question, read_problem_file
from glasshouse.types import Problem

TRAINING_SPLITS = ("train", "discarded")
"""Discarded groups count as training: they were not learned from, but their rewards decided which
groups were."""


@dataclass(frozen=True, slots=True)
class Leak:
    """A held-out problem that the run was trained on."""

    problem: Problem
    step: int
    """The first training step that asked it."""
    match: str
    """`key`, `question` or `reordered`."""
    training_question: str
    """The question in training."""


class ValidationFilter:
    """Matches held-out problems, usually more than the `count` that are needed, against training rollouts: `scan` them,
    then `clean_problems`."""

    def __init__(self, problems: Sequence[Problem], count: int = 0) -> None:
        self.problems = list(problems)
        self.count = min(count, len(self.problems))  # a small task may have fewer problems
        self.unreadable: set[str] = set()
        """The damage of the rollout log so far."""
        self.leaks: dict[int, Leak] = {}  # by index in self.problems
        self.last_step = -1
        self.index: dict[Hashable, list[int]] = {}
        for i, problem in enumerate(self.problems):
            for fingerprint, _ in fingerprints(problem):
                self.index.setdefault(fingerprint, []).append(i)

    def scan(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """Scan rows of the rollout log; return the number of training problems."""
        count, previous = 0, None
        for row in rows:
            self.last_step = max(self.last_step, row["step"])
            current = (row["step"], row["task"], row["key"], row["question"])
            if current == previous:  # another sample of the same group
                continue
            count, previous = count + 1, current
            names = ("task", "key", "question", "gold_answer")
            self.compare(Problem(**{name: row[name] for name in names}), row["step"])
        return count

    def compare(self, trained: Problem, step: int) -> None:
        """Add the problems that match one that was trained on, or will be."""
        for fingerprint, match in fingerprints(trained, reordered=True):
            for i in self.index.get(fingerprint, ()):
                problem = self.problems[i]
                # a key that hashes the question (reasoning-gym) alone identifies problems of its task:
                # there, questions that differ in case or punctuation may be different problems
                has_hashed_key = problem.key == f"{randomness.key(problem.question):016x}"
                if match == "key" or problem.task != trained.task or not has_hashed_key:
                    self.leaks.setdefault(i, Leak(problem, step, match, trained.question))

    def clean_problems(self, count: int) -> list[Problem]:
        """The first `count` problems that were not trained on, or all if there are fewer."""
        return [p for i, p in enumerate(self.problems) if i not in self.leaks][:count]

    def select_clean(self, run: Path) -> tuple[list[Problem], dict[str, Any]]:
        """Return the problems to evaluate on and the counts of checked, removed and remaining ones,
        and `unreadable`, if frames of the log are damaged: their problems cannot be compared. Reads
        only steps that were logged since the last call."""
        reader = RolloutReader(run)
        chosen = RolloutFilter(splits=TRAINING_SPLITS, first_step=self.last_step + 1)
        self.scan(reader.iter_rows(chosen))
        self.unreadable |= set(reader.damage)
        checked, removed = len(self.problems), len(self.leaks)
        if checked - removed < self.count:
            leak = self.leaks[min(self.leaks)]
            raise RunError(
                f"evaluate.problems asks for {self.count} problems, but {removed} of the {checked} "
                f"held-out problems have been trained on, so only {checked - removed} remain. Raise "
                "evaluate.oversize, lower evaluate.problems, or train on other problems. The first "
                f"one trained on: {leak.problem.question!r}."
            )
        audit: dict[str, Any] = {"checked": checked, "removed": removed, "left": checked - removed}
        if removed:
            audit["matches"] = Counter(leak.match for leak in self.leaks.values())
        if self.unreadable:
            audit["unreadable"] = len(self.unreadable)
        return self.clean_problems(self.count), audit


def fingerprints(problem: Problem, reordered: bool = False) -> Iterator[tuple[Hashable, str]]:
    """The values that identify a problem, each with the kind of match."""
    yield ("key", problem.task, problem.key), "key"
    tokens = normalize_question(problem.question)
    yield ("question", *tokens), "question"
    if reordered or problem.key == problem.question:
        yield ("reordered", *sorted(tokens), problem.gold_answer.strip()), "reordered"


def describe_removed(audit: Mapping[str, Any]) -> str:
    """What the filter left out of an evaluation, for the run itself and for its audit; empty if nothing."""
    if not audit["removed"]:
        return ""
    ways = ", ".join(f"{count:,} by {match}" for match, count in audit.get("matches", {}).items())
    return (
        f"{audit['removed']:,} of {audit['checked']:,} held-out problems match training problems"
        f"{f' ({ways})' if ways else ''} and are replaced by others; {audit['left']:,} are left."
    )


def check_overlap(training: Iterable[Problem], validation: Sequence[Problem], count: int) -> str:
    """Compare all problems of a training file with the held-out ones before a run starts. Raise if fewer than
    `count` would remain; return a warning if some match, else an empty text."""
    check = ValidationFilter(validation, count)
    for problem in training:
        check.compare(problem, 0)
    if not check.leaks:
        return ""
    leak = check.leaks[min(check.leaks)]
    overlap = (
        f"{len(check.leaks):,} of the {len(validation):,} held-out problems are also in data.file; the first is "
        f"{leak.problem.question!r:.200} ({leak.match})."
    )
    if len(validation) - len(check.leaks) < check.count:
        raise ConfigError(
            f"{overlap} Too few would remain for evaluate.problems={count}: remove them from data.file, or evaluate on "
            "other problems."
        )
    return f"{overlap} A problem is left out of evaluations once it has been trained on."


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
    removed: str = ""
    """What the run itself left out of its last evaluation."""


def audit_run(run: Path, file: Path | None = None) -> AuditReport:
    """Find problems that a run was trained on: those of a file at any step, or without a file, those
    that the run was evaluated on, at steps before their last evaluation."""
    rows = () if file else read_rows(run, "validation")
    evaluated = {(row["task"], row["key"]): (problem_from_row(row), row["step"]) for row in rows}
    problems = read_problem_file(file) if file else [problem for problem, _ in evaluated.values()]
    if not problems:
        raise RunError(f"{run} has no evaluations. Name the problems to check with --file.")
    check = ValidationFilter(problems)
    trained = check.scan(read_rows(run, *TRAINING_SPLITS))
    leaks = [leak for _, leak in sorted(check.leaks.items())]
    if not file:  # a problem trained on only after its last evaluation is no leak
        leaks = [k for k in leaks if k.step <= evaluated[k.problem.task, k.problem.key][1]]
    audits = [] if file else load_events(run, "audit")
    return AuditReport(
        len(problems), trained, leaks, describe_removed(audits[-1]) if audits else ""
    )
