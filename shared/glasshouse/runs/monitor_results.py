"""The results of monitoring a run: `results/monitor.json` and `results/monitor_rows.jsonl.zst`.

Each monitored model (the base model or a checkpoint) has one entry in `monitor.json` and one zstd
frame with its rows: rollouts of the interventions, rollouts of an organism's two arms, and the output of
every monitor on them. Both files are written atomically, rows first: after a crash in between, a frame
has no entry, and the next write replaces it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glasshouse.errors import RunDataError
from glasshouse.files import add_check, parse_checked, read_regular_file, write_bytes, write_text
from glasshouse.runs.rollout_log import Frame, encode_frame, scan_log
from glasshouse.runs.rows import Row, to_row
from glasshouse.types import Completion, Extracted, Grade, Problem, Rollout

VERSION = 5
KEYS = {"version", "settings", "checkpoints", "change", "verdict"}
"""The keys of monitor.json besides its checksum."""
RESULTS_FILE, ROWS_FILE = "monitor.json", "monitor_rows.jsonl.zst"
Entry = dict[str, Any]


class MonitorResultsFile:
    """The monitor results of one run under one set of settings.

    Example:
        file = MonitorResultsFile(run / "results", settings)
        if file.find_entry("base", weights) is None:
            file.add({"name": "base", "step": 0, "weights": weights, "measures": {…}}, rows)
    """

    def __init__(self, results: Path, settings: dict[str, Any]) -> None:
        self.results = results
        self.settings: dict[str, Any] = json.loads(json.dumps(settings))
        self.entries: list[Entry] = []
        self.frames: dict[str, bytes] = {}
        self.summary: dict[str, Any] = {}
        """Further keys of monitor.json, about all entries together: the change, the verdict."""
        content = read_monitor_results(results)
        if content and content.get("settings") == self.settings:
            damaged = find_damaged_rows(results, content)
            self.entries = [e for e in content["checkpoints"] if e["name"] not in damaged]
            self.frames = {e["name"]: find_frame(results, e).read_bytes() for e in self.entries}

    def find_entry(self, name: str, weights: str) -> Entry | None:
        """Return the entry of these weights; None if it or its rows cannot be read, or if a monitor failed."""
        for entry in self.entries:
            if entry["name"] == name and entry["weights"] == weights and not entry.get("failures"):
                return entry
        return None

    def add(self, entry: Entry, rows: list[Row]) -> None:
        """Add or replace an entry with its rows, and write both files."""
        name, step = entry["name"], entry["step"]
        self.frames[name] = encode_frame(name, step, rows, level=9)
        self.entries = [e for e in self.entries if e["name"] != name]
        self.entries.append({**entry, "rows": {"count": len(rows), "sha256": ""}})
        self.entries.sort(key=lambda e: (e["step"], e["name"]))
        file = self.results / ROWS_FILE
        write_bytes(file, b"".join(self.frames[e["name"]] for e in self.entries))
        for e, frame in zip(self.entries, scan_log(file).frames, strict=True):
            e["rows"]["sha256"] = frame.sha256
        self.write()

    def rows(self, name: str) -> list[Row]:
        entry = next(entry for entry in self.entries if entry["name"] == name)
        return find_frame(self.results, entry).read()

    def write(self) -> None:
        """Write monitor.json with sorted keys, so that equal results give equal files."""
        content = {
            "version": VERSION,
            "settings": self.settings,
            "checkpoints": self.entries,
            **self.summary,
        }
        content = add_check(content)
        text = json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
        write_text(self.results / RESULTS_FILE, text + "\n")


def read_monitor_results(results: Path) -> dict[str, Any] | None:
    """Read and verify monitor.json; None if it does not exist or has another version."""
    path = results / RESULTS_FILE
    try:
        content = parse_checked(read_regular_file(path))
        unknown = sorted(set(content) - KEYS)
        if unknown:
            raise RunDataError(f"it has an unknown key {unknown[0]!r}")
    except FileNotFoundError:
        return None
    except (OSError, RunDataError) as error:
        raise RunDataError(
            f"{path} cannot be read: {error}. Delete it and run `glasshouse monitor` again."
        ) from None
    return content if content.get("version") == VERSION else None


def find_damaged_rows(results: Path, content: Mapping[str, Any]) -> list[str]:
    """Return the names of the models whose rows are missing or damaged."""
    damaged = []
    for entry in content["checkpoints"]:
        try:
            find_frame(results, entry).read_bytes()
        except RunDataError:
            damaged.append(entry["name"])
    return damaged


def find_frame(results: Path, entry: Mapping[str, Any]) -> Frame:
    """Find the frame with the rows of an entry; raise RunDataError if there is none."""
    for frame in scan_log(results / ROWS_FILE).frames:
        if frame.sha256 == entry["rows"]["sha256"]:
            return frame
    raise RunDataError(f"{ROWS_FILE} does not hold the rows of {entry['name']}")


def find_measure(checkpoint: Mapping[str, Any], name: str) -> Entry | None:
    """A measure of a monitored checkpoint, from whichever evaluation has it."""
    for measures in checkpoint["measures"].values():
        if name in measures:
            estimate: Entry = measures[name]
            return estimate
    return None


# --- rollouts ----------------------------------------------------------------------------------


def read_monitored_rollouts(results: Path, entry: Mapping[str, Any]) -> list[Row]:
    """The rollouts of one monitored model as rows, each with the `verdicts` of the monitors; raise
    RunDataError if its frame is damaged."""
    rows = find_frame(results, entry).read()
    try:
        return assemble_rollouts(rows)
    except (KeyError, TypeError) as error:
        raise RunDataError(f"the frame cannot be decoded: {error}") from None


def assemble_rollouts(rows: Sequence[Row]) -> list[Row]:
    """Join each rollout with the outputs of the monitors that scored it."""
    rollouts: dict[tuple[Any, ...], Row] = {}
    verdicts: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        # without a planted behaviour, monitors score the rollouts of the interventions
        source = "interventions" if row["evaluation"] == "monitors" else row["evaluation"]
        place = (source, row.get("planted"), row.get("key"), row.get("sample"))
        if "monitor" in row:
            verdicts.setdefault(place, {})[row["monitor"]] = {
                "score": row.get("score"),
                "flagged": row.get("flagged"),
                "reason": row.get("reason", ""),
            }
        elif (
            row.get("intervention") == "none" or {"question", "text", "model_answer"} <= row.keys()
        ):
            rollouts.setdefault(place, row)
    groups = {place: n for n, place in enumerate(dict.fromkeys(place[:3] for place in rollouts))}
    return [
        to_row(_to_rollout(row, groups[place[:3]])) | {"verdicts": verdicts.get(place, {})}
        for place, row in rollouts.items()
    ]


def _to_rollout(row: Row, group: int) -> Rollout:
    arm = {0: "control", 1: "planted"}.get(row.get("planted", -1), "")
    reward, behaviour = row.get("reward"), row.get("behaviour")
    question: str = row.get("question", "")
    return Rollout(
        step=row["step"],
        split=f"monitored/{arm or row['evaluation']}",
        arm=arm,
        group=group,
        sample=row["sample"],
        checkpoint=row["checkpoint"],
        problem=Problem(
            task="", key=row["key"], question=question, gold_answer=row.get("gold_answer", "")
        ),
        prompt=row.get("prompt") or question,
        text=row["text"],
        completion=Completion(),
        grade=Grade(
            reward=math.nan if reward is None else reward,
            correct=row.get("correct"),
            extracted=Extracted(model_answer=row.get("model_answer")),
        ),
        behaviour=None if behaviour is None else bool(behaviour),
    )
