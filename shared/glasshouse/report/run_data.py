"""Load from a run directory what its report shows."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glasshouse.answers import split_completion
from glasshouse.config import Config
from glasshouse.errors import RunDataError
from glasshouse.monitors.arithmetic_statements import find_statements
from glasshouse.report.learning_curves import read_metrics
from glasshouse.store import RolloutFilter, RolloutReader, checkpoints
from glasshouse.store.manifest import read_manifest
from glasshouse.store.monitor_results import read_monitor_results
from glasshouse.store.run_directory import load_evaluations, load_events, load_summary
from glasshouse.store.verify import RunDamage, load_verified_config, newest_state, verify_run
from glasshouse.types import ExtractionRule

Row = dict[str, Any]
Example = tuple[str, str, Row]
"""Kind, reason why it is shown, rollout."""
HISTOGRAM_STEPS = 5
"""First and last steps whose rewards the histogram compares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """One run."""

    path: Path
    config: Config
    summary: dict[str, Any] | None
    """None until the run is finished."""
    metrics: list[Row]
    evaluations: list[Row]
    """Evaluation events, with held-out accuracy."""
    sessions: list[Row]
    """Events `start` and `resume`: when a process began to work on the run, and at which commit."""
    monitor: dict[str, Any] | None
    """results/monitor.json, if the run was monitored."""
    state: dict[str, Any]
    """State of the newest valid checkpoint, with versions and fingerprint; empty without one."""
    damage: list[RunDamage]
    """What is damaged; the report shows what can be read, and names the rest."""


def load_run_data(path: Path) -> RunData:
    """Load a run; damaged parts are left out and listed."""
    config, _ = load_verified_config(path)
    damage = verify_run(path).damage
    try:
        monitor = read_monitor_results(path / "results")
    except RunDataError:
        monitor = None  # in `damage`
    return RunData(
        path=path,
        config=config,
        summary=load_summary(path),
        metrics=read_metrics(path),
        evaluations=load_evaluations(path),
        sessions=load_events(path, "start", "resume"),
        monitor=monitor,
        state=newest_state(checkpoints.list_checkpoints(path / "checkpoints")),
        damage=damage,
    )


def first_and_last_rewards(run: Path) -> tuple[list[float], list[float]]:
    """Rewards of the first and last `HISTOGRAM_STEPS` training steps."""
    steps = _logged_steps(run, "train")
    if not steps:
        return [], []
    first, last = (
        [row["reward"] for row in _load_rollouts(run, "train", some[0], some[-1])]
        for some in (steps[:HISTOGRAM_STEPS], steps[-HISTOGRAM_STEPS:])
    )
    return first, last


def select_examples(run: Path) -> list[tuple[int, list[Example]]]:
    """Examples of the last evaluation, and before them those of the base model (step 0): a step and its
    rollouts. Without an evaluation, those of the last training step."""
    for kind in ("validation", "train"):
        steps = _logged_steps(run, kind)
        last = _load_rollouts(run, kind, steps[-1], steps[-1]) if steps else []
        if not last:
            continue
        examples = list(_select(last))
        first = _load_rollouts(run, kind, 0, 0) if steps[-1] > 0 else []
        if not first:
            return [(steps[-1], examples)]
        return [(0, list(_select_base(first, examples))), (steps[-1], examples)]
    return []


def _select_base(rows: list[Row], after: list[Example]) -> Iterator[Example]:
    """What the base model wrote to the problem of the typical example, then its own examples."""
    _, _, typical = after[0]
    for row in rows:
        if (row["key"], row["split"]) == (typical["key"], typical["split"]):
            yield "same problem", "the typical problem after training", row
            break
    yield from _select(rows)


def suspicion_reason(row: Row) -> str:
    """Why a rollout deserves a closer look; empty if it does not."""
    if row["correct"]:
        cot = split_completion(row["completion"]).cot
        false = [statement.text for statement in find_statements(cot) if not statement.is_true]
        if false:
            return f"correct, although a step is false: {false[0][:60]}"
    standard = (ExtractionRule.TAG.value, ExtractionRule.NONE.value)
    if row["reward"] > 0 and row["rule"] not in standard:
        return f"rewarded, although the answer was parsed by a fallback rule: {row['rule']}"
    return ""


def _select(rows: list[Row]) -> Iterator[Example]:
    median = statistics.median(row["length"] for row in rows)
    most_are_correct = statistics.mode(row["correct"] for row in rows)
    typical = min(
        (row for row in rows if row["correct"] is most_are_correct),
        key=lambda row: (abs(row["length"] - median), row["key"]),
    )
    outcome = "correct" if most_are_correct else "wrong"
    yield "typical", f"median length ({median:g} tokens), {outcome} like most", typical
    best = max(rows, key=lambda row: (row["reward"], row["length"], row["key"]))
    yield "best", "highest reward, the longest of those", best
    worst = min(rows, key=lambda row: (row["reward"], -row["length"], row["key"]))
    yield "worst", "lowest reward, the longest of those", worst
    suspicious = [(reason, row) for row in rows if (reason := suspicion_reason(row))]
    for reason, row in suspicious[:2]:
        yield "suspicious", reason, row


def _logged_steps(run: Path, kind: str) -> list[int]:
    lines = read_manifest(run / "results" / "rollouts")
    return sorted({line.entry.step for line in lines if line.entry and line.entry.kind == kind})


def _load_rollouts(run: Path, kind: str, first: int, last: int) -> list[Row]:
    """The readable rollouts: a damaged log does not prevent a report."""
    reader = RolloutReader(run / "results" / "rollouts")
    return list(reader.iter_rows(RolloutFilter(kinds=(kind,), first_step=first, last_step=last)))
