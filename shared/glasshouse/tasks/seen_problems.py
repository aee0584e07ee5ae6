"""The problems drawn so far, on disk: for tasks that cannot be enumerated, and for curricula.

Each row is a 64-bit hash of a problem's key, the index of the draw and a checksum of both. A hundred
million rows take about four gigabytes on disk and a few megabytes of memory. Two keys with the same hash count as one
problem: about once in 10¹⁰ draws a new problem may be skipped, but a repeat is never returned.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from glasshouse import randomness
from glasshouse.checksums import find_seen_problem_damage, seen_problem_check
from glasshouse.errors import RunError

CACHE_KB = 8_000


class SeenProblems:
    """Keys in the order in which they were drawn, so that it can be rewound to any draw.

    Example: `SeenProblems(run / "data" / "seen_problems.sqlite").add("12*345", 0)`. Without a file it
    uses a temporary database that is deleted when the process ends.
    """

    def __init__(self, file: Path | None = None) -> None:
        try:
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
            self.database = sqlite3.connect(str(file or ""), isolation_level=None)
            self.database.execute(f"PRAGMA cache_size=-{CACHE_KB}")
            self.database.execute("PRAGMA journal_mode=WAL")
            # rows lost in a power failure are drawn again
            self.database.execute("PRAGMA synchronous=NORMAL")
            self.database.execute(
                'CREATE TABLE IF NOT EXISTS seen (key INTEGER PRIMARY KEY, draw INTEGER, "check" INTEGER)'
            )
            self.size: int = self.database.execute('SELECT count("check") FROM seen').fetchone()[0]
        except (OSError, sqlite3.Error) as error:
            raise RunError(
                f"The database of seen problems {file or ''} cannot be opened: {error}."
            ) from None

    def add(self, key: str, draw: int) -> bool:
        """Records that draw number `draw` returned this key; False if the key was seen before."""
        if not self.database.in_transaction:
            self.database.execute("BEGIN")
        signed_hash = randomness.key(key) - 2**63  # SQLite integers are signed
        cursor = self.database.execute(
            "INSERT OR IGNORE INTO seen VALUES (?, ?, ?)",
            (signed_hash, draw, seen_problem_check(signed_hash, draw)),
        )
        self.size += cursor.rowcount
        return cursor.rowcount == 1

    def rewind(self, draw: int) -> None:
        """Deletes this draw and all later ones."""
        self.size -= self.database.execute("DELETE FROM seen WHERE draw >= ?", (draw,)).rowcount

    def commit(self) -> None:
        if self.database.in_transaction:
            self.database.execute("COMMIT")

    def close(self) -> None:
        self.commit()
        self.database.close()


def open_seen_problems(file: Path | None) -> SeenProblems:
    """Opens a database after verifying it. A damaged one is deleted: the stream repeats its draws, which
    costs time and nothing else."""
    if file is not None and file.exists() and find_seen_problem_damage(file):
        for suffix in ("", "-wal", "-shm"):
            file.with_name(file.name + suffix).unlink(missing_ok=True)
    return SeenProblems(file)
