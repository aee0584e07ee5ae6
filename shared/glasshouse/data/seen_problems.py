"""What has been drawn, on disk: for spaces that cannot be numbered, and for curricula.

One row a problem: a 64-bit hash of its key and the number of the draw. A hundred million rows are
about three gigabytes of file and a fixed few megabytes of memory. Two keys with one hash count as
one problem, so that a new problem may be passed over (once in 10¹⁰ draws or so), but a repeat
never gets through.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from glasshouse import randomness
from glasshouse.errors import RunError

CACHE_KB = 8_000


class Ledger:
    """Keys in the order in which they were drawn, so that it can be wound back to any draw.

    Example: `Ledger(run / "data" / "drawn.sqlite").add("12*345", 0)`; without a file it lasts as
    long as the process, on disk all the same once it is large.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.file = file
        try:
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
            self.rows = sqlite3.connect(str(file or ""), isolation_level=None)
            self.rows.execute(f"PRAGMA cache_size=-{CACHE_KB}")
            self.rows.execute("PRAGMA journal_mode=WAL")
            self.rows.execute("PRAGMA synchronous=NORMAL")  # what a power cut takes is drawn again
            self.rows.execute(
                "CREATE TABLE IF NOT EXISTS drawn (key INTEGER PRIMARY KEY, number INTEGER)"
            )
        except (OSError, sqlite3.Error) as error:
            raise RunError(
                f"The record of drawn problems {file or ''} cannot be opened: {error}."
            ) from None
        self.size: int = self.rows.execute("SELECT count(*) FROM drawn").fetchone()[0]

    def add(self, key: str, number: int) -> bool:
        """Note that this was draw number `number`; False if it was drawn before."""
        if not self.rows.in_transaction:
            self.rows.execute("BEGIN")
        identity = randomness.key(key) - 2**63  # SQLite's integers have a sign
        done = self.rows.execute("INSERT OR IGNORE INTO drawn VALUES (?, ?)", (identity, number))
        self.size += done.rowcount
        return done.rowcount == 1

    def rewind(self, number: int) -> None:
        """Forget this draw and all after it."""
        self.size -= self.rows.execute("DELETE FROM drawn WHERE number >= ?", (number,)).rowcount

    def commit(self) -> None:
        if self.rows.in_transaction:
            self.rows.execute("COMMIT")

    def close(self) -> None:
        self.commit()
        self.rows.close()
