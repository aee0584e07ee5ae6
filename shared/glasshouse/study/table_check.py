"""A table against a committed one, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from glasshouse.errors import RecordError
from glasshouse.study.table import Table, read_text

SHOWN = 5


def read(file: Path) -> list[str]:
    """A committed table's lines."""
    try:
        return read_text(file).splitlines()
    except (OSError, ValueError) as error:
        raise RecordError(f"There is no table {file} to compare with: {error}.") from None


def compare(
    table: Table, lines: Sequence[str], file: str, *, part: bool = False
) -> tuple[bool, str]:
    """Whether the table is what the file's lines say, and a sentence. `part`: only the lines of runs
    that the table has.

    Example: `compare(table, read(Path("committed.jsonl")), "committed.jsonl")`
    """
    whole = len(lines)
    if part:
        runs = {(row.arm, row.seed) for row in table}
        lines = [line for line in lines if _run(line, file) in runs]
    here = table.text().splitlines()
    if list(lines) == here:
        of = f" of its {whole:,}" if len(lines) < whole else ""
        return True, f"identical: {len(here):,} rows, bytewise those{of} of {file}"
    differing = [
        pair for pair in zip_longest(lines, here, fillvalue="(no row)") if len(set(pair)) > 1
    ]
    shown = [f"  {file}: {there}\n  this study: {mine}" for there, mine in differing[:SHOWN]]
    more = f"\n  … and {len(differing) - SHOWN:,} more" if len(differing) > SHOWN else ""
    sentence = f"different from {file}: {len(differing):,} of {len(here):,} rows; the first:\n"
    return False, sentence + "\n".join(shown) + more


def _run(line: str, file: str) -> tuple[str, int]:
    try:
        row = json.loads(line)
        return row["arm"], row["seed"]
    except (ValueError, KeyError, TypeError):
        raise RecordError(f"{file} is not a study's table: {line[:80]!r}.") from None
