"""What monitoring found: `results/monitor.json`, and the rows behind it in `monitor_rows.jsonl.zst`.

A subject (the base, a checkpoint) is one frame of rows and one entry that says where the frame
lies. The frame is written before the entry, each file in one step: killed in between, a frame
without an entry is left, and the next one takes its place.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import zstandard

from glasshouse.errors import RecordError
from glasshouse.store.atomic_files import write_bytes, write_text
from glasshouse.store.rollout_rows import decode, encode

VERSION = 1
FILE, ROWS = "monitor.json", "monitor_rows.jsonl.zst"
Entry = dict[str, Any]


class FindingsFile:
    """The findings of one run under one set of settings.

    Example:
        file = FindingsFile(run / "results", settings)
        if file.entry("base", weights) is None:
            file.add({"name": "base", "step": 0, "weights": weights, "measures": {…}}, rows)
    """

    def __init__(self, results: Path, settings: dict[str, Any]) -> None:
        self.results = results
        self.settings: dict[str, Any] = json.loads(json.dumps(settings))
        self.entries: list[Entry] = []
        self.frames: dict[str, bytes] = {}
        self.more: dict[str, Any] = {}
        """What is said about all of them together: the change, the verdict."""
        found = read(results)
        if found and found.get("settings") == self.settings:
            for entry in found["subjects"]:
                frame = _frame(results, entry)
                if frame is not None:
                    self.entries.append(entry)
                    self.frames[entry["name"]] = frame

    def entry(self, name: str, weights: str) -> Entry | None:
        """What is known of these weights; rows that cannot be read are as good as none."""
        found = (e for e in self.entries if e["name"] == name and e["weights"] == weights)
        return next(found, None)

    def add(self, entry: Entry, rows: list[dict[str, Any]]) -> None:
        """Keep a subject's findings; from here on they last."""
        data = encode(rows)
        frame = zstandard.ZstdCompressor(level=9, write_checksum=True).compress(data)
        name = entry["name"]
        self.frames[name] = frame
        entry = {**entry, "rows": {"count": len(rows), "raw": len(data)}}
        self.entries = [e for e in self.entries if e["name"] != name] + [entry]
        self.entries.sort(key=lambda e: (e["step"], e["name"]))
        self._place()
        write_bytes(self.results / ROWS, b"".join(self.frames[e["name"]] for e in self.entries))
        self.write()

    def rows(self, name: str) -> list[dict[str, Any]]:
        return decode(zstandard.ZstdDecompressor().decompress(self.frames[name]))

    def write(self) -> None:
        """The table of contents; sorted, so that equal findings are equal files."""
        whole = {
            "version": VERSION,
            "settings": self.settings,
            "subjects": self.entries,
            **self.more,
        }
        text = json.dumps(whole, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
        write_text(self.results / FILE, text + "\n")

    def _place(self) -> None:
        offset = 0
        for entry in self.entries:
            frame = self.frames[entry["name"]]
            digest = hashlib.sha256(frame).hexdigest()
            entry["rows"] |= {"offset": offset, "bytes": len(frame), "sha256": digest}
            offset += len(frame)


def read(results: Path) -> dict[str, Any] | None:
    """`monitor.json`, if it is there and of this version."""
    try:
        found: dict[str, Any] = json.loads((results / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RecordError(
            f"{results / FILE} cannot be read: {error}. Remove it and monitor the run again."
        ) from None
    return found if found.get("version") == VERSION else None


def _frame(results: Path, entry: Entry) -> bytes | None:
    """An entry's frame, if it lies where it should and is what it should be."""
    where = entry["rows"]
    try:
        with open(results / ROWS, "rb") as file:
            file.seek(where["offset"])
            frame = file.read(where["bytes"])
    except OSError:
        return None
    return frame if hashlib.sha256(frame).hexdigest() == where["sha256"] else None
