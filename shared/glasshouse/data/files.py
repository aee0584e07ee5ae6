"""Problem files: JSON lines or Parquet, by suffix; each row has at least a question and an answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from glasshouse.errors import ConfigError
from glasshouse.types import AnswerKind, Problem


def read(file: str | Path) -> list[Problem]:
    """All problems of a file; a bad row is an error that names it."""
    path = Path(file)
    parquet = path.suffix == ".parquet"
    rows: Iterator[tuple[int, Any]] = _parquet_rows(path) if parquet else _lines(path)
    problems = []
    try:
        for number, row in rows:
            try:
                problems.append(_problem(row if parquet else json.loads(row), path.stem))
            except (ValueError, RecursionError) as error:  # JSONDecodeError is a ValueError
                raise ConfigError(
                    f"{path} {'row' if parquet else 'line'} {number} is not a problem: {error}. "
                    'Write {"task": …, "key": …, "question": …, "answer": …}.'
                ) from None
    except FileNotFoundError:
        raise ConfigError(f"The problem file {path} does not exist.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The problem file {path} could not be read: {error}.") from None
    if not problems:
        raise ConfigError(f"The problem file {path} holds no problem.")
    return problems


def write(file: str | Path, problems: Iterable[Problem]) -> None:
    """One row a problem, keys in the order of declaration; the suffix says which format."""
    if Path(file).suffix == ".parquet":
        arrow, parquet = pyarrow_for(Path(file))
        rows = [asdict(p) | {"meta": json.dumps(dict(p.meta))} for p in problems]
        parquet.write_table(arrow.Table.from_pylist(rows), str(file))
        return
    with open(file, "w", encoding="utf-8") as out:
        for problem in problems:
            out.write(json.dumps(asdict(problem), ensure_ascii=False) + "\n")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    text = path.read_text(encoding="utf-8-sig")
    for number, line in enumerate(text.split("\n"), 1):  # splitlines breaks at U+2028 too
        if line.strip():
            yield number, line


def _parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows as JSON would have them: no empty fields, and `meta` read if it is JSON text."""
    arrow, parquet = pyarrow_for(path)
    with open(path, "rb") as file:
        try:
            listed = parquet.read_table(file).to_pylist()
        except arrow.ArrowInvalid as error:
            raise ConfigError(f"The problem file {path} is not Parquet: {error}.") from None
    for number, row in enumerate(listed, 1):
        row = {name: value for name, value in row.items() if value is not None}
        if isinstance(row.get("meta"), str):
            with suppress(ValueError):  # what is no JSON is said of its row, like any wrong type
                row["meta"] = json.loads(row["meta"])
        yield number, row


def pyarrow_for(path: Path) -> tuple[Any, Any]:
    """pyarrow and its Parquet module, or a sentence that names the file that needs them."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(
            f'{path} is a Parquet file, which needs pyarrow: pip install "glasshouse[parquet]". '
            "JSON lines (.jsonl) need nothing."
        ) from None
    return pyarrow, parquet


def _problem(row: Any, task: str) -> Problem:
    """One row, checked; an answer that is an integer becomes its text."""
    if not isinstance(row, dict):
        raise ValueError("it is not an object")
    row = {f.name: row[f.name] for f in fields(Problem) if f.name in row}
    for name in ("question", "answer"):
        if name not in row:
            raise ValueError(f'it has no "{name}"')
    if type(row["answer"]) is int:
        row["answer"] = str(row["answer"])
    row.setdefault("key", row["question"])
    row.setdefault("task", task)
    for name, value in row.items():
        wanted = {"decimals": int, "meta": dict}.get(name, str)
        if type(value) is not wanted:
            raise ValueError(f'its "{name}" is {value!r}, not a {wanted.__name__}')
    row["kind"] = AnswerKind(row.get("kind", "number"))
    return Problem(**row)
