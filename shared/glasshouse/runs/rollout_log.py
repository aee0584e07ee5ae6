"""The rollout log: every prompt and completion of a run, in one file.

    results/rollouts.jsonl.zst    header, rows, header, rows, …

A frame is the rows of one step and kind, as JSON lines compressed by zstd. Its header stands before it in a
zstd skippable frame of fixed size, so `zstdcat` prints the rows alone. The header says what the frame holds,
with the sha256 of the compressed rows and a checksum of itself. A reader thus finds every intact frame, also
behind damaged bytes, and sees whether the last one is complete. docs/runs.md describes the format.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar

import zstandard

from glasshouse.errors import RunDataError, RunError
from glasshouse.files import add_check, flush_to_disk, parse_checked
from glasshouse.runs.rows import RolloutFilter, Row, decode_rows, encode_rows, kind_of, to_row
from glasshouse.terminal import format_bytes
from glasshouse.types import Rollout

T = TypeVar("T")
LOG = "rollouts.jsonl.zst"
SCHEMA = 3
"""The version of the log and its rows, whose fields are those of `types.Rollout`."""
HEADER_BYTES = 320
MAGIC = struct.pack("<II", 0x184D2A5D, HEADER_BYTES - 8)
"""The start of a header: a zstd skippable frame of its size."""
SEARCH_BYTES = 1 << 20
MAX_FRAME_BYTES = 1_000_000_000
"""Decompressed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Rows that were logged together, as their header describes them."""

    file: Path
    offset: int
    """Where its header begins."""
    kind: str
    """The first part of its rows' split: `train`, `validation`, or `discarded`."""
    step: int
    rows: int
    size: int
    """Bytes of the compressed rows."""
    raw: int
    """Bytes of the rows."""
    sha256: str
    """Hash of the compressed rows."""

    @property
    def end(self) -> int:
        return self.offset + HEADER_BYTES + self.size

    def read(self) -> list[Row]:
        """Read and verify the rows; raise RunDataError if they are damaged."""
        data = self.decompress()
        try:
            return decode_rows(data)
        except ValueError as error:
            raise RunDataError(f"the frame cannot be decoded: {error}") from None

    def decompress(self) -> bytes:
        """Read and verify the rows as text, without parsing it, which takes ten times as long."""
        data = self.read_bytes()[HEADER_BYTES:]
        try:
            if self.raw > MAX_FRAME_BYTES or zstandard.frame_content_size(data) != self.raw:
                raise RunDataError("the frame does not have the size that its header says")
            return zstandard.ZstdDecompressor().decompress(data)
        except zstandard.ZstdError as error:
            raise RunDataError(f"the frame cannot be decoded: {error}") from None

    def read_bytes(self) -> bytes:
        """Read header and compressed rows, and compare these with their hash."""
        with _open(self.file) as file:
            file.seek(self.offset)
            data = file.read(HEADER_BYTES + self.size)
        if hashlib.sha256(data[HEADER_BYTES:]).hexdigest() != self.sha256:
            raise RunDataError("the sha256 of the frame is wrong")
        return data


def encode_frame(kind: str, step: int, rows: Sequence[Row], level: int) -> bytes:
    """Encode rows as a frame with its header."""
    raw = encode_rows(rows)
    data = zstandard.ZstdCompressor(level=level, write_checksum=True).compress(raw)
    header = {
        "schema": SCHEMA,
        "kind": kind,
        "step": step,
        "rows": len(rows),
        "size": len(data),
        "raw": len(raw),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    text = json.dumps(add_check(header))
    return MAGIC + f"{text:{HEADER_BYTES - 9}}\n".encode() + data


def _decode_header(data: bytes, file: Path, offset: int) -> Frame | None:
    """Return the frame of a header, or None if it is damaged; raise if it has another schema."""
    if len(data) < HEADER_BYTES or not data.startswith(MAGIC) or not data.endswith(b"\n"):
        return None
    try:
        fields = parse_checked(data[len(MAGIC) :])
        if fields.pop("schema") != SCHEMA:
            raise RunError(
                f"{file} was written by another version of Glasshouse, whose rollouts have other fields. Read it "
                "with that version, or train again with another out=…."
            )
        frame = Frame(file=file, offset=offset, **fields)
        return frame if min(frame.step, frame.rows, frame.size, frame.raw) >= 0 else None
    except (RunDataError, KeyError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class LogContents:
    """The frames of a log, and the bytes that belong to none."""

    frames: list[Frame] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """Damaged bytes, from and to. Their frames are lost."""
    unfinished: int = 0
    """Bytes of an incomplete last frame: it is being written, or a crash cut it off."""

    @property
    def end(self) -> int:
        """Where the last frame or gap ends."""
        return max([0, *(f.end for f in self.frames[-1:]), *(end for _, end in self.gaps[-1:])])

    def position(self, end: int) -> dict[str, Any]:
        """What a checkpoint stores about the log up to `end`."""
        return {"bytes": end, "sha256": self.hash_frames(end).hexdigest()}

    def hash_frames(self, end: int) -> Any:
        """The hash of the hashes of all frames up to `end`; `update` adds further ones."""
        hashes = "".join(frame.sha256 for frame in self.frames if frame.end <= end)
        return hashlib.sha256(hashes.encode())

    def find_difference(self, position: dict[str, Any]) -> str:
        """Say what the log has lost since a checkpoint stored this position; empty if nothing. Gaps are
        damage by themselves."""
        if self.end < position["bytes"]:
            return f"has lost {position['bytes'] - self.end:,} bytes"
        if self.gaps or self.position(position["bytes"]) == position:
            return ""
        return "differs from what it was when the checkpoint was saved"


EMPTY_POSITION = LogContents().position(0)


def scan_log(file: Path) -> LogContents:
    """Find the frames of a log by their headers alone; a missing file has none."""
    contents, offset = LogContents(), 0
    if not file.exists():
        return contents
    with _open(file) as opened:
        size = os.fstat(opened.fileno()).st_size
        while offset < size:
            opened.seek(offset)
            header = opened.read(min(HEADER_BYTES, size - offset))
            frame = _decode_header(header, file, offset)
            if frame and frame.end <= size:
                contents.frames.append(frame)
                offset = frame.end
            elif frame or (len(header) < HEADER_BYTES and header[:8] == MAGIC[: len(header)]):
                return LogContents(contents.frames, contents.gaps, size - offset)
            else:
                end = _find_header(opened, file, offset + 1, size)
                contents.gaps.append((offset, end))
                offset = end
    return contents


def _find_header(opened: IO[bytes], file: Path, start: int, size: int) -> int:
    """Return where the next intact header begins, or the size of the file."""
    while start < size:
        opened.seek(start)
        data = opened.read(min(SEARCH_BYTES, size - start))
        place = data.find(MAGIC)
        if place < 0:
            start += max(1, len(data) - len(MAGIC) + 1)
            continue
        opened.seek(start + place)
        if _decode_header(opened.read(HEADER_BYTES), file, start + place):
            return start + place
        start += place + 1
    return size


def _open(file: Path) -> IO[bytes]:
    try:
        if not file.is_file() and file.exists():  # opening a FIFO would wait forever
            raise RunDataError(f"{file.name} is not a regular file")
        return open(file, "rb")  # the caller closes it
    except OSError as error:
        raise RunDataError(f"{file.name} cannot be read: {error.strerror}") from None


@dataclass(frozen=True, slots=True)
class LogSize:
    """The size of a rollout log, compressed and uncompressed."""

    bytes: int = 0
    raw: int = 0
    rows: int = 0
    frames: int = 0

    @classmethod
    def of(cls, frames: Sequence[Frame]) -> LogSize:
        return cls(
            bytes=sum(frame.end - frame.offset for frame in frames),
            raw=sum(frame.raw for frame in frames),
            rows=sum(frame.rows for frame in frames),
            frames=len(frames),
        )

    def __add__(self, other: LogSize) -> LogSize:
        return LogSize(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        """`1.1 MB, 11.8 MB raw`"""
        return f"{format_bytes(self.bytes)}, {format_bytes(self.raw)} raw"


# --- writing -----------------------------------------------------------------------------------


class RolloutLog:
    """Appends steps to a run's rollout log; the only writer of its file.

    Opening a log removes what a crash left at its end. Damage before that stays, and the reader reports it. So
    does damage of what the log held at a `saved` position, the newest checkpoint's: no crash leaves that. The writer
    keeps no list of frames, so that its memory does not grow with the run.

    Example:
        log = RolloutLog(run / "results" / LOG)
        log.append(rollouts)
        position = log.get_position()  # saved in a checkpoint
        log.truncate_to(position)      # on resume: removes everything appended since
    """

    end: int
    """Where the next frame begins."""
    size: LogSize

    def __init__(self, file: Path, level: int = 3, tokens_every: int = 1, saved: int = 0) -> None:
        self.file, self.level, self.tokens_every = file, level, tokens_every
        frames = scan_log(file).frames
        while frames and frames[-1].offset >= saved and not _is_intact(frames[-1]):
            frames.pop()
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
            flush_to_disk(file.parent)
        last = frames[-1].end if frames else 0
        self._truncate(max(last, min(saved, file.stat().st_size)))

    def append(self, rollouts: Sequence[Rollout]) -> int:
        """Write the rollouts of one step and kind as one frame; returns its size in bytes. If writing
        fails (a full disk), the log stays as it was before. `get_position` flushes it to disk."""
        step = rollouts[0].step
        with_tokens = self.tokens_every > 0 and step % self.tokens_every == 0
        rows = [to_row(rollout, with_tokens) for rollout in rollouts]
        data = encode_frame(kind_of(rollouts[0].split), step, rows, self.level)
        try:
            with open(self.file, "r+b", buffering=0) as file:
                file.truncate(self.end)  # if an append failed, and its removal too
                file.seek(self.end)
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
        except BaseException:
            with suppress(OSError):
                os.truncate(self.file, self.end)
            raise
        frame = _decode_header(data[:HEADER_BYTES], self.file, self.end)
        assert frame is not None
        self.end, self.size = frame.end, self.size + LogSize.of([frame])
        self._hash.update(frame.sha256.encode())
        return len(data)

    def get_position(self) -> dict[str, Any]:
        """Flush the log to disk and return where it ends: its size, and a hash of its frames' hashes."""
        flush_to_disk(self.file)
        return {"bytes": self.end, "sha256": self._hash.hexdigest()}

    def truncate_to(self, position: dict[str, Any]) -> None:
        """Remove everything appended after a position. What the log has lost before it becomes zeros, so that
        it stays known as damage."""
        difference = scan_log(self.file).find_difference(position)
        if difference.startswith("differs"):
            raise RunDataError(
                f"{self.file} {difference}: it was changed, or belongs to another run. Restore the file."
            )
        self._truncate(position["bytes"])

    def _truncate(self, end: int) -> None:
        with open(self.file, "r+b") as file:
            file.truncate(end)
            os.fsync(file.fileno())
        contents = scan_log(self.file)
        self.end, self.size = contents.end, LogSize.of(contents.frames)
        self._hash: Any = contents.hash_frames(self.end)


def _is_intact(frame: Frame) -> bool:
    with suppress(RunDataError):
        return bool(frame.read_bytes())
    return False


# --- reading -----------------------------------------------------------------------------------


class RolloutReader:
    """Reads the rows of a rollout log, also of a run that is training, and collects what is damaged.

    It verifies each frame before it yields a row of it, holds one in memory at a time, and skips those that are
    not selected. `damage` and `unfinished` are complete once `iter_rows` is exhausted.

    Example:
        reader = RolloutReader("runs/try")
        wrong = list(reader.iter_rows(RolloutFilter(correct=False)))
        for damage in reader.damage: print(damage)
    """

    def __init__(self, path: Path | str) -> None:
        """`path` is a run directory, or its rollout log."""
        self.file = find_log(Path(path))
        self.damage: list[str] = []
        self.unfinished = ""
        """Says how much follows the last frame: a step being written, or left by a crash."""

    def iter_rows(self, query: RolloutFilter = RolloutFilter()) -> Iterator[Row]:  # noqa: B008  # frozen
        """Yield matching rows in the order of writing. Damaged frames are left out and added to `damage`."""
        for rows in self._read_frames(query, Frame.read):
            yield from filter(query.matches, rows)

    def verify(self, *, frames: bool) -> None:
        """Add all damage to `damage`; without `frames` only that of headers."""
        query = RolloutFilter(last_step=math.inf if frames else -1)
        for _ in self._read_frames(query, Frame.decompress):
            pass

    def _read_frames(self, query: RolloutFilter, read: Callable[[Frame], T]) -> Iterator[T]:
        contents = scan_log(self.file)
        self.damage = [
            f"{format_bytes(end - start)} at byte {start:,} cannot be read"
            for start, end in contents.gaps
        ]
        self.unfinished = ""
        if contents.unfinished:
            self.unfinished = (
                f"{self.file.name} ends with {format_bytes(contents.unfinished)} of a frame"
            )
        for frame in contents.frames:
            if not query.selects_frame(frame.kind, frame.step):
                continue
            try:
                yield read(frame)
            except RunDataError as error:
                self.damage.append(
                    f"{frame.kind}, step {frame.step}: {error} ({frame.rows} rows lost)"
                )

    def raise_if_damaged(self) -> None:
        if self.damage:
            raise RunDataError(
                f"The rollout log {self.file} is damaged: {self.damage[0]}. "
                "`glasshouse rollouts` shows what can be read."
            )


def find_log(path: Path) -> Path:
    """Return the rollout log of a run directory, or `path` itself if it is a file; raise if neither is there."""
    if path.is_dir():
        log = path / "results" / LOG
        if not log.exists():
            raise RunError(f"{path} is not a run directory with a rollout log: it has no {log}.")
        return log
    if not path.exists():
        raise RunError(f"There is no rollout log to read: {path} does not exist.")
    return path


def read_rows(path: Path | str, *splits: str, after: int = -1) -> Iterator[Row]:
    """Yield the rows of these splits (default: all) at steps after `after`; raise if any is damaged.

    Example: `read_rows("runs/try", "train")`
    """
    reader = RolloutReader(path)
    for row in reader.iter_rows(RolloutFilter(splits=splits, first_step=after + 1)):
        reader.raise_if_damaged()
        yield row
    reader.raise_if_damaged()
