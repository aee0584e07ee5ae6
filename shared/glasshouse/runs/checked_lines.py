"""Reads metrics.jsonl and events.jsonl as they grow: each line is parsed and verified once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glasshouse.checksums import parse_checked, read_regular_file
from glasshouse.errors import RunDataError

Row = dict[str, Any]


@dataclass(slots=True)
class GrowingFile:
    """The verified lines of a file that another process appends to.

    Example:
        metrics = GrowingFile(run / "results" / "metrics.jsonl", key="step")
        metrics.refresh()
        metrics.rows
    """

    path: Path
    key: str
    """A key that every row has; a line without it is damaged."""
    rows: list[Row] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)
    """Numbers of the damaged lines."""
    generation: int = 0
    """Counts how often the file was read from the start: it was replaced or truncated."""
    problem: str = ""
    """Why the file cannot be read at all."""
    _stamp: tuple[int, int, int] = (0, 0, 0)
    _size: int = 0
    _lines: int = 0
    _digest: bytes = b""

    def refresh(self) -> bool:
        """Read what was appended; returns whether anything changed."""
        try:
            status = self.path.stat()
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
            if stamp == self._stamp:
                return False
            data = read_regular_file(self.path)
        except FileNotFoundError:
            changed = bool(self._lines or self.problem)
            self._restart()
            self._stamp, self.problem = (0, 0, 0), ""
            return changed
        except OSError as error:
            changed = not self.problem
            self.problem = str(error)
            return changed
        self._stamp, self.problem = stamp, ""
        if hashlib.sha256(data[: self._size]).digest() != self._digest:
            self._restart()
        end = data.rfind(b"\n") + 1
        for text in data[self._size : end].split(b"\n"):
            if text:
                self._lines += 1
                self._parse(text)
        self._size = end
        self._digest = hashlib.sha256(data[:end]).digest()
        return True

    def _parse(self, text: bytes) -> None:
        try:
            row = parse_checked(text)
        except RunDataError:
            row = {}
        if has_key(row, self.key):
            self.rows.append(row)
        else:
            self.damaged.append(self._lines)

    def _restart(self) -> None:
        if self._lines:
            self.generation += 1
        self.rows, self.damaged = [], []
        self._size, self._lines, self._digest = 0, 0, hashlib.sha256(b"").digest()


def has_key(row: Row, key: str) -> bool:
    """Is a row what its file should hold: an event's name, or the number of a step?"""
    value = row.get(key)
    return isinstance(value, str) if key == "event" else isinstance(value, int)


def read_sample(path: Path, key: str, count: int) -> tuple[list[Row], int, bool]:
    """Parse and verify about `count` evenly spaced lines, always with the last; also returns the
    number of lines, and whether any of those read is damaged. A list of many runs needs no more than
    this of each."""
    try:
        data = read_regular_file(path)
    except OSError:
        return [], 0, False
    lines = [text for text in data.split(b"\n")[:-1] if text]
    if not lines:
        return [], 0, False
    wanted = {round(i * (len(lines) - 1) / max(1, count - 1)) for i in range(count)}
    rows = []
    for number in sorted(wanted):
        try:
            row = parse_checked(lines[number])
        except RunDataError:
            continue
        if has_key(row, key):
            rows.append(row)
    return rows, len(lines), len(rows) < len(wanted)
