"""metrics.jsonl and events.jsonl: one JSON object per line, each with its checksum.

A damaged line is left out by readers. A last line without its newline is being written, or was cut off
by a crash.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from glasshouse.checksums import parse_checked, read_regular_file
from glasshouse.errors import RunDataError
from glasshouse.runs.rows import Row

METRICS, EVENTS = "metrics.jsonl", "events.jsonl"


def parse_line(file: Path, text: bytes) -> Row | None:
    """Return the row of a line with the number of its step, or the name of its event; None if it is
    damaged."""
    try:
        row = parse_checked(text)
    except RunDataError:
        return None
    is_row = isinstance(row.get("event"), str) if file.name == EVENTS else "step" in row
    return row if is_row else None


def read_lines(file: Path, prefixes: tuple[bytes, ...] = ()) -> list[tuple[bytes, Row | None]]:
    """Read each complete line (that begins so) with its row, or with None if it is damaged; a missing
    file has no lines."""
    lines = _split_lines(file)
    wanted = [text for text in lines if text.startswith(prefixes)] if prefixes else lines
    return [(text + b"\n", parse_line(file, text)) for text in wanted]


def read_sample(file: Path, count: int) -> tuple[list[Row], int, bool]:
    """Parse and verify about `count` evenly spaced lines, always with the last; also returns the
    number of lines, and whether any of those read is damaged. A list of many runs needs no more than
    this of each."""
    lines = _split_lines(file)
    if not lines:
        return [], 0, False
    wanted = sorted({round(i * (len(lines) - 1) / max(1, count - 1)) for i in range(count)})
    rows = [parse_line(file, lines[number]) for number in wanted]
    return [row for row in rows if row], len(lines), None in rows


def ends_inside_line(file: Path) -> bool:
    try:
        data = read_regular_file(file)
    except OSError:
        return False
    return bool(data) and not data.endswith(b"\n")


def _split_lines(file: Path) -> list[bytes]:
    try:
        return [text for text in read_regular_file(file).split(b"\n")[:-1] if text]
    except OSError:
        return []


@dataclass(slots=True)
class GrowingFile:
    """The rows of a file that another process appends to: each line is parsed once.

    Example:
        metrics = GrowingFile(run / "results" / "metrics.jsonl")
        metrics.refresh()
        metrics.rows
    """

    path: Path
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
        for text in filter(None, data[self._size : end].split(b"\n")):
            self._lines += 1
            if row := parse_line(self.path, text):
                self.rows.append(row)
            else:
                self.damaged.append(self._lines)
        self._size, self._digest = end, hashlib.sha256(data[:end]).digest()
        return True

    def _restart(self) -> None:
        self.generation += bool(self._lines)
        self.rows, self.damaged = [], []
        self._size, self._lines, self._digest = 0, 0, hashlib.sha256(b"").digest()
