"""Compare a table with a committed one, byte by byte."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from glasshouse.errors import RunDataError
from glasshouse.study.table import Table, read_table_text

MAX_DIFFERENCES = 5
"""Differing rows that the message lists."""


def read_table_lines(file: Path) -> list[str]:
    try:
        return read_table_text(file).splitlines()
    except (OSError, ValueError) as error:
        raise RunDataError(f"The table {file} cannot be read: {error}.") from None


def compare_tables(
    table: Table, lines: Sequence[str], file: str, *, only_these_runs: bool = False
) -> tuple[bool, str]:
    """Whether the table equals the committed lines, and a message. `only_these_runs` ignores the
    lines of runs that the table does not have.

    Example: `compare_tables(table, read_table_lines(Path("committed.jsonl")), "committed.jsonl")`
    """
    total = len(lines)
    if only_these_runs:
        runs = {(row.arm, row.seed) for row in table}
        lines = [line for line in lines if _arm_and_seed(line, file) in runs]
    new_lines = table.text().splitlines()
    if list(lines) == new_lines:
        of_total = f" of {total:,}" if len(lines) < total else ""
        return True, f"identical: {len(new_lines):,}{of_total} rows equal {file} byte for byte"
    pairs = zip_longest(lines, new_lines, fillvalue="(no row)")
    differing = [(committed, new) for committed, new in pairs if committed != new]
    listed = [
        f"  {file}: {committed}\n  this study: {new}"
        for committed, new in differing[:MAX_DIFFERENCES]
    ]
    more = len(differing) - MAX_DIFFERENCES
    if more > 0:
        listed.append(f"  … and {more:,} more")
    message = f"different from {file}: {len(differing):,} of {len(new_lines):,} rows; the first:\n"
    return False, message + "\n".join(listed)


def _arm_and_seed(line: str, file: str) -> tuple[str, int]:
    try:
        row = json.loads(line)
        return row["arm"], row["seed"]
    except (ValueError, KeyError, TypeError):
        raise RunDataError(f"{file} is not a study's table: {line[:80]!r}.") from None
