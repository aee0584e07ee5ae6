"""Reading a record, frame by frame: what was asked for, and what could not be read.

Only frames that the manifest promises are read, so that a run may be read while it is written, and
each is checked (sha256, zstd's own checksum, row count, step) before a row of it is handed out. Memory is
that of one step, whatever the run's length; steps that are not wanted are not read.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glasshouse.errors import RecordError, RunError
from glasshouse.store.frames import checked, whole_frames
from glasshouse.store.manifest import MANIFEST, SUFFIX, Entry, read_manifest, size
from glasshouse.store.rollout_rows import decode

Row = dict[str, Any]
KINDS = ("train", "validation", "replaced")


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that should be in the record and cannot be read."""

    kind: str
    step: int | None
    why: str

    def __str__(self) -> str:
        return f"{self.kind}{'' if self.step is None else f', step {self.step}'}: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which rows; what is left at its default does not matter.

    Example: `Query(kinds=("train",), first=10, last=20, correct=False, text="carry")`
    """

    kinds: tuple[str, ...] = ()
    first: int = 0
    last: float = math.inf
    split: str = ""
    task: str = ""
    key: str = ""
    group: int | None = None
    correct: bool | None = None
    rule: str = ""
    lowest: float = -math.inf
    highest: float = math.inf
    text: str = ""
    """Stands in the question or the completion, whatever its case."""
    pattern: re.Pattern[str] | None = None
    """Is found in the question or the completion."""

    def wants(self, kind: str, step: int) -> bool:
        """Whether a frame can hold such rows at all."""
        return (not self.kinds or kind in self.kinds) and self.first <= step <= self.last

    def matches(self, row: Row) -> bool:
        for name in ("split", "task", "key", "rule"):
            wanted = getattr(self, name)
            if wanted and row[name] != wanted:
                return False
        if self.group is not None and row["group"] != self.group:
            return False
        if self.correct is not None and row["correct"] is not self.correct:
            return False
        if not self.lowest <= row["reward"] <= self.highest:
            return False
        texts = (row["question"], row["completion"])
        if self.text and not any(self.text.casefold() in text.casefold() for text in texts):
            return False
        return self.pattern is None or any(self.pattern.search(text) for text in texts)


@dataclass(slots=True)
class Reader:
    """Rows of a record, and what of it is damaged.

    `damage` and `unfinished` are complete once `rows` has been read to its end.

    Example:
        reader = Reader(run / "results" / "rollouts")
        wrong = list(reader.rows(Query(correct=False)))
        for damage in reader.damage: print(damage)
    """

    folder: Path
    damage: list[Damage] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    """What follows the last promised frame: a step being written, or the tail of a crash."""

    def rows(self, query: Query = Query()) -> Iterator[Row]:  # noqa: B008  # frozen
        """Matching rows, in the order in which they were recorded, each with its `kind`. What can
        be read of a damaged record is yielded too; the rest is in `damage`."""
        self.damage, self.unfinished = [], []
        if not self.folder.is_dir():
            raise RunError(f"{self.folder} does not exist: there is no record to read.")
        # sizes before the manifest: whatever is appended meanwhile is then no business of ours
        sizes = {path: path.stat().st_size for path in sorted(self.folder.glob(f"*{SUFFIX}"))}
        lines = read_manifest(self.folder)
        if lines and lines[-1].torn:
            self.unfinished.append(f"{MANIFEST} ends within a line")
            lines.pop()
        for number, line in enumerate(lines, 1):
            if line.entry is None:
                self.damage.append(Damage("manifest", None, f"line {number} cannot be trusted"))
            elif query.wants(line.entry.kind, line.entry.step):
                yield from filter(query.matches, self._frame(line.entry))
        entries = [line.entry for line in lines if line.entry]
        for path, end in sizes.items():
            yield from filter(query.matches, self._unpromised(path, end, entries, query))

    def _frame(self, entry: Entry) -> list[Row]:
        """The rows of one frame, or none and the reason."""
        try:
            with open(self.folder / entry.file, "rb") as file:
                file.seek(entry.offset)
                frame = file.read(entry.bytes)
            rows = checked(entry, frame)
        except FileNotFoundError:
            return self._damaged(entry, f"{entry.file} is missing")
        except OSError as error:
            return self._damaged(entry, f"{entry.file} cannot be read: {error.strerror}")
        except RecordError as error:
            return self._damaged(entry, str(error))
        return [{"kind": entry.kind, **row} for row in rows]

    def _damaged(self, entry: Entry, why: str) -> list[Row]:
        self.damage.append(Damage(entry.kind, entry.step, f"{why} ({entry.rows} rows lost)"))
        return []

    def _unpromised(
        self, path: Path, end: int, entries: list[Entry], query: Query
    ) -> Iterator[Row]:
        """What lies in a file beside the promised frames: the frames of manifest lines that cannot
        be trusted, which are read, and at the end what is not finished, which is not."""
        at, promised = 0, sorted((e.offset, e.end) for e in entries if e.file == path.name)
        for low, high in [*promised, (end, end)]:
            if at < low <= end:
                with open(path, "rb") as file:
                    file.seek(at)
                    data = file.read(low - at)
                yield from self._gap(path.name, at, data, low == end, query)
            at = max(at, high)

    def _gap(self, name: str, at: int, data: bytes, last: bool, query: Query) -> Iterator[Row]:
        frames, rest = whole_frames(data)
        known = any(d.kind == "manifest" for d in self.damage)  # then it may be that line's frame
        if last and not known and (not frames or (len(frames) == 1 and not rest)):
            more = size(len(data))
            self.unfinished.append(f"{name} ends with {more} that {MANIFEST} does not promise")
            return
        kind = name.removesuffix(SUFFIX)
        self.damage.append(
            Damage(kind, None, f"{MANIFEST} does not promise {size(len(data))} at byte {at:,}; "
                   f"{len(frames)} frames of it can be read")
        )  # fmt: skip
        for row in (row for frame in frames for row in decode(frame)):
            if query.wants(kind, row["step"]):
                yield {"kind": kind, **row}


def read(folder: Path, *kinds: str, after: int = -1) -> Iterator[Row]:
    """The rows of these kinds at steps after `after`; damage is an error that says where.

    Example: `read(run / "results" / "rollouts", "train")`
    """
    reader = Reader(folder)
    for row in reader.rows(Query(kinds=kinds, first=after + 1)):
        _raise_damage(reader)
        yield row
    _raise_damage(reader)


def _raise_damage(reader: Reader) -> None:
    if reader.damage:
        raise RecordError(
            f"The record {reader.folder} is damaged: {reader.damage[0]}. "
            "`glasshouse rollouts` shows what can be read of it."
        )


def lost_steps(run: Path, reader: Reader) -> Iterable[Damage]:
    """Steps that the run's metrics know and its record does not. A step is recorded before its
    metrics are, so that in a healthy run, even a running one, there are none."""
    try:
        lines = (run / "results" / "metrics.jsonl").read_bytes().split(b"\n")[:-1]
        known = {json.loads(line)["step"] for line in lines}
    except (OSError, ValueError, KeyError, TypeError):
        return
    recorded = {
        line.entry.step
        for line in read_manifest(reader.folder)
        if line.entry and line.entry.kind == "train"
    }
    lost = sorted(known - recorded)
    if lost:
        yield Damage(
            "train", lost[0], f"{len(lost)} steps are in metrics.jsonl and not in the record"
        )
