"""Reads the rollout log frame by frame, and reports what cannot be read.

The reader only reads frames that the manifest lists, so it can read a run that is still being
written. It verifies each frame (sha256, zstd checksum, row count, step) before it yields a row, and
holds one step in memory at a time. It skips steps that are not selected without reading them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import InitVar, dataclass, field
from pathlib import Path

from glasshouse.errors import RunDataError, RunError
from glasshouse.runs.manifest import (
    MANIFEST,
    SUFFIX,
    ManifestEntry,
    format_bytes,
    kind_of,
    read_manifest,
    split_frames,
)
from glasshouse.runs.rows import Row, decode_rows
from glasshouse.runs.run_directory import load_metrics
from glasshouse.terminal import count_noun


@dataclass(frozen=True, slots=True)
class Damage:
    """A part of the log that cannot be read."""

    kind: str
    step: int | None
    reason: str

    def __str__(self) -> str:
        return f"{self.kind}{'' if self.step is None else f', step {self.step}'}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFilter:
    """Selects rows; a field at its default selects all.

    Example: `RolloutFilter(splits=("train",), first_step=10, correct=False, text="carry")`
    """

    splits: tuple[str, ...] = ()
    """`validation` selects `validation/greedy` and every other part of it."""
    first_step: int = 0
    last_step: float = math.inf
    task: str = ""
    key: str = ""
    group: int | None = None
    correct: bool | None = None
    rule: str = ""
    min_reward: float = -math.inf
    max_reward: float = math.inf
    text: str = ""
    """Case-insensitive substring of the question or the completion."""
    pattern: re.Pattern[str] | None = None
    """Regular expression found in the question or the completion."""

    def selects_frame(self, kind: str, step: int) -> bool:
        """Can a frame of this kind and step have matching rows?"""
        kinds = {kind_of(split) for split in self.splits}
        return (not kinds or kind in kinds) and self.first_step <= step <= self.last_step

    def matches(self, row: Row) -> bool:
        split = row["split"]
        if self.splits and not any(s == split or split.startswith(f"{s}/") for s in self.splits):
            return False
        for name in ("task", "key", "rule"):
            value = getattr(self, name)
            if value and row[name] != value:
                return False
        if self.group is not None and row["group"] != self.group:
            return False
        if self.correct is not None and row["correct"] is not self.correct:
            return False
        if not self.min_reward <= row["reward"] <= self.max_reward:
            return False
        texts = (row["question"], row["text"])
        if self.text and not any(self.text.casefold() in text.casefold() for text in texts):
            return False
        return self.pattern is None or any(self.pattern.search(text) for text in texts)


@dataclass(slots=True)
class RolloutReader:
    """Reads the rows of a rollout log and collects damage.

    `damage` and `unfinished` are complete once `iter_rows` is exhausted.

    Example:
        reader = RolloutReader("runs/try")  # or its folder results/rollouts
        wrong = list(reader.iter_rows(RolloutFilter(correct=False)))
        for damage in reader.damage: print(damage)
    """

    path: InitVar[Path | str]
    """A run directory, or the folder of its rollout log."""
    folder: Path = field(init=False)
    damage: list[Damage] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    """Data after the last listed frame: a step being written, or left by a crash."""

    def __post_init__(self, path: Path | str) -> None:
        self.folder = find_log_folder(Path(path))

    def iter_rows(self, query: RolloutFilter = RolloutFilter()) -> Iterator[Row]:  # noqa: B008  # frozen
        """Yield matching rows in the order of writing. Damaged frames are left out and added to `damage`."""
        self.damage, self.unfinished = [], []
        # Sizes before the manifest: what is appended from here on is not read.
        sizes = {path: path.stat().st_size for path in sorted(self.folder.glob(f"*{SUFFIX}"))}
        lines = read_manifest(self.folder)
        if lines and lines[-1].is_incomplete:
            self.unfinished.append(f"the last line of {MANIFEST} is incomplete")
            lines.pop()
        for number, line in enumerate(lines, 1):
            if line.entry is None:
                self.damage.append(Damage("manifest", None, f"line {number} is damaged"))
            elif query.selects_frame(line.entry.kind, line.entry.step):
                yield from filter(query.matches, self._read_frame(line.entry))
        entries = [line.entry for line in lines if line.entry]
        for path, size in sizes.items():
            unlisted = self._read_unlisted(path, size, entries, query)
            yield from filter(query.matches, unlisted)

    def verify(self, frames: bool = True) -> list[Damage]:
        """Return the damage of the manifest and, with `frames`, of the whole log."""
        for _ in self.iter_rows(RolloutFilter(last_step=math.inf if frames else -1)):
            pass
        return self.damage

    def _read_frame(self, entry: ManifestEntry) -> list[Row]:
        """Return the rows of one frame, or none if it is damaged."""
        try:
            return entry.read(self.folder)
        except RunDataError as error:
            lost = f"{error} ({entry.rows} rows lost)"
            self.damage.append(Damage(entry.kind, entry.step, lost))
            return []

    def _read_unlisted(
        self, path: Path, size: int, entries: list[ManifestEntry], query: RolloutFilter
    ) -> Iterator[Row]:
        """Yield the rows of frames between listed ones, whose manifest lines are damaged. Unlisted
        data at the end of the file is reported only: it is unfinished."""
        position = 0
        listed = sorted((e.offset, e.end) for e in entries if e.file == path.name)
        for start, end in [*listed, (size, size)]:
            if position < start <= size:
                with open(path, "rb") as file:
                    file.seek(position)
                    data = file.read(start - position)
                yield from self._read_gap(path.name, position, data, start == size, query)
            position = max(position, end)

    def _read_gap(
        self, name: str, position: int, data: bytes, is_last: bool, query: RolloutFilter
    ) -> Iterator[Row]:
        frames, rest = split_frames(data)
        # With a damaged manifest line, this may be that line's frame.
        manifest_damaged = any(damage.kind == "manifest" for damage in self.damage)
        unlisted = f"{format_bytes(len(data))} not listed in {MANIFEST}"
        if is_last and not manifest_damaged and (not frames or (len(frames) == 1 and not rest)):
            self.unfinished.append(f"{name} ends with {unlisted}")
            return
        kind = name.removesuffix(SUFFIX)
        reason = f"{unlisted} at byte {position:,}; {len(frames)} frames of it can be read"
        self.damage.append(Damage(kind, None, reason))
        for row in (row for frame in frames for row in decode_rows(frame)):
            if query.selects_frame(kind, row["step"]):
                yield row


def find_log_folder(path: Path) -> Path:
    """Return the rollout log of a run directory, or `path` itself if it is one; raise if neither."""
    log = path / "results" / "rollouts"
    if log.is_dir():
        return log
    if not path.is_dir():
        raise RunError(f"There is no rollout log to read: {path} does not exist.")
    names = [entry.name for entry in path.iterdir() if not entry.name.startswith(".")]
    if names and not any(name == MANIFEST or name.endswith(SUFFIX) for name in names):
        raise RunError(
            f"{path} is neither a run directory with results/rollouts nor a rollout log: it has no "
            f"{MANIFEST}."
        )
    return path


def read_rows(folder: Path | str, *splits: str, after: int = -1) -> Iterator[Row]:
    """Yield the rows of these splits (default: all) at steps after `after`; raise if any is damaged.

    Example: `read_rows(run / "results" / "rollouts", "train")`
    """
    reader = RolloutReader(folder)
    for row in reader.iter_rows(RolloutFilter(splits=splits, first_step=after + 1)):
        _raise_if_damaged(reader)
        yield row
    _raise_if_damaged(reader)


def _raise_if_damaged(reader: RolloutReader) -> None:
    if reader.damage:
        raise RunDataError(
            f"The rollout log {reader.folder} is damaged: {reader.damage[0]}. "
            "`glasshouse rollouts` shows what can be read."
        )


def find_missing_steps(run: Path, reader: RolloutReader) -> list[Damage]:
    """Find steps that are in the run's metrics but not in its rollout log. A step is logged before
    its metrics are, so an undamaged run has none, even while it is running."""
    steps = {row["step"] for row in load_metrics(run)}
    entries = [line.entry for line in read_manifest(reader.folder)]
    missing = sorted(steps - {e.step for e in entries if e and e.kind == "train"})
    verb = "is" if len(missing) == 1 else "are"
    reason = (
        f"{count_noun(len(missing), 'step')} {verb} in metrics.jsonl but not in the rollout log"
    )
    return [Damage("train", missing[0], reason)] if missing else []
