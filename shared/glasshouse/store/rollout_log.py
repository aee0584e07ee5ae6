"""The record: every prompt sent and every completion received, whole.

One file a kind (`train.jsonl.zst`, `validation.jsonl.zst`, `replaced.jsonl.zst`). Each step is one
zstd frame of JSON lines with a checksum of its own, and a line in `manifest.jsonl` that says where
it lies. The line is written after the frame is on disk, so that a line is a promise, and a frame
without a line is the tail of a crash. docs/record.md has the format.
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

from glasshouse.errors import RecordError
from glasshouse.store.atomic_files import sync_folder, write_bytes, write_json
from glasshouse.store.frames import whole_frames
from glasshouse.store.manifest import MANIFEST, SUFFIX, Entry, Line, Storage, read_manifest, size
from glasshouse.store.rollout_rows import encode, row
from glasshouse.types import Rollout

REWIND = "rewind.json"
"""While it is there, a rewind to the position that it holds is under way."""

START: dict[str, Any] = {"lines": 0, "sha256": hashlib.sha256().hexdigest(), "bytes": {}}
"""The position before anything was appended."""


class RolloutLog:
    """Appends steps to a run's record; the only writer of its folder.

    Opening a folder cuts off what a crash left behind; `repairs` says what. Nothing else is cut: a
    frame damaged in the middle stays where it is, for the reader to report.

    Example:
        log = RolloutLog(run / "results" / "rollouts")
        log.append("train", step=1, rollouts=rollouts)
        here = log.position()   # goes into a checkpoint
        log.rewind(here)        # on resume: as if nothing had been appended since
    """

    def __init__(self, folder: Path, level: int = 3, tokens_every: int = 1) -> None:
        self.folder = folder
        self.tokens_every = tokens_every
        self.compressor = zstandard.ZstdCompressor(level=level, write_checksum=True)
        self.repairs: list[str] = []
        self.torn = False
        if not folder.is_dir():
            folder.mkdir(parents=True)
            sync_folder(folder.parent)
        self._open()

    def append(self, kind: str, step: int, rollouts: Sequence[Rollout]) -> int:
        """Write one step as one frame; returns the bytes it took. If it fails (a full disk), the
        record is as it was before."""
        if self.torn:
            self._open()
        tokens = self.tokens_every > 0 and step % self.tokens_every == 0
        raw = encode(row(r, tokens) for r in rollouts)
        frame = self.compressor.compress(raw)
        entry = Entry(
            kind=kind,
            step=step,
            rows=len(rollouts),
            offset=self.sizes.get(f"{kind}{SUFFIX}", 0),
            bytes=len(frame),
            raw=len(raw),
            sha256=hashlib.sha256(frame).hexdigest(),
        )
        line = entry.line()
        try:
            self._write(entry.file, frame)
            self._write(MANIFEST, line)
        except BaseException:
            self.torn = True
            with suppress(
                OSError, RecordError
            ):  # if it cannot be mended now, the next append or opening does
                self._open()
            raise
        self._count(line, entry)
        return len(frame)

    def position(self) -> dict[str, Any]:
        """Where the record ends now: lines and sha256 of the manifest, bytes of every file."""
        if self.torn:
            self._open()
        return {
            "lines": self.lines,
            "sha256": self.digest.hexdigest(),
            "bytes": dict(sorted(self.sizes.items())),
        }

    def rewind(self, position: dict[str, Any]) -> list[Entry]:
        """Cut everything back to a position taken earlier; returns what was removed. A crash on
        the way is finished by the next opening."""
        if self.torn:
            self._open()
        self._check(position)
        removed = [line.entry for line in read_manifest(self.folder)[position["lines"] :]]
        write_json(self.folder / REWIND, position)
        self._open()
        return [entry for entry in removed if entry]

    # --- opening ---------------------------------------------------------------------------

    def _open(self) -> None:
        """Finish a rewind, cut off the tail of a crash, and take stock."""
        for aside in self.folder.glob(".*.tmp"):
            aside.unlink()
        if (self.folder / REWIND).exists():
            position = json.loads((self.folder / REWIND).read_text())
            self._check(position)
            self._cut(position["bytes"])
            (self.folder / REWIND).unlink()
            sync_folder(self.folder)
        lines = read_manifest(self.folder)
        kept = self._whole(lines)
        ends: dict[str, int] = {}
        for line in kept:
            if line.entry:
                ends[line.entry.file] = max(ends.get(line.entry.file, 0), line.entry.end)
        self._refuse_to_lose(ends)
        if kept != lines[: len(kept)]:  # a line in the middle goes: its frame is not there
            write_bytes(self.folder / MANIFEST, b"".join(line.text for line in kept))
        self._cut({MANIFEST: sum(len(line.text) for line in kept), **ends}, say=True)
        self.lines, self.digest, self.storage = 0, hashlib.sha256(), Storage()
        self.sizes: dict[str, int] = {}
        for line in kept:
            self._count(line.text, line.entry)
        self.torn = False

    def _whole(self, lines: list[Line]) -> list[Line]:
        """The lines to keep: no torn ones at the end, and each kind back to its last whole frame."""
        kept = list(lines)
        while kept and kept[-1].entry is None:
            kept.pop()
        for kind in sorted({line.entry.kind for line in kept if line.entry}):
            ours = [line for line in kept if line.entry and line.entry.kind == kind]
            while ours and ours[-1].entry and not self._there(ours[-1].entry):
                lost = ours.pop()
                kept.remove(lost)
                self.repairs.append(
                    f"{kind}, step {lost.entry.step if lost.entry else '?'}: its frame is not whole, "
                    "and its line was taken out of the manifest"
                )
        return kept

    def _there(self, entry: Entry) -> bool:
        with suppress(FileNotFoundError), open(self.folder / entry.file, "rb") as file:
            file.seek(entry.offset)
            return entry.holds(file.read(entry.bytes))
        return False

    def _refuse_to_lose(self, ends: dict[str, int]) -> None:
        """A crash leaves at most one frame without a line. More than that is a manifest that has
        lost lines, and cutting would destroy what can still be read."""
        for path in self.folder.glob(f"*{SUFFIX}"):
            with open(path, "rb") as file:
                file.seek(ends.get(path.name, 0))
                frames, rest = whole_frames(file.read(), most=2)
                if len(frames) == 2 or (frames and rest):
                    raise RecordError(
                        f"{path} holds frames that {MANIFEST} beside it does not know, more than a crash "
                        f"can leave: the manifest has lost lines. Put it back from a copy, or move both "
                        "away; nothing was changed."
                    )

    # --- files -----------------------------------------------------------------------------

    def _write(self, name: str, data: bytes) -> None:
        """Append and make it last, the file's own name included."""
        path = self.folder / name
        new = not path.exists()
        with open(path, "ab", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
            os.fsync(file.fileno())
        if new:
            sync_folder(self.folder)

    def _count(self, line: bytes, entry: Entry | None) -> None:
        self.lines += 1
        self.digest.update(line)
        self.sizes[MANIFEST] = self.sizes.get(MANIFEST, 0) + len(line)
        if entry:
            self.sizes[entry.file] = entry.end
            self.storage += entry

    def _check(self, position: dict[str, Any]) -> None:
        """Nothing can be rewound to what is not there."""
        for name, end in position["bytes"].items():
            path = self.folder / name
            here = path.stat().st_size if path.exists() else 0
            if here < end:
                raise RecordError(
                    f"{path} is shorter ({size(here)}) than it was when the checkpoint was saved "
                    f"({size(end)}): the record cannot be cut back to it. Take an older checkpoint, "
                    "or put the file back."
                )
        end = position["bytes"].get(MANIFEST, 0)
        begins = (self.folder / MANIFEST).read_bytes()[:end] if end else b""
        if hashlib.sha256(begins).hexdigest() != position["sha256"]:
            raise RecordError(
                f"{self.folder / MANIFEST} does not begin as it did when the checkpoint was saved: "
                "the record is another run's, or was changed. Put the file back."
            )

    def _cut(self, sizes: dict[str, int], say: bool = False) -> None:
        """Shorten files to these sizes; those not named go. The manifest first, so that at no
        moment it promises what is gone. Shortening needs no space, and is done or not done."""
        for path in [self.folder / MANIFEST, *sorted(self.folder.glob(f"*{SUFFIX}"))]:
            wanted, here = sizes.get(path.name, 0), path.stat().st_size if path.exists() else 0
            if say and here > wanted:
                self.repairs.append(f"{size(here - wanted)} at the end of {path.name} were cut off")
            if not wanted:
                path.unlink(missing_ok=True)
            elif here > wanted:
                with open(path, "r+b") as file:
                    file.truncate(wanted)
                    os.fsync(file.fileno())
        sync_folder(self.folder)
