"""The results of monitoring a run: `results/monitor.json` and `results/monitor_rows.jsonl.zst`.

Each monitored model (the base model or a checkpoint) has one entry in `monitor.json` and one zstd
frame with its rows. Both files are written atomically, rows first: after a crash in between, a
frame has no entry, and the next write replaces it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import zstandard

from glasshouse.checksums import add_check, parse_checked, read_regular_file
from glasshouse.errors import RunDataError
from glasshouse.files import write_bytes, write_text
from glasshouse.runs.rows import decode_rows, encode_rows

VERSION = 3
KEYS = {"version", "settings", "subjects", "change", "verdict"}
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
        self.conclusions: dict[str, Any] = {}
        """Further keys of monitor.json, about all entries together: the change, the verdict."""
        content = read_monitor_results(results)
        if content and content.get("settings") == self.settings:
            for entry in content["subjects"]:
                frame = _read_frame(results, entry)
                if frame is not None:
                    self.entries.append(entry)
                    self.frames[entry["name"]] = frame

    def find_entry(self, name: str, weights: str) -> Entry | None:
        """Return the entry of these weights, or None if it or its rows cannot be read."""
        matching = (e for e in self.entries if e["name"] == name and e["weights"] == weights)
        return next(matching, None)

    def add(self, entry: Entry, rows: list[dict[str, Any]]) -> None:
        """Add or replace an entry with its rows, and write both files."""
        data = encode_rows(rows)
        name = entry["name"]
        compressor = zstandard.ZstdCompressor(level=9, write_checksum=True)
        self.frames[name] = compressor.compress(data)
        entry = {**entry, "rows": {"count": len(rows), "raw": len(data)}}
        self.entries = [e for e in self.entries if e["name"] != name] + [entry]
        self.entries.sort(key=lambda e: (e["step"], e["name"]))
        self._locate_frames()
        frames = [self.frames[e["name"]] for e in self.entries]
        write_bytes(self.results / ROWS_FILE, b"".join(frames))
        self.write()

    def rows(self, name: str) -> list[dict[str, Any]]:
        return decode_rows(zstandard.ZstdDecompressor().decompress(self.frames[name]))

    def write(self) -> None:
        """Write monitor.json with sorted keys, so that equal results give equal files."""
        content = {
            "version": VERSION,
            "settings": self.settings,
            "subjects": self.entries,
            **self.conclusions,
        }
        content = add_check(content)
        text = json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
        write_text(self.results / RESULTS_FILE, text + "\n")

    def _locate_frames(self) -> None:
        offset = 0
        for entry in self.entries:
            frame = self.frames[entry["name"]]
            digest = hashlib.sha256(frame).hexdigest()
            entry["rows"] |= {"offset": offset, "bytes": len(frame), "sha256": digest}
            offset += len(frame)


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


def find_damaged_rows(results: Path, content: dict[str, Any]) -> list[str]:
    """Return the names of the models whose rows are missing or damaged."""
    return [entry["name"] for entry in content["subjects"] if _read_frame(results, entry) is None]


def _read_frame(results: Path, entry: Entry) -> bytes | None:
    """Read the frame of an entry; None if it is missing or damaged."""
    location = entry["rows"]
    try:
        if not (results / ROWS_FILE).is_file():
            return None
        with open(results / ROWS_FILE, "rb") as file:
            file.seek(location["offset"])
            frame = file.read(location["bytes"])
    except OSError:
        return None
    return frame if hashlib.sha256(frame).hexdigest() == location["sha256"] else None


def find_measure(subject: Mapping[str, Any], name: str) -> Entry | None:
    """A measure of a monitored checkpoint, from whichever evaluation has it."""
    for measures in subject["measures"].values():
        if name in measures:
            estimate: Entry = measures[name]
            return estimate
    return None
