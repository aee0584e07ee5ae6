"""A table against a committed one, byte for byte."""

from __future__ import annotations

import json
from itertools import zip_longest
from pathlib import Path

from glasshouse.errors import RecordError
from glasshouse.study.table import Table

SHOWN = 5


def compare(table: Table, file: Path, part: bool = False) -> tuple[bool, str]:
    """Whether the table is what the file holds, and a sentence. `part`: only the file's rows of
    runs that the table has.

    Example: `compare(table, Path("studies/results/leaked_hint/table.jsonl"))`
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{file} cannot be compared with: {error}.") from None
    whole = len(lines)
    if part:
        runs = {(row.arm, row.seed) for row in table}
        lines = [line for line in lines if _run(line, file) in runs]
    here = table.text().splitlines()
    if lines == here:
        of = f" of its {whole:,}" if len(lines) < whole else ""
        return True, f"identical: {len(here):,} rows, bytewise those{of} of {file}"
    differing = [
        pair for pair in zip_longest(lines, here, fillvalue="(no row)") if len(set(pair)) > 1
    ]
    shown = [f"  {file}: {there}\n  this study: {mine}" for there, mine in differing[:SHOWN]]
    more = f"\n  … and {len(differing) - SHOWN:,} more" if len(differing) > SHOWN else ""
    sentence = f"different from {file}: {len(differing):,} of {len(here):,} rows; the first:\n"
    return False, sentence + "\n".join(shown) + more


def _run(line: str, file: Path) -> tuple[str, int]:
    try:
        row = json.loads(line)
        return row["arm"], row["seed"]
    except (ValueError, KeyError, TypeError):
        raise RecordError(f"{file} is not a study's table: {line[:80]!r}.") from None
