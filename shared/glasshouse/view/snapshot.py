"""Everything that the page shows of finished files, in one JSON value: the data of `glasshouse report`.

The front end answers its own requests from it (shared/view_frontend/src/snapshot.ts). Its size is
bounded, whatever the runs: curves are thinned, and of the rollouts a sample is included, which the
page says. Budgets are shared by all runs of a report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, TypeVar

import numpy as np

from glasshouse import __version__
from glasshouse.errors import RunDataError
from glasshouse.view import rollout_details
from glasshouse.view.compare import compare_runs
from glasshouse.view.rollout_frames import KINDS, Frame, RolloutLog, list_frames, parse_ref
from glasshouse.view.rollout_index import RolloutIndex, hash_key
from glasshouse.view.run_reader import RunReader, read_overview, to_json
from glasshouse.view.run_status import find_status
from glasshouse.view.suspicion import SUSPICIONS

CURVE_STEPS = 1000
"""Steps of the curves, of all runs together; a run gets at least `MIN_CURVE_STEPS`."""
MIN_CURVE_STEPS = 100
POINTS = 200
"""Points of a measure, and events of a run."""
INDEXED_ROLLOUTS = 6000
"""Rollouts that are read, of all runs together: the sample is taken from these."""
CACHED_FRAMES = 64
"""Steps of the log that are kept in memory while rollouts are chosen from them."""
ROLLOUT_BYTES = 2_500_000
"""Size of the included rollouts in the file, of all runs together."""
ROLLOUT_TEXT = 20_000
"""Characters of a prompt or completion."""
PROBLEMS = 30
"""Held-out problems that are included with their rollouts of all evaluations."""
DROPPED_KEYS = (
    "messages", "has_tokens", "time", "span", "lenient", "strict", "has_answer_tag", "meta", "tokens",
    "logprobs", "prompt_tokens", "activations", "seed", "decimals", "answer_kind", "policy_version",
)  # fmt: skip
"""Keys of a rollout that the page of a file does not use."""

Item = TypeVar("Item")


def build_snapshot(
    readers: Sequence[RunReader], damage: Mapping[str, Sequence[Mapping[str, str]]]
) -> dict[str, Any]:
    """The data of these runs; `damage` lists what is damaged of each, by its id.

    Example: `build_snapshot([reader], {})["run"]["try"]["verdict"]`
    """
    count = len(readers)
    steps = max(MIN_CURVE_STEPS, CURVE_STEPS // count)
    snapshot: dict[str, Any] = {
        "glasshouse": __version__,
        "suspicions": SUSPICIONS,
        "runs": [],
        "run": {},
        "rollouts": {},
        "compare": thin_comparison(compare_runs(readers), steps) if count > 1 else None,
    }
    for reader in readers:
        id = reader.location.id
        now = {"status": status_of_files(reader), "seconds_left": None}
        snapshot["runs"].append(read_overview(reader.location) | now)
        snapshot["run"][id] = (
            describe_run(reader, steps) | now | {"damage": list(damage.get(id, ()))}
        )
        snapshot["rollouts"][id] = sample_rollouts(
            reader, INDEXED_ROLLOUTS // count, ROLLOUT_BYTES // count
        )
    return snapshot


def describe_run(reader: RunReader, steps: int) -> dict[str, Any]:
    """The run as the live page gets it, with at most `steps` steps of its curves."""
    run = reader.describe()
    metrics = run["metrics"]
    kept = thin(range(len(metrics["steps"])), steps)
    for measure in [*run["accuracy"], *run["measures"].values()]:
        measure["points"] = thin(measure["points"], POINTS)
    return {
        **run,
        "metrics": metrics
        | {
            "steps": [metrics["steps"][place] for place in kept],
            "columns": {
                name: [_round(column[place]) for place in kept]
                for name, column in metrics["columns"].items()
            },
        },
        "logged_steps": len(metrics["steps"]),
        "marks": run["marks"][-POINTS:],
        "checkpoints": run["checkpoints"][-POINTS:],
    }


def status_of_files(reader: RunReader) -> str:
    """A report is written by the process that trained the run, which still holds its lock: a run
    with a summary is finished."""
    is_running = reader.is_active and reader.summary is None
    return find_status(reader.events.rows, reader.summary, is_running)


def thin_comparison(comparison: dict[str, Any], steps: int) -> dict[str, Any]:
    for curve in comparison["curves"].values():
        for arm in curve["arms"].values():
            arm["band"] = thin(arm["band"], steps)
            for run in arm["runs"]:
                run["points"] = thin(run["points"], steps)
    return comparison


# --- rollouts --------------------------------------------------------------------------------


def sample_rollouts(reader: RunReader, limit: int, size: int) -> dict[str, Any]:
    """A sample of at most `size` bytes from at most about `limit` rollouts of the log: those worth
    reading and the suspicious ones first, then held-out problems, then whole groups."""
    try:
        frames = list_frames(reader.path, reader.monitor)
    except RunDataError:
        frames = []  # the log cannot be read: the damage of the run says so
    log = RolloutLog(frames, CACHED_FRAMES)
    index = RolloutIndex(None, reader.monitors)
    index.set_frames(choose_frames(frames, limit))
    for frame in index.missing():
        index.add(frame)
    highlights = rollout_details.select_highlights(reader.monitors, log)
    suspicious = rollout_details.list_suspicious(index, log)
    problems = rollout_details.list_problems(index)[:PROBLEMS]
    chosen = dict.fromkeys(entry["rollout"]["ref"] for entry in highlights)
    chosen |= dict.fromkeys(row["ref"] for group in suspicious for row in group["examples"])
    chosen |= dict.fromkeys(rollout_order(index, [p["key"] for p in problems]))
    rows: dict[str, Any] = {}
    used = 0
    for ref in chosen:
        row = shorten_rollout(rollout_details.describe_rollout(reader.monitors, log.row(ref)))
        used += len(to_inline_json(row).encode())
        if used > size:
            break
        rows[ref] = row
    index.close()
    records = index.records
    monitored = np.count_nonzero(records["kind"] == KINDS.index("monitored"))
    return {
        "rows": sorted(rows.values(), key=_log_order),
        "highlights": [
            {"reason": entry["reason"], "ref": entry["rollout"]["ref"]}
            for entry in highlights
            if entry["rollout"]["ref"] in rows
        ],
        "suspicious": [
            {**g, "examples": [r["ref"] for r in g["examples"] if r["ref"] in rows]}
            for g in suspicious
        ],
        "problems": [p for p in problems if any(row["key"] == p["key"] for row in rows.values())],
        "monitors": index.monitor_names,
        "checked": len(records),
        "total": sum(frame.expected_rows for frame in frames) + int(monitored),
        "damage": index.damage,
    }


def choose_frames(frames: Sequence[Frame], limit: int) -> list[Frame]:
    """Frames of every kind, evenly spaced with the first and the last of each, with about `limit`
    rollouts. Half of them are training steps if there are that many."""
    chosen: list[Frame] = []
    for kind in KINDS:
        of_kind = [frame for frame in frames if frame.kind == kind]
        if not of_kind:
            continue
        budget = limit // (2 if kind == "train" else 6)
        largest = max(1, *(frame.expected_rows for frame in of_kind))
        chosen += thin(of_kind, max(2, budget // largest))
    return chosen


def rollout_order(index: RolloutIndex, keys: Sequence[str]) -> Iterator[str]:
    """References in the order in which they are included: held-out problems of `keys` first, then
    groups of every step in turn, so that a cut leaves whole groups and no step out."""
    records = index.records
    hashes = np.array([hash_key(key) for key in keys], np.uint64)
    chosen = rollout_details.is_validation(records) & np.isin(records["key"], hashes)
    order = np.lexsort((records["row"], records["step"], records["kind"], records["group"]))
    for record in (*records[chosen], *records[order]):
        yield rollout_details.ref_of(index, record)


def shorten_rollout(row: dict[str, Any]) -> dict[str, Any]:
    row = {name: value for name, value in row.items() if name not in DROPPED_KEYS}
    for name in ("prompt", "text", "question"):
        row[name] = row[name][:ROLLOUT_TEXT]
    return row | {"has_tokens": False}


# --- parts -----------------------------------------------------------------------------------


def read_asset(name: str) -> bytes:
    """A built file of the front end (sources: shared/view_frontend, built by `make view-assets`), such as
    `read_asset("app.js")`."""
    return resources.files("glasshouse.view").joinpath("assets", name).read_bytes()


def to_inline_json(value: Any) -> str:
    """JSON for an HTML page: nothing in it can end or open an element or a comment.

    Example: `to_inline_json("</script>")` is `"\\u003c/script\\u003e"` with its quotes.
    """
    text = to_json(value).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def thin(items: Sequence[Item], limit: int) -> list[Item]:
    """At most `limit` evenly spaced items, with the first and the last.

    Example: `thin([1, 2, 3, 4, 5], 3)` is [1, 3, 5].
    """
    if len(items) <= limit:
        return list(items)
    places = {round(place * (len(items) - 1) / (limit - 1)) for place in range(limit)}
    return [items[place] for place in sorted(places)]


def _log_order(row: Mapping[str, Any]) -> tuple[int, int, int]:
    kind, step, number = parse_ref(row["ref"])
    return step, KINDS.index(kind), number


def _round(value: float | None) -> float | None:
    """Six digits: more than a curve can show."""
    return None if value is None else float(f"{value:.6g}")
