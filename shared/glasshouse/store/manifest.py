"""The record's table of contents: a line a frame, in the order in which they were written.

A line says where a frame lies, what it holds and its sha256, and carries a checksum of itself, so
that a line can be trusted before its frame is read (and skipped).
"""

from __future__ import annotations

import builtins
import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

MANIFEST = "manifest.jsonl"
SUFFIX = ".jsonl.zst"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One frame, as promised."""

    kind: str
    """`train`, `validation`, or `replaced` (groups that dynamic sampling drew again)."""
    step: int
    rows: int
    offset: int
    """Where in `<kind>.jsonl.zst` the frame begins."""
    bytes: int
    raw: int
    """Its size once decompressed."""
    sha256: str
    """Of the frame as it lies in the file."""

    @property
    def file(self) -> str:
        return f"{self.kind}{SUFFIX}"

    @property
    def end(self) -> int:
        return self.offset + self.bytes

    def line(self) -> builtins.bytes:
        """As JSON, with its own checksum as the last field."""
        text = json.dumps(asdict(self))
        check = hashlib.sha256(text.encode()).hexdigest()[:16]
        return f'{text[:-1]}, "check": "{check}"}}\n'.encode()

    def holds(self, frame: builtins.bytes) -> bool:
        return hashlib.sha256(frame).hexdigest() == self.sha256


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the manifest, newline included, and what it says; None if it cannot be trusted."""

    text: bytes
    entry: Entry | None

    @property
    def torn(self) -> bool:
        return not self.text.endswith(b"\n")


def read_manifest(folder: Path) -> list[Line]:
    """Every line; no manifest is an empty one."""
    try:
        data = (folder / MANIFEST).read_bytes()
    except FileNotFoundError:
        return []
    *whole, torn = data.split(b"\n")
    return [Line(text, parse(text)) for text in [*(t + b"\n" for t in whole), torn] if text]


def parse(text: bytes) -> Entry | None:
    """What a line promises, if it is letter for letter what we would write."""
    try:
        fields = json.loads(text)
        del fields["check"]
        entry = Entry(**fields)
        return entry if entry.line() == text else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class Storage:
    """What a record takes on disk, and what it would take uncompressed."""

    bytes: int = 0
    raw: int = 0
    rows: int = 0
    frames: int = 0

    def __add__(self, entry: Entry) -> Storage:
        return Storage(
            self.bytes + entry.bytes, self.raw + entry.raw, self.rows + entry.rows, self.frames + 1
        )

    def __str__(self) -> str:
        """`1.1 MB, 11.8 MB raw`"""
        return f"{size(self.bytes)}, {size(self.raw)} raw"


def storage(folder: Path) -> Storage:
    """A record's size, from its manifest alone."""
    total = Storage()
    for line in read_manifest(folder):
        if line.entry:
            total += line.entry
    return total


def size(count: float) -> str:
    """Bytes as people say them: `1.1 MB`."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
