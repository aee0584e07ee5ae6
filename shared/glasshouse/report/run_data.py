"""What a report is made of, read from run directories: nothing is computed here but choices."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glasshouse.answers import split
from glasshouse.config import Config
from glasshouse.monitors.arithmetic_statements import statements
from glasshouse.report.learning_curves import read_metrics
from glasshouse.store import Query, Reader
from glasshouse.store import monitor_results as store_findings
from glasshouse.store.checkpoints import STATE
from glasshouse.store.manifest import read_manifest
from glasshouse.store.run_directory import config_of, evaluations_of, summary_of
from glasshouse.types import Rule

Row = dict[str, Any]
EDGE = 5
"""Steps at each end whose rewards the histogram compares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """One run."""

    path: Path
    config: Config
    summary: dict[str, Any] | None
    """None while it has not come to its end."""
    metrics: list[Row]
    evaluations: list[Row]
    """Evaluation events: held-out accuracy at their steps."""
    monitor: dict[str, Any] | None
    """results/monitor.json, if the run was monitored."""
    state: dict[str, Any]
    """The last checkpoint's: versions and the start's fingerprint; empty if there is none."""


def gather(path: Path) -> Gathered:
    config = config_of(path)
    return Gathered(
        path=path,
        config=config,
        summary=summary_of(path),
        metrics=read_metrics(path),
        evaluations=evaluations_of(path),
        monitor=store_findings.read(path / "results"),
        state=_state(path / "checkpoints"),
    )


def _state(folder: Path) -> dict[str, Any]:
    for path in sorted(folder.glob("step-*"), reverse=True):
        try:
            state: dict[str, Any] = json.loads((path / STATE).read_text())
            return state
        except (OSError, ValueError):
            continue
    return {}


# --- rollouts --------------------------------------------------------------------------------


def edges(run: Path) -> tuple[list[float], list[float]]:
    """Rewards of the first and of the last few training steps."""
    steps = _steps(run, "train")
    if not steps:
        return [], []
    first, last = steps[:EDGE], steps[-EDGE:]
    return _rewards(run, first), _rewards(run, last)


def _rewards(run: Path, steps: Sequence[int]) -> list[float]:
    return [row["reward"] for row in _rows(run, "train", steps[0], steps[-1])]


def examples(run: Path) -> list[tuple[str, str, Row]]:
    """(what it shows, why it was chosen, rollout) of the last evaluation, or else the last step."""
    for kind in ("validation", "train"):
        steps = _steps(run, kind)
        rows = _rows(run, kind, steps[-1], steps[-1]) if steps else []
        if rows:
            return list(_chosen(rows))
    return []


def _chosen(rows: list[Row]) -> Iterator[tuple[str, str, Row]]:
    middle = statistics.median(row["length"] for row in rows)
    usual = statistics.mode(row["correct"] for row in rows)
    alike = [row for row in rows if row["correct"] is usual]
    typical = min(alike, key=lambda row: (abs(row["length"] - middle), row["key"]))
    yield "typical", f"of median length ({middle:g} tokens), and {_right(typical)}", typical
    best = max(rows, key=lambda row: (row["reward"], row["length"], row["key"]))
    yield "best", "highest reward, longest of those", best
    worst = min(rows, key=lambda row: (row["reward"], -row["length"], row["key"]))
    yield "worst", "lowest reward, longest of those", worst
    odd = [(suspicion(row), row) for row in rows]
    for why, row in [(why, row) for why, row in odd if why][:2]:
        yield "suspicious", why, row


def suspicion(row: Row) -> str:
    """Why a rollout deserves a second look; empty: it does not."""
    if row["correct"]:
        false = [s.text for s in statements(split(row["completion"]).cot) if not s.true]
        if false:
            return f"right, though a step is not true: {false[0][:60]}"
    if row["reward"] > 0 and row["rule"] not in (Rule.TAG.value, Rule.NONE.value):
        return f"rewarded, though the answer was read by a fallback rule: {row['rule']}"
    return ""


def _right(row: Row) -> str:
    return "right, as most are" if row["correct"] else "wrong, as most are"


def _steps(run: Path, kind: str) -> list[int]:
    lines = read_manifest(run / "results" / "rollouts")
    return sorted({line.entry.step for line in lines if line.entry and line.entry.kind == kind})


def _rows(run: Path, kind: str, first: int, last: int) -> list[Row]:
    """What can be read of them; a damaged record is no reason to have no report."""
    reader = Reader(run / "results" / "rollouts")
    return list(reader.rows(Query(kinds=(kind,), first=first, last=last)))
