"""An index of every rollout of a run, so that 256,000 of them can be filtered at once.

The index is a SQLite database in a cache folder outside the run. A frame is the rows that the run
logged together, those of one step or of one monitored model, and is one row of the table:

    records    one `RECORD` of numbers per rollout: what filters compare. All of them are kept in memory
    texts      question and completion in lower case, a NUL after each rollout: what a search reads
    rows       one line of JSON per rollout: what a list shows

Counting 256,000 rollouts by nine filters takes SQL 0.2 s and numpy 0.02 s; hence the records.

A frame is verified by its sha256 before it is indexed. Frames that a run no longer has, since it was
resumed from an older checkpoint, are deleted.
"""

from __future__ import annotations

import glob
import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glasshouse.errors import RunDataError, RunError
from glasshouse.monitors.base import Monitor
from glasshouse.runs.rows import Row, kind_of
from glasshouse.types import ExtractionRule, FinishReason
from glasshouse.view.rollout_frames import KINDS, Frame
from glasshouse.view.run_measures import finite
from glasshouse.view.suspicion import SUSPICIONS, find_suspicions
from glasshouse.view.text_monitors import Verdict, score_rows

VERSION = 3
"""Changes with the format of the index and with what it computes; older caches are rebuilt."""
RULES = ("", *(rule.value for rule in ExtractionRule))
FINISH_REASONS = ("", *(reason.value for reason in FinishReason if reason))
ARMS = ("", "control", "planted")
NAMED = ("split", "rule", "finish_reason", "arm")
"""Columns of the records that hold the number of a name; so does `kind`, the first part of the split."""
MAX_MONITORS = 16
PREVIEW_CHARACTERS = 240
RECORD = np.dtype(
    [
        ("frame", "u4"),  # its id in the database
        ("row", "u4"),  # line in its frame
        *((name, "u2") for name in ("kind", *NAMED)),
        ("correct", "i1"),  # -1 if unknown
        ("suspicion", "u2"),  # bits in the order of SUSPICIONS
        ("flagged", "u2"),  # bits in the order of the monitors
        ("scored", "u2"),  # monitors that did not fail
        ("step", "i4"),
        ("group", "i4"),
        ("length", "i4"),  # tokens; -1 if unknown
        ("reward", "f4"),  # NaN if unknown
        ("key", "u8"),  # hash of the problem's key
    ]
)
SETTINGS = """
PRAGMA page_size = 32768;
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
BEGIN EXCLUSIVE;
COMMIT;
"""
"""The lock that the transaction takes is held until the database is closed."""
SCHEMA = """
CREATE TABLE header (content TEXT);
CREATE TABLE names (list TEXT, name TEXT);
CREATE TABLE frames (
    id INTEGER PRIMARY KEY AUTOINCREMENT, identity TEXT, damage TEXT, records BLOB, texts BLOB, rows BLOB
);
"""
Records = NDArray[np.void]


class RolloutIndex:
    """The index of one run.

    Example:
        index = RolloutIndex(cache_file(cache, run), monitors)
        index.set_frames(list_frames(run, monitor))
        for frame in index.missing(): index.add(frame)
        index.records["reward"].mean()
    """

    def __init__(self, file: Path | None, monitors: Sequence[Monitor]) -> None:
        """Without a file the index is temporary, and so it is if another server uses the file or if it
        cannot be written. A file of another version, or a damaged one, is begun again."""
        self.monitors = list(monitors)[:MAX_MONITORS]
        self._wanted: dict[str, Frame] = {}
        self._shown: tuple[int, list[bytes]] = (0, [])
        self._lock = threading.Lock()
        self.is_temporary = False
        if file is not None:
            try:
                return self._open(file)
            except sqlite3.OperationalError:
                pass  # locked, or not writable
            except (sqlite3.DatabaseError, ValueError):
                for part in (file, *file.parent.glob(f"{glob.escape(file.name)}-*")):
                    part.unlink()
                return self._open(file)
        self.is_temporary = True
        self._open(None)

    def _open(self, file: Path | None) -> None:
        if file is not None:
            with suppress(OSError):
                file.parent.mkdir(parents=True, exist_ok=True)
        self.database = sqlite3.connect(file or "", timeout=0, check_same_thread=False)
        try:
            self._load()
        except BaseException:
            self.database.close()
            raise

    def _load(self) -> None:
        header = [VERSION, RECORD.descr, [monitor.describe() for monitor in self.monitors]]
        content = (json.dumps(header, sort_keys=True),)
        self.database.executescript(SETTINGS)
        if not self.database.execute("SELECT name FROM sqlite_master").fetchall():
            self.database.executescript(SCHEMA)
            with self.database:
                self.database.execute("INSERT INTO header VALUES (?)", content)
        if self.database.execute("SELECT content FROM header").fetchall() != [content]:
            raise ValueError("another version wrote this index")
        self._load_names()
        self.frames: dict[str, str] = {}
        """Identities of the indexed frames, and how each is damaged."""
        self._blocks = [np.empty(0, RECORD)]
        for id, identity, damage, records in self.database.execute(
            "SELECT id, identity, damage, records FROM frames ORDER BY id"
        ):
            self.frames[identity] = damage
            self._blocks.append(np.frombuffer(bytearray(records), RECORD))
            self._blocks[-1]["frame"] = id

    @property
    def records(self) -> Records:
        """The records of all indexed rollouts. Handlers read it once: it is replaced, not changed,
        while the index grows in another thread."""
        with self._lock:
            if len(self._blocks) > 1:
                self._blocks = [np.concatenate(self._blocks)]
            return self._blocks[0]

    @property
    def total_frames(self) -> int:
        return len(self._wanted)

    @property
    def is_complete(self) -> bool:
        """Does the index hold exactly the frames of the run?"""
        return self.frames.keys() == self._wanted.keys()

    @property
    def damage(self) -> list[str]:
        """What cannot be read of the log."""
        named = ((identity.split(" "), damage) for identity, damage in list(self.frames.items()))
        return [f"{kind}, step {step}: {damage}" for (kind, step, _), damage in named if damage]

    def set_frames(self, frames: Sequence[Frame]) -> None:
        """Say which frames the run has now; others are deleted."""
        self._wanted = {frame.identity: frame for frame in frames}
        gone = [identity for identity in self.frames if identity not in self._wanted]
        if not gone:
            return
        with self.database:
            self.database.executemany("DELETE FROM frames WHERE identity = ?", zip(gone))
        self.frames = {i: damage for i, damage in self.frames.items() if i in self._wanted}
        kept = [id for (id,) in self.database.execute("SELECT id FROM frames")]
        records = self.records
        with self._lock:
            self._blocks = [records[np.isin(records["frame"], kept)]]

    def missing(self) -> list[Frame]:
        """The frames that are not indexed yet."""
        return [frame for identity, frame in self._wanted.items() if identity not in self.frames]

    def add(self, frame: Frame) -> None:
        """Index a frame; one that is damaged is noted in `damage`."""
        damage, rows = "", list[Row]()
        try:
            rows = frame.read()
        except RunDataError as error:
            damage = f"{error} ({frame.expected_rows} rows lost)"
        scored = iter(score_rows(self.monitors, [row for row in rows if "verdicts" not in row]))
        known = {name: len(names) for name, names in self.names.items()}
        listed = [
            describe_row(number, row, row["verdicts"] if "verdicts" in row else next(scored))
            for number, row in enumerate(rows)
        ]  # fmt: skip
        try:
            records = np.array([self._encode(n, row) for n, row in enumerate(listed)], RECORD)
            with self.database:
                records["frame"] = self.database.execute(
                    "INSERT INTO frames VALUES (NULL, ?, ?, ?, ?, ?)",
                    (
                        frame.identity,
                        damage,
                        records.tobytes(),
                        b"\0".join(map(encode_texts, rows)),
                        "\n".join(map(json.dumps, listed)).encode(),
                    ),
                ).lastrowid
                self.database.executemany(
                    "INSERT INTO names VALUES (?, ?)",
                    [(n, name) for n in self.names for name in self.names[n][known[n] :]],
                )
        except BaseException:  # a full disk: the database does not hold this frame's names
            self._load_names()
            raise
        with self._lock:
            self._blocks = [*self._blocks, records]
        self.frames = {**self.frames, frame.identity: damage}

    def _encode(self, number: int, row: Row) -> tuple[Any, ...]:
        """The record of a rollout as the list shows it."""
        monitors = [self._number("monitor", n) for n in (*row["flagged"], *row["passed"])]
        bits = [1 << bit if bit < MAX_MONITORS else 0 for bit in monitors]
        unknown = float("nan")
        return (
            0,
            number,
            self._number("kind", kind_of(row["split"])),
            *(self._number(column, row[column]) for column in NAMED),
            -1 if row["correct"] is None else int(row["correct"]),
            sum(1 << bit for bit, name in enumerate(SUSPICIONS) if name in row["suspicions"]),
            sum(bits[: len(row["flagged"])]),
            sum(bits),
            row["step"],
            row["group"],
            -1 if row["length"] is None else row["length"],
            unknown if row["reward"] is None else row["reward"],
            hash_key(row["key"]),
        )

    def _number(self, column: str, name: str) -> int:
        names = self.names[column]
        if name not in names:
            names.append(name)
        return min(names.index(name), np.iinfo(np.uint16).max)

    def _load_names(self) -> None:
        """The names that records refer to by number: those known from the start, then others in the
        order in which they were found."""
        own = [monitor.name for monitor in self.monitors]
        self.names: dict[str, list[str]] = {
            "kind": [*KINDS], "split": [""], "rule": [*RULES],
            "finish_reason": [*FINISH_REASONS], "arm": [*ARMS], "monitor": own,
        }  # fmt: skip
        for column, name in self.database.execute("SELECT list, name FROM names ORDER BY rowid"):
            self.names[column].append(name)

    @property
    def monitor_names(self) -> list[str]:
        return self.names["monitor"][:MAX_MONITORS]

    def texts(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """The texts of the frames with these ids."""
        yield from self.database.execute(
            "SELECT id, texts FROM frames WHERE id BETWEEN ? AND ? ORDER BY id", (first, last)
        )

    def row(self, record: np.void) -> Row:
        """What a list shows of a rollout."""
        id = int(record["frame"])
        shown, lines = self._shown
        if shown != id:
            found = self.database.execute("SELECT rows FROM frames WHERE id = ?", (id,)).fetchone()
            if found is None:
                raise RunError("This rollout was removed by a resume. Load the page again.")
            self._shown = id, (lines := found[0].split(b"\n"))
        row: Row = json.loads(lines[int(record["row"])])
        return row

    def close(self) -> None:
        self.database.close()


def cache_file(cache: Path, run: Path) -> Path:
    """Where the index of a run is kept."""
    digest = sha256(str(run.resolve()).encode()).hexdigest()[:16]
    return cache / f"{run.name[:40]}-{digest}.sqlite"


def default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "glasshouse" / "view"


# --- rows ------------------------------------------------------------------------------------


def describe_row(number: int, row: Row, verdicts: Mapping[str, Verdict]) -> Row:
    """What a list shows of a rollout."""
    return {
        "ref": f"{kind_of(row['split'])}.{row['step']}.{number}",
        "step": row["step"],
        "group": row["group"],
        "sample": row["sample"],
        "split": row["split"],
        "reward": finite(row["reward"]),
        "advantage": finite(row["advantage"]),
        "correct": row["correct"],
        "rule": row["rule"],
        "finish_reason": row["finish_reason"],
        "arm": row["arm"],
        "length": row["length"],
        "flagged": [name for name, v in verdicts.items() if v["flagged"]],
        "passed": [n for n, v in verdicts.items() if v["flagged"] is not None and not v["flagged"]],
        "suspicions": list(find_suspicions(row, verdicts)),
        **{
            name: row[name] and row[name][:PREVIEW_CHARACTERS]
            for name in ("key", "question", "text", "model_answer", "gold_answer")
        },
    }


def hash_key(key: str) -> int:
    return int.from_bytes(blake2b(key.encode("utf-8", "replace"), digest_size=8).digest(), "big")


def encode_texts(row: Mapping[str, Any]) -> bytes:
    """What a search reads of a rollout."""
    return encode_text(f"{row['question']}\n{row['text']}")


def encode_text(text: str) -> bytes:
    return text.replace("\0", " ").lower().encode("utf-8", "replace")
