"""The rollout log's writer: stores every prompt and completion of a run.

There is one file per kind of rollout, which is the first part of its split (`train.jsonl.zst`,
`validation.jsonl.zst`, `discarded.jsonl.zst`). Each step is one zstd frame of JSON lines, listed by a
line in `manifest.jsonl`. The line is written only after the frame is on disk, so a frame without a line
was left by a crash. docs/runs.md describes the format.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import zstandard

from glasshouse.checksums import read_regular_file
from glasshouse.errors import RunDataError
from glasshouse.files import fsync_directory, write_bytes, write_json
from glasshouse.runs.manifest import (
    MANIFEST,
    SUFFIX,
    LogSize,
    ManifestEntry,
    ManifestLine,
    format_bytes,
    kind_of,
    read_manifest,
    split_frames,
)
from glasshouse.runs.rows import encode_rows, to_row
from glasshouse.types import Rollout

TRUNCATE = "truncate.json"
"""Holds the target position while a truncation is in progress."""

EMPTY_POSITION: dict[str, Any] = {"lines": 0, "sha256": hashlib.sha256().hexdigest(), "bytes": {}}
"""The position of an empty log."""


class RolloutLog:
    """Appends steps to a run's rollout log; the only writer of its folder.

    Opening a log removes what a crash left at the end of its files; `repairs` lists what was
    removed. Damage in the middle of a file stays, and the reader reports it. So does damage of
    what the log held at a `saved` position, the newest checkpoint's: no crash leaves that.

    Example:
        log = RolloutLog(run / "results" / "rollouts")
        log.append(rollouts)
        position = log.get_position()  # saved in a checkpoint
        log.truncate_to(position)      # on resume: removes everything appended since
    """

    def __init__(
        self,
        folder: Path,
        compression_level: int = 3,
        tokens_every: int = 1,
        saved: dict[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        self.saved = saved or EMPTY_POSITION
        self.tokens_every = tokens_every
        self.compressor = zstandard.ZstdCompressor(level=compression_level, write_checksum=True)
        self.repairs: list[str] = []
        self.needs_recovery = False
        if not folder.is_dir():
            folder.mkdir(parents=True)
            fsync_directory(folder.parent)
        self._validate_manifest(self.saved)
        self._recover()

    def append(self, rollouts: Sequence[Rollout]) -> int:
        """Write the rollouts of one step and kind as one frame; returns its size in bytes. If writing
        fails (a full disk), the log stays as it was before."""
        self._recover_if_needed()
        kind, step = kind_of(rollouts[0].split), rollouts[0].step
        with_tokens = self.tokens_every > 0 and step % self.tokens_every == 0
        raw = encode_rows(to_row(r, with_tokens) for r in rollouts)
        frame = self.compressor.compress(raw)
        entry = ManifestEntry(
            kind=kind,
            step=step,
            rows=len(rollouts),
            offset=self.file_sizes.get(f"{kind}{SUFFIX}", 0),
            bytes=len(frame),
            raw=len(raw),
            sha256=hashlib.sha256(frame).hexdigest(),
        )
        line = entry.to_line()
        try:
            self._append_bytes(entry.file, frame)
            self._append_bytes(MANIFEST, line)
        except BaseException:
            self.needs_recovery = True
            with suppress(OSError, RunDataError):  # else the next append or opening recovers
                self._recover()
            raise
        self._count_line(line, entry)
        return len(frame)

    def get_position(self) -> dict[str, Any]:
        """Return where the log ends: lines and sha256 of the manifest, size of every file."""
        self._recover_if_needed()
        return {
            "lines": self.lines,
            "sha256": self.digest.hexdigest(),
            "bytes": dict(sorted(self.file_sizes.items())),
        }

    def truncate_to(self, position: dict[str, Any]) -> list[ManifestEntry]:
        """Remove everything appended after a position; returns the entries removed. If a crash
        interrupts this, the next opening completes it."""
        self._recover_if_needed()
        self._validate_position(position)
        removed = [line.entry for line in read_manifest(self.folder)[position["lines"] :]]
        write_json(self.folder / TRUNCATE, position)
        self._recover()
        return [entry for entry in removed if entry]

    # --- recovery --------------------------------------------------------------------------

    def _recover_if_needed(self) -> None:
        if self.needs_recovery:
            self._recover()

    def _recover(self) -> None:
        """Complete a truncation, remove what a crash left, and count what the log holds."""
        for temporary in self.folder.glob(".*.tmp"):
            temporary.unlink()
        if (self.folder / TRUNCATE).exists():
            position = json.loads((self.folder / TRUNCATE).read_text())
            self._validate_position(position)
            self._truncate_files(position["bytes"])
            (self.folder / TRUNCATE).unlink()
            fsync_directory(self.folder)
        all_lines = read_manifest(self.folder)
        lines = self._drop_incomplete(all_lines)
        ends: dict[str, int] = {}
        for line in lines:
            if line.entry:
                ends[line.entry.file] = max(ends.get(line.entry.file, 0), line.entry.end)
        self._refuse_unlisted_frames(ends)
        if lines != all_lines[: len(lines)]:  # a line before the last one was dropped
            write_bytes(self.folder / MANIFEST, b"".join(line.text for line in lines))
        sizes = {MANIFEST: sum(len(line.text) for line in lines), **ends}
        self.repairs += self._truncate_files(sizes)
        self.lines, self.digest, self.size = 0, hashlib.sha256(), LogSize()
        self.file_sizes: dict[str, int] = {}
        for line in lines:
            self._count_line(line.text, line.entry)
        self.needs_recovery = False

    def _drop_incomplete(self, lines: list[ManifestLine]) -> list[ManifestLine]:
        """Drop damaged lines at the end, and each kind's last lines whose frames are not intact."""
        saved, lines = lines[: self.saved["lines"]], list(lines[self.saved["lines"] :])
        while lines and lines[-1].entry is None:
            lines.pop()
        for kind in sorted({line.entry.kind for line in lines if line.entry}):
            for line in [ln for ln in lines if ln.entry and ln.entry.kind == kind][::-1]:
                if line.entry is None or self._has_frame(line.entry):
                    break
                lines.remove(line)
                self.repairs.append(
                    f"removed {kind}, step {line.entry.step} from {MANIFEST}: its frame is incomplete"
                )
        return saved + lines

    def _has_frame(self, entry: ManifestEntry) -> bool:
        with suppress(FileNotFoundError), open(self.folder / entry.file, "rb") as file:
            file.seek(entry.offset)
            return entry.matches(file.read(entry.bytes))
        return False

    def _refuse_unlisted_frames(self, ends: dict[str, int]) -> None:
        """Raise if a file has more frames without a line than a crash can leave, which is one: the
        manifest has lost lines, and truncating would destroy frames that can still be read."""
        for path in self.folder.glob(f"*{SUFFIX}"):
            with open(path, "rb") as file:
                file.seek(ends.get(path.name, 0))
                frames, rest = split_frames(file.read(), limit=2)
            if len(frames) == 2 or (frames and rest):
                raise RunDataError(
                    f"{path} has frames that {MANIFEST} does not list, more than a crash can leave, "
                    f"so {MANIFEST} has lost lines. Restore it from a backup, or move the folder "
                    "away to start an empty log. Nothing was changed."
                )

    # --- files -----------------------------------------------------------------------------

    def _append_bytes(self, name: str, data: bytes) -> None:
        """Append to a file and flush it, and the folder too if the file is new."""
        path = self.folder / name
        is_new = not path.exists()
        with open(path, "ab", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
            os.fsync(file.fileno())
        if is_new:
            fsync_directory(self.folder)

    def _count_line(self, line: bytes, entry: ManifestEntry | None) -> None:
        self.lines += 1
        self.digest.update(line)
        self.file_sizes[MANIFEST] = self.file_sizes.get(MANIFEST, 0) + len(line)
        if entry:
            self.file_sizes[entry.file] = entry.end
            self.size += entry

    def _validate_position(self, position: dict[str, Any]) -> None:
        """Raise if the log does not begin with what it held at this position. Frames that are lost
        are no reason: the reader reports them."""
        for name, end in position["bytes"].items():
            path = self.folder / name
            size = path.stat().st_size if path.exists() else 0
            if size < end:
                raise RunDataError(
                    f"{path} has {format_bytes(size)}, fewer than when the checkpoint was saved "
                    f"({format_bytes(end)}). Resume from an older checkpoint, or restore the file."
                )
        self._validate_manifest(position)

    def _validate_manifest(self, position: dict[str, Any]) -> None:
        end = position["bytes"].get(MANIFEST, 0)
        try:
            start = read_regular_file(self.folder / MANIFEST)[:end] if end else b""
        except OSError:
            start = b""
        if hashlib.sha256(start).hexdigest() != position["sha256"]:
            raise RunDataError(
                f"{self.folder / MANIFEST} differs from what it was when the checkpoint was saved: "
                "it was changed, or belongs to another run. Restore the file."
            )

    def _truncate_files(self, sizes: dict[str, int]) -> list[str]:
        """Truncate files to these sizes, delete those not named, and describe what was removed.

        The manifest is first, so that it never lists a frame that is already removed. Truncating
        needs no free space.
        """
        removed = []
        existing = {path.name for path in self.folder.glob(f"*{SUFFIX}")}
        for name in [MANIFEST, *sorted(existing | sizes.keys() - {MANIFEST})]:
            path = self.folder / name
            new, old = sizes.get(path.name, 0), path.stat().st_size if path.exists() else 0
            if old > new:
                removed.append(f"removed {format_bytes(old - new)} at the end of {path.name}")
            if not new:
                path.unlink(missing_ok=True)
            elif old != new:  # shorter: a saved frame is lost; zeros keep the others in place
                with open(path, "r+b" if old else "wb") as file:
                    file.truncate(new)
                    os.fsync(file.fileno())
        fsync_directory(self.folder)
        return removed
