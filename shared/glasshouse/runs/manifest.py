"""Frames of the rollout log, and the manifest that lists them.

A frame is one zstd frame with the rows of one step. The manifest has one line per frame, in the
order of writing: where the frame is, what it contains and its sha256. Each line ends with a
checksum of itself, so that a reader can trust the line without reading the frame.
"""

from __future__ import annotations

import builtins
import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import zstandard

from glasshouse.checksums import read_regular_file
from glasshouse.errors import RunDataError, RunError
from glasshouse.runs.rows import Row, decode_rows

MANIFEST = "manifest.jsonl"
SUFFIX = ".jsonl.zst"
MAX_FRAME_BYTES = 1_000_000_000
"""Decompressed."""
SCHEMA = 2
"""The version of the rows: their fields are those of `types.Rollout`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestEntry:
    """The description of one frame."""

    kind: str
    """The first part of its rows' split: `train`, `validation`, or `discarded`."""
    step: int
    rows: int
    offset: int
    """Position of the frame in `<kind>.jsonl.zst`."""
    bytes: int
    raw: int
    """Decompressed size in bytes."""
    sha256: str
    """Hash of the compressed frame."""

    @property
    def file(self) -> str:
        return f"{self.kind}{SUFFIX}"

    @property
    def end(self) -> int:
        return self.offset + self.bytes

    def to_line(self) -> builtins.bytes:
        """Encode as a line of JSON whose last field is the line's own checksum."""
        return _add_line_check({"schema": SCHEMA, **asdict(self)})

    def matches(self, frame: builtins.bytes) -> bool:
        return hashlib.sha256(frame).hexdigest() == self.sha256

    def read(self, folder: Path) -> list[Row]:
        """Read and verify the rows of the frame; raise RunDataError if it is damaged."""
        frame = read_frame(folder / self.file, self.offset, self.bytes, self.sha256)
        rows = decode_frame(frame, self.raw)
        if len(rows) != self.rows or any(row["step"] != self.step for row in rows):
            raise RunDataError(f"the frame's rows differ from what {MANIFEST} says")
        return rows


def read_frame(file: Path, offset: int, size: int, sha256: str) -> bytes:
    """Read a compressed frame and compare it with its hash; raise RunDataError if it is damaged."""
    try:
        if file.exists() and not file.is_file():  # opening a FIFO would wait forever
            raise RunDataError(f"{file.name} is not a regular file")
        with open(file, "rb") as opened:
            opened.seek(offset)
            frame = opened.read(size)
    except FileNotFoundError:
        raise RunDataError(f"{file.name} is missing") from None
    except OSError as error:
        raise RunDataError(f"{file.name} cannot be read: {error.strerror}") from None
    if len(frame) < size:
        raise RunDataError(f"{file.name} ends {size - len(frame):,} bytes too early")
    if hashlib.sha256(frame).hexdigest() != sha256:
        raise RunDataError("the sha256 of the frame is wrong")
    return frame


def decode_frame(frame: bytes, raw: int) -> list[Row]:
    """Decompress a frame to its rows, which take `raw` bytes."""
    try:
        size = min(raw, MAX_FRAME_BYTES)
        return decode_rows(zstandard.ZstdDecompressor().decompress(frame, max_output_size=size))
    except (zstandard.ZstdError, ValueError) as error:
        raise RunDataError(f"the frame cannot be decoded: {error}") from None


@dataclass(frozen=True, slots=True)
class ManifestLine:
    """A line of the manifest, including its newline."""

    text: bytes
    entry: ManifestEntry | None
    """None if the line is damaged or incomplete."""
    schema: int = SCHEMA

    @property
    def is_incomplete(self) -> bool:
        return not self.text.endswith(b"\n")


def kind_of(split: str) -> str:
    """Example: `kind_of("validation/greedy")` is `"validation"`"""
    return split.partition("/")[0]


def read_manifest(folder: Path) -> list[ManifestLine]:
    """Read all lines; a missing manifest has none. Raise if it lists rows of another schema."""
    try:
        data = read_regular_file(folder / MANIFEST)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunDataError(f"{folder / MANIFEST} cannot be read: {error}.") from None
    *complete, rest = data.split(b"\n")  # bytes.splitlines would also split at a carriage return
    texts = [*(text + b"\n" for text in complete), *([rest] if rest else [])]
    lines = [_parse_line(text) for text in texts]
    if any(line.schema != SCHEMA for line in lines):
        raise RunError(
            f"{folder} was written by another version of Glasshouse, whose rollouts have other fields. "
            "Read it with that version, or train again with another out=…."
        )
    return lines


def _parse_line(text: bytes) -> ManifestLine:
    """Parse a line; it has no entry unless it is byte for byte what a run writes."""
    try:
        fields = json.loads(text)
        del fields["check"]
        if _add_line_check(fields) != text:
            return ManifestLine(text, None)
        schema = fields.pop("schema", 1)
        if schema != SCHEMA:
            return ManifestLine(text, None, schema)
        return ManifestLine(text, ManifestEntry(**fields))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ManifestLine(text, None)


def _add_line_check(fields: dict[str, Any]) -> bytes:
    text = json.dumps(fields)
    check = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f'{text[:-1]}, "check": "{check}"}}\n'.encode()


def split_frames(data: bytes, limit: float = float("inf")) -> tuple[list[bytes], bytes]:
    """Decompress up to `limit` consecutive frames; returns their contents and the remaining bytes."""
    contents: list[bytes] = []
    while data and len(contents) < limit:
        stream = zstandard.ZstdDecompressor().decompressobj()
        try:
            content = stream.decompress(data)
        except zstandard.ZstdError:  # wrong checksum, or not a frame
            break
        if not stream.eof:
            break
        contents.append(content)
        data = stream.unused_data
    return contents, data


@dataclass(frozen=True, slots=True)
class LogSize:
    """The size of a rollout log, compressed and uncompressed."""

    bytes: int = 0
    raw: int = 0
    rows: int = 0
    frames: int = 0

    def __add__(self, entry: ManifestEntry) -> LogSize:
        return LogSize(
            self.bytes + entry.bytes, self.raw + entry.raw, self.rows + entry.rows, self.frames + 1
        )

    def __str__(self) -> str:
        """`1.1 MB, 11.8 MB raw`"""
        return f"{format_bytes(self.bytes)}, {format_bytes(self.raw)} raw"


def measure_log(folder: Path) -> LogSize:
    """Compute the size of a log from its manifest alone."""
    size = LogSize()
    for line in read_manifest(folder):
        if line.entry:
            size += line.entry
    return size


def format_bytes(count: float) -> str:
    """Format a number of bytes, e.g. `1.1 MB`."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
