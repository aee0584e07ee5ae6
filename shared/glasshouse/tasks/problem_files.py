"""Problem files: JSON lines or Parquet, by suffix. Each row has at least a question and an answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from glasshouse.errors import ConfigError
from glasshouse.extras import install_command
from glasshouse.types import AnswerKind, Problem

FILE_NAMES = {"gold_answer": "answer", "answer_kind": "kind"}
"""Fields of a problem that have a shorter name in a file."""
MAX_ROW_CHARACTERS = 1_000_000
MAX_QUESTION_CHARACTERS = 100_000
MAX_ANSWER_CHARACTERS = 10_000


def read_problem_file(file: str | Path) -> list[Problem]:
    """Reads all problems of a file; an invalid row raises an error with its number."""
    path = Path(file)
    is_parquet = path.suffix == ".parquet"
    rows: Iterator[tuple[int, Any]] = _parquet_rows(path) if is_parquet else _json_lines(path)
    problems = []
    try:
        for number, row in rows:
            try:
                problems.append(_parse_row(row if is_parquet else _parse_line(row), path.stem))
            except (ValueError, RecursionError) as error:  # JSONDecodeError is a ValueError
                raise ConfigError(
                    f"{path}, {'row' if is_parquet else 'line'} {number} is not a problem: {error}. "
                    'Write {"task": …, "key": …, "question": …, "answer": …}.'
                ) from None
    except FileNotFoundError:
        raise ConfigError(f"The problem file {path} does not exist.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The problem file {path} could not be read: {error}.") from None
    if not problems:
        raise ConfigError(f"The problem file {path} contains no problems.")
    return problems


def write_problem_file(file: str | Path, problems: Iterable[Problem]) -> None:
    """Writes one row per problem; the suffix decides the format."""
    if Path(file).suffix == ".parquet":
        arrow, parquet = import_pyarrow(Path(file))
        rows = [_to_row(p) | {"meta": json.dumps(dict(p.meta))} for p in problems]
        parquet.write_table(arrow.Table.from_pylist(rows), str(file))
        return
    with open(file, "w", encoding="utf-8") as out:
        for problem in problems:
            out.write(json.dumps(_to_row(problem), ensure_ascii=False) + "\n")


def _to_row(problem: Problem) -> dict[str, Any]:
    return {FILE_NAMES.get(name, name): value for name, value in asdict(problem).items()}


def _json_lines(path: Path) -> Iterator[tuple[int, str]]:
    text = path.read_text(encoding="utf-8-sig")
    for number, line in enumerate(text.split("\n"), 1):  # splitlines would also split at U+2028
        if line.strip():
            yield number, line


def _parse_line(line: str) -> Any:
    if len(line) > MAX_ROW_CHARACTERS:
        raise ValueError(f"it has {len(line):,} characters, more than {MAX_ROW_CHARACTERS:,}")
    return json.loads(line)


def _parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows as they would be in JSON: without null fields, and with `meta` parsed if it is JSON text."""
    arrow, parquet = import_pyarrow(path)
    with open(path, "rb") as file:
        try:
            rows = parquet.read_table(file).to_pylist()
        except arrow.ArrowInvalid as error:
            raise ConfigError(f"The problem file {path} is not Parquet: {error}.") from None
    for number, row in enumerate(rows, 1):
        row = {name: value for name, value in row.items() if value is not None}
        if isinstance(row.get("meta"), str):
            with suppress(ValueError):  # invalid JSON is reported by _parse_row as a wrong type
                row["meta"] = json.loads(row["meta"])
        yield number, row


def import_pyarrow(path: Path) -> tuple[Any, Any]:
    """Imports pyarrow and pyarrow.parquet; an error names the file that needs them."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(
            f"{path} is a Parquet file, which needs pyarrow. Use JSON lines (.jsonl), or install it: "
            f"{install_command('parquet')}"
        ) from None
    return pyarrow, parquet


def _parse_row(row: Any, default_task: str) -> Problem:
    """Validates one row; an integer answer is converted to text."""
    if not isinstance(row, dict):
        raise ValueError("it is not an object")
    names = [FILE_NAMES.get(f.name, f.name) for f in fields(Problem)]
    row = {name: row[name] for name in names if name in row}
    for name in ("question", "answer"):
        if name not in row:
            raise ValueError(f'it has no "{name}"')
    if type(row["answer"]) is int:
        row["answer"] = str(row["answer"])
    row.setdefault("key", row["question"])
    row.setdefault("task", default_task)
    for name, value in row.items():
        expected = {"decimals": int, "meta": dict}.get(name, str)
        if type(value) is not expected:
            raise ValueError(f'its "{name}" is {repr(value)[:200]}, not a {expected.__name__}')
        _check_value(name, value)
    kind = AnswerKind(row.pop("kind", "number"))
    return Problem(gold_answer=row.pop("answer"), answer_kind=kind, **row)


def _check_value(name: str, value: Any) -> None:
    """Raises for values that the rollout log could not hold, and for texts that are no problem's."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except TypeError as error:  # Parquet has types that JSON lacks, such as Decimal and dates
        raise ValueError(f'its "{name}" is not JSON: {error}; convert it to text') from None
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise ValueError(
            f'its "{name}" contains the lone surrogate U+{code:04X}, which is not valid Unicode'
        ) from None
    except ValueError:
        raise ValueError(f'its "{name}" contains NaN or an infinite number') from None
    limit = {"question": MAX_QUESTION_CHARACTERS, "answer": MAX_ANSWER_CHARACTERS}.get(
        name, MAX_ROW_CHARACTERS
    )
    size = len(value if isinstance(value, str) else text)
    if size > limit:
        raise ValueError(f'its "{name}" has {size:,} characters, more than {limit:,}')
