"""A compact index of every rollout of a run, so that 256,000 of them can be filtered at once.

    columns.bin   one record per rollout (`RECORD`): step, group, reward, codes, flags, offsets
    search.bin    question and completion in lower case, one NUL after each rollout
    preview.bin   one line of JSON per rollout: what a list shows of it
    frames.jsonl  one line per indexed frame, in the order of indexing

The files are in a cache folder outside the run and are appended frame by frame as the run grows. A
frame is verified by its sha256 before it is indexed. If a run is resumed from an older checkpoint
and its log truncated, the index is truncated to the frames that both have in common.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from glasshouse.errors import RunDataError
from glasshouse.monitors.base import Monitor
from glasshouse.runs.manifest import ManifestEntry, read_manifest
from glasshouse.runs.monitored import read_monitored_rollouts
from glasshouse.types import ExtractionRule, StopReason
from glasshouse.view.suspicion import SUSPICIONS, find_suspicions
from glasshouse.view.text_monitors import Verdict, score_rows

VERSION = 1
"""Changes with the format of the index and with what it computes; older caches are rebuilt."""
KINDS = ("train", "validation", "discarded", "monitored")
RULES = ("", *(rule.value for rule in ExtractionRule))
STOPS = ("", *(stop.value for stop in StopReason))
ARMS = ("", "control", "planted")
MAX_MONITORS = 16
PREVIEW_CHARACTERS = 240
RECORD = np.dtype(
    [
        ("kind", "u1"),
        ("split", "u1"),
        ("rule", "u1"),
        ("stop", "u1"),
        ("arm", "u1"),
        ("correct", "i1"),  # -1 if unknown
        ("suspicion", "u2"),  # bits in the order of SUSPICIONS
        ("flagged", "u2"),  # bits in the order of the monitors
        ("scored", "u2"),  # monitors that did not fail
        ("row", "u4"),  # line in its frame
        ("step", "i4"),
        ("group", "i4"),
        ("sample", "i4"),
        ("length", "i4"),  # tokens; -1 if unknown
        ("reward", "f4"),  # NaN if unknown
        ("advantage", "f4"),
        ("key", "u8"),  # hash of the problem's key
        ("search_end", "u8"),
        ("preview_end", "u8"),
    ]
)
Records = NDArray[np.void]


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a run's files: the rows of one step, or of one monitored model."""

    kind: str
    step: int
    sha256: str
    read: Callable[[], list[dict[str, Any]]]
    """Returns its verified rows; raises RunDataError if it is damaged."""
    expected_rows: int

    @property
    def identity(self) -> str:
        return f"{self.kind} {self.step} {self.sha256}"


def list_frames(run: Path, monitor: Mapping[str, Any] | None) -> list[Frame]:
    """Every frame of the rollout log, and of `monitor`, the run's monitor results."""
    folder = run / "results" / "rollouts"
    frames = [
        Frame(e.kind, e.step, e.sha256, _log_frame_reader(folder, e), e.rows)
        for e in (line.entry for line in read_manifest(folder))
        if e is not None and e.kind in KINDS
    ]
    for entry in (monitor or {}).get("subjects", []):
        frames.append(
            Frame(
                "monitored",
                entry["step"],
                entry["rows"]["sha256"],
                _monitored_frame_reader(run / "results", entry),
                0,
            )
        )
    return frames


def _log_frame_reader(folder: Path, entry: ManifestEntry) -> Callable[[], list[dict[str, Any]]]:
    def read() -> list[dict[str, Any]]:
        path = folder / entry.file
        try:
            if path.exists() and not path.is_file():
                raise RunDataError(f"{entry.file} is not a regular file")
            with open(path, "rb") as file:
                file.seek(entry.offset)
                return entry.decode(file.read(entry.bytes))
        except OSError as error:
            raise RunDataError(f"{entry.file} cannot be read: {error.strerror}") from None

    return read


def _monitored_frame_reader(
    results: Path, entry: Mapping[str, Any]
) -> Callable[[], list[dict[str, Any]]]:
    return lambda: read_monitored_rollouts(results, entry)


class RolloutIndex:
    """The index of one run.

    Example:
        index = RolloutIndex(cache_folder(cache, run), monitors)
        for _ in index.update(list_frames(run, monitor)): ...
        index.records["reward"].mean()
    """

    def __init__(self, folder: Path, monitors: Sequence[Monitor]) -> None:
        self.monitors = list(monitors)[:MAX_MONITORS]
        self.frames: list[dict[str, Any]] = []
        """Indexed frames: identity, first and last record, damage."""
        self._set_names()
        self._wanted: set[str] = set()
        self.update_lock = threading.Lock()
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._lock: IO[str] | None = None
        self.folder = self._open_folder(folder)
        self._capacity = np.empty(0, RECORD)
        self.records: Records = self._capacity[:0]
        """The records of all indexed rollouts. Handlers read it once: it is replaced, not changed,
        while the index grows in another thread."""
        self._maps: dict[str, tuple[int, mmap.mmap]] = {}
        self._by_identity: dict[str, dict[str, Any]] = {}
        self._load()

    @property
    def total_frames(self) -> int:
        return len(self._wanted)

    @property
    def is_complete(self) -> bool:
        """Does the index hold exactly the frames of the run?"""
        return self._by_identity.keys() == self._wanted

    def set_frames(self, frames: Sequence[Frame]) -> None:
        """Say which frames the run has now."""
        self._wanted = {frame.identity for frame in frames}

    @property
    def damage(self) -> list[str]:
        """What cannot be read of the log."""
        return [f"{f['kind']}, step {f['step']}: {f['damage']}" for f in self.frames if f["damage"]]

    # --- building --------------------------------------------------------------------------

    def update(
        self, frames: Sequence[Frame], is_wanted: Callable[[Frame], bool] = lambda _: True
    ) -> Iterator[Frame]:
        """Index the wanted frames that are new, after dropping those that the run no longer has;
        yields each new one when it is indexed."""
        with self.update_lock:
            self.set_frames(frames)
            if any(frame["identity"] not in self._wanted for frame in self.frames):
                kept = 0
                for old in self.frames:
                    if old["identity"] not in self._wanted:
                        break
                    kept += 1
                self._truncate(kept)
            for frame in frames:
                if frame.identity not in self._by_identity and is_wanted(frame):
                    try:
                        self._append(frame)
                    except BaseException:  # a full disk: the files do not hold this frame's names
                        self._set_names()
                        raise
                    yield frame

    def _append(self, frame: Frame) -> None:
        damage, rows = "", list[dict[str, Any]]()
        try:
            rows = frame.read()
        except RunDataError as error:
            damage = f"{error} ({frame.expected_rows} rows lost)"
        records = np.zeros(len(rows), RECORD)
        search, preview = bytearray(), bytearray()
        search_start, preview_start = self._ends()
        splits, monitors = len(self.splits), len(self.monitor_names)
        unscored = [row for row in rows if "verdicts" not in row]
        scored = iter(score_rows(self.monitors, unscored))
        for number, row in enumerate(rows):
            verdicts = row["verdicts"] if "verdicts" in row else next(scored)
            self._fill(records, number, frame.kind, row, verdicts)
            search += encode_search_text(row)
            preview += encode_preview(row)
            records[number]["search_end"] = search_start + len(search)
            records[number]["preview_end"] = preview_start + len(preview)
        self._write("search.bin", search_start, bytes(search))
        self._write("preview.bin", preview_start, bytes(preview))
        self._write("columns.bin", len(self.records) * RECORD.itemsize, records.tobytes())
        line = {
            "identity": frame.identity,
            "kind": frame.kind,
            "step": frame.step,
            "start": len(self.records),
            "end": len(self.records) + len(rows),
            "damage": damage,
            "splits": self.splits[splits:],
            "monitors": self.monitor_names[monitors:],
        }
        with open(self.folder / "frames.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._grow(records)
        self.frames = [*self.frames, line]
        self._by_identity[frame.identity] = line

    def _fill(
        self,
        records: Records,
        number: int,
        kind: str,
        row: Mapping[str, Any],
        verdicts: Mapping[str, Verdict],
    ) -> None:
        if new := [name for name in verdicts if name not in self.monitor_names]:
            self.monitor_names += new[: MAX_MONITORS - len(self.monitor_names)]
        flagged = scored = 0
        for bit, name in enumerate(self.monitor_names):
            verdict = verdicts.get(name)
            if verdict is not None and verdict["flagged"] is not None:
                scored |= 1 << bit
                flagged |= int(verdict["flagged"]) << bit
        found = find_suspicions(row, verdicts)
        split = str(row["split"])
        if split not in self.splits:
            self.splits.append(split)
        arm = split.rpartition("/")[2]
        correct = row["correct"]
        records[number] = (
            KINDS.index(kind),
            min(self.splits.index(split), 255),
            _code(RULES, row["rule"]),
            _code(STOPS, row["stop"]),
            ARMS.index(arm) if arm in ARMS else 0,
            -1 if correct is None else int(correct),
            sum(1 << bit for bit, name in enumerate(SUSPICIONS) if name in found),
            flagged,
            scored,
            number,
            row["step"],
            row["group"],
            row["sample"],
            -1 if row["length"] is None else row["length"],
            np.nan if row["reward"] is None else row["reward"],
            np.nan if row["advantage"] is None else row["advantage"],
            hash_key(str(row["key"])),
            0,
            0,
        )

    # --- texts -----------------------------------------------------------------------------

    def search_bytes(self) -> mmap.mmap | bytes:
        """The lower-case texts of all rollouts; see `search_end` of the records."""
        records = self.records
        return self._map("search.bin", int(records["search_end"][-1]) if len(records) else 0)

    def preview(self, number: int) -> dict[str, Any]:
        """What a list shows of one rollout."""
        records = self.records
        data = self._map("preview.bin", int(records["preview_end"][-1]))
        start = int(records["preview_end"][number - 1]) if number else 0
        preview: dict[str, Any] = json.loads(data[start : int(records["preview_end"][number])])
        return preview

    def close(self) -> None:
        for _, mapped in self._maps.values():
            mapped.close()
        self._maps.clear()
        if self._lock:
            self._lock.close()
        if self._temporary:
            self._temporary.cleanup()

    # --- files -----------------------------------------------------------------------------

    def _open_folder(self, folder: Path) -> Path:
        """Lock the cache folder; a second server, or one that may not write there, uses its own."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = open(folder / "lock", "w", encoding="utf-8")  # noqa: SIM115  # until close()
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return folder
        except OSError:
            if self._lock:
                self._lock.close()
                self._lock = None
            self._temporary = tempfile.TemporaryDirectory(prefix="glasshouse-view-")
            return Path(self._temporary.name)

    def _load(self) -> None:
        """Read the cache; drop what an interrupted write or another version left."""
        header = {
            "version": VERSION,
            "record": RECORD.itemsize,
            "monitors": [json.dumps(m.describe(), sort_keys=True) for m in self.monitors],
        }
        header_file = self.folder / "header.json"
        try:
            if json.loads(header_file.read_text()) != json.loads(json.dumps(header)):
                raise ValueError("written by another version")
            lines = (self.folder / "frames.jsonl").read_text().split("\n")[:-1]
            frames = [json.loads(line) for line in lines]
            records = np.fromfile(self.folder / "columns.bin", RECORD)
            while frames and frames[-1]["end"] > len(records):
                frames.pop()
            count = frames[-1]["end"] if frames else 0
            ends = records[count - 1] if count else np.zeros(1, RECORD)[0]
            for name in ("search", "preview"):
                if (self.folder / f"{name}.bin").stat().st_size < int(ends[f"{name}_end"]):
                    raise ValueError(f"{name}.bin is too short")
        except (OSError, ValueError, KeyError, TypeError):
            for name in ("frames.jsonl", "columns.bin", "search.bin", "preview.bin"):
                (self.folder / name).write_bytes(b"")
            header_file.write_text(json.dumps(header))
            return
        self.frames = frames
        self._by_identity = {frame["identity"]: frame for frame in frames}
        self._set_names()
        self._capacity = self.records = records[:count]
        self._rewrite_frames()

    def _set_names(self) -> None:
        """The names that records refer to by number are those of the indexed frames, as in their file."""
        own = [monitor.name for monitor in self.monitors]
        self.splits = ["", *(split for frame in self.frames for split in frame["splits"])]
        self.monitor_names = [*own, *(n for frame in self.frames for n in frame["monitors"])]

    def _truncate(self, frames: int) -> None:
        """Keep the first frames only: the log was truncated when the run was resumed."""
        self.frames = self.frames[:frames]
        self._by_identity = {frame["identity"]: frame for frame in self.frames}
        self._set_names()
        count = self.frames[-1]["end"] if self.frames else 0
        self._capacity = self.records[:count].copy()
        self.records = self._capacity
        sizes = dict(zip(("search.bin", "preview.bin"), self._ends(), strict=True))
        for name, size in {**sizes, "columns.bin": count * RECORD.itemsize}.items():
            # A new file: reading a shrunken one through an older map would end the process.
            kept = self.folder / f"{name}.tmp"
            with open(self.folder / name, "rb") as old, open(kept, "wb") as new:
                shutil.copyfileobj(_Prefix(old, size), new)
            os.replace(kept, self.folder / name)
        self._maps.clear()
        self._rewrite_frames()

    def _rewrite_frames(self) -> None:
        text = "".join(json.dumps(frame) + "\n" for frame in self.frames)
        temporary = self.folder / "frames.tmp"
        temporary.write_text(text)
        os.replace(temporary, self.folder / "frames.jsonl")

    def _write(self, name: str, position: int, data: bytes) -> None:
        with open(self.folder / name, "r+b") as file:
            file.truncate(position)
            file.seek(position)
            file.write(data)

    def _ends(self) -> tuple[int, int]:
        if not len(self.records):
            return 0, 0
        last = self.records[-1]
        return int(last["search_end"]), int(last["preview_end"])

    def _grow(self, records: Records) -> None:
        count, needed = len(self.records), len(self.records) + len(records)
        capacity = self._capacity
        if needed > len(capacity):
            capacity = np.empty(max(needed, 2 * len(capacity), 1024), RECORD)
            capacity[:count] = self.records
        capacity[count:needed] = records
        self._capacity = capacity
        self.records = capacity[:needed]

    def _map(self, name: str, size: int) -> mmap.mmap | bytes:
        """The first `size` bytes of a file, mapped into memory."""
        if not size:
            return b""
        mapped = self._maps.get(name)
        if mapped is None or mapped[0] < size:
            with open(self.folder / name, "rb") as file:
                length = os.fstat(file.fileno()).st_size
                mapped = (length, mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ))
            self._maps[name] = mapped  # the old map is freed when its last user is done
        return mapped[1]


class _Prefix:
    """The first bytes of a file, for `shutil.copyfileobj`."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self.file, self.left = file, size

    def read(self, length: int = -1, /) -> bytes:
        data = self.file.read(self.left if length < 0 else min(length, self.left))
        self.left -= len(data)
        return data


def cache_folder(cache: Path, run: Path) -> Path:
    """Where the index of a run is kept."""
    digest = sha256(str(run.resolve()).encode()).hexdigest()[:16]
    return cache / f"{run.name[:40]}-{digest}"


def default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "glasshouse" / "view"


def hash_key(key: str) -> int:
    return int.from_bytes(blake2b(key.encode("utf-8", "replace"), digest_size=8).digest(), "big")


def encode_search_text(row: Mapping[str, Any]) -> bytes:
    text = f"{row['question']}\n{row['completion']}".replace("\0", " ").lower()
    return text.encode("utf-8", "replace") + b"\0"


def encode_preview(row: Mapping[str, Any]) -> bytes:
    preview = {
        "key": str(row["key"])[:PREVIEW_CHARACTERS],
        "question": str(row["question"])[:PREVIEW_CHARACTERS],
        "text": str(row["completion"])[:PREVIEW_CHARACTERS],
        "answer": _shorten(row["answer"]),
        "gold": _shorten(row["gold"]),
    }
    return json.dumps(preview).encode() + b"\n"


def _shorten(value: Any) -> str | None:
    return None if value is None else str(value)[:PREVIEW_CHARACTERS]


def _code(names: Sequence[str], value: Any) -> int:
    return names.index(value) if value in names else 0
