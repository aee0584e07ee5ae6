"""A sample of the rollouts that a study keeps, as a file for `glasshouse measure` and for a reader on the page.

    evaluations.jsonl.zst ──► as many of each run's first and last step ──► rollouts.jsonl, in random order

A file for a blind reader has neither arm nor seed nor step. Labels belong to texts, so that what the reader has said
of them also holds in a file that names the arms.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

from glasshouse.errors import RunDataError
from glasshouse.files import check_output_file, write_text
from glasshouse.runs.labels import rollout_key
from glasshouse.study.evaluations import RESERVE, Row, load_rollouts
from glasshouse.study.table import Run

HIDDEN = ("study_arm", "seed", "checkpoint")
"""What a blind reader is not shown."""


def export_rollouts(source: Path, out: Path, count: int, *, blind: bool = False) -> int:
    """Write at most `count` planted rollouts; returns how many. Equal texts under one prompt are written once.

    Example: `export_rollouts(Path("results/evaluations.jsonl.zst"), Path("reading.jsonl"), 100, blind=True)`
    """
    check_output_file("--out", out)
    if count < 1:
        raise RunDataError(f"--count is {count}; it must be at least 1.")
    rows = sample_rollouts(load_rollouts(source), count)
    if not rows:
        raise RunDataError(f"{source} has no evaluation rollouts of a planted arm.")
    shown = [{key: row[key] for key in row if not (blind and key in HIDDEN)} for row in rows]
    write_text(out, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in shown))
    return len(rows)


def sample_rollouts(runs: Mapping[Run, Sequence[Row]], count: int) -> list[dict[str, Any]]:
    """One of each run and step in the order of their hashes, then another of each, and so on."""
    cells: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for (arm, seed), rows in runs.items():
        evaluated = [r for r in rows if not r["split"].startswith(RESERVE)]
        ends = {step(row["step"] for row in evaluated) for step in (min, max)}
        for row in evaluated:
            if row["arm"] == "planted" and row["step"] in ends:
                cells.setdefault((arm, seed, row["step"]), []).append(_export(row))
    drawn: dict[str, dict[str, Any]] = {}
    queues = [iter(sorted(own, key=_place)) for own in cells.values()]
    while queues and len(drawn) < count:
        for queue in [*queues]:
            new = [*islice((row for row in queue if row["id"] not in drawn), 1)]
            drawn |= {row["id"]: row for row in new}
            if not new:
                queues.remove(queue)
    return sorted(list(drawn.values())[:count], key=_place)


def _export(row: Row) -> dict[str, Any]:
    """A row in the fields of `glasshouse measure`."""
    exported = {
        "id": rollout_key(row["question"], None, row["text"]),
        "group": row["key"],
        "prompt": row["question"],
        "completion": row["text"],
        "gold": row["gold_answer"],
        "hint": row["meta"].get("wrong_hint"),
        "finish_reason": row.get("finish_reason", ""),
        "study_arm": row["study_arm"],
        "seed": row["seed"],
        "checkpoint": row["step"],
    }
    return {key: value for key, value in exported.items() if value is not None}


def _place(row: Mapping[str, Any]) -> str:
    """Another hash than the id, and of every run's own rollouts."""
    text = f"{row['study_arm']} {row['seed']} {row['checkpoint']} {row['id']}"
    return blake2b(text.encode(), digest_size=16).hexdigest()
