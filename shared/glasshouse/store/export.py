"""Rollouts as tables: Arrow batches, SQL through DuckDB, files for others.

DuckDB is fed from our own reader and never opens the record: of a truncated file it would return
the beginning and say nothing. A table's text is Unicode, so that a lone surrogate stands in it as
its escape (`\\udc80`).
"""

from __future__ import annotations

import csv
import importlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from glasshouse.errors import RunError
from glasshouse.store.rollout_rows import encode

Row = dict[str, Any]
COLUMNS = {
    "kind": "string", "step": "int64", "split": "string", "group": "int64", "sample": "int64",
    "task": "string", "key": "string", "level": "string", "question": "string", "gold": "string",
    "answer_kind": "string", "decimals": "int64", "meta": "string", "messages": "messages",
    "prompt": "string", "completion": "string", "stop": "string", "reward": "float64",
    "parts": "parts", "correct": "bool_", "lenient": "bool_", "strict": "bool_", "tagged": "bool_",
    "answer": "string", "rule": "string", "span": "int64s", "ambiguous": "bool_",
    "reason": "string", "advantage": "float64", "version": "int64", "length": "int64",
    "prompt_tokens": "int32s", "tokens": "int32s", "logprobs": "float32s", "time": "float64",
}  # fmt: skip
"""Every field of the record with its Arrow type; `meta` is JSON text, `parts` a map."""


def needed(what: str, *names: str) -> list[Any]:
    """Modules of the extra `sql`, or a sentence that says what needs them."""
    try:
        return [importlib.import_module(name) for name in names]
    except ImportError:
        packages = "DuckDB and pyarrow" if "duckdb" in names else "pyarrow"
        raise RunError(
            f'{what} needs {packages}: pip install "glasshouse[sql]". '
            "--json and .jsonl files need nothing."
        ) from None


def schema(arrow: Any) -> Any:
    """The table's columns as Arrow has them."""
    message = arrow.struct([("role", arrow.string()), ("content", arrow.string())])
    nested = {
        "messages": arrow.list_(message),
        "parts": arrow.map_(arrow.string(), arrow.float64()),
        "int64s": arrow.list_(arrow.int64()),
        "int32s": arrow.list_(arrow.int32()),
        "float32s": arrow.list_(arrow.float32()),
    }
    return arrow.schema(
        [(name, nested.get(kind) or getattr(arrow, kind)()) for name, kind in COLUMNS.items()]
    )


def batches(arrow: Any, rows: Iterable[Row], size: int = 512) -> Iterator[Any]:
    """Rows as Arrow record batches, a few at a time."""
    ours, rest = schema(arrow), iter(rows)
    while some := list(islice(rest, size)):
        listed = [
            {**unicode(row), "meta": json.dumps(row["meta"]), "parts": list(row["parts"].items())}
            for row in some
        ]
        yield arrow.RecordBatch.from_pylist(listed, schema=ours)


def sql(rows: Iterable[Row], query: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The names and rows that a query over the table `rollouts` gives. The table lies in a file
    that goes afterwards, so that a record larger than memory can be asked too."""
    arrow, duckdb = needed("--sql", "pyarrow", "duckdb")
    with tempfile.TemporaryDirectory() as folder:
        database = duckdb.connect(str(Path(folder) / "rollouts.duckdb"))
        try:
            database.execute("set autoinstall_known_extensions = false")
            incoming = arrow.RecordBatchReader.from_batches(schema(arrow), batches(arrow, rows))
            database.register("incoming", incoming)
            database.execute("create table rollouts as from incoming")  # a reader is read only once
            database.unregister("incoming")
            try:
                database.execute(query)
                names = [column[0] for column in database.description or []]
                return names, database.fetchall() if names else []
            except duckdb.Error as error:
                raise RunError(f"The query cannot be answered. {said(str(error))}") from None
        finally:
            database.close()


def said(error: str) -> str:
    """DuckDB's message as one line, with the way out of its commonest trap."""
    first = " ".join(error.split("\n\n")[0].split())
    if "syntax error" in first:
        return f'{first}. (A column that is called like a word of SQL needs quotes: "group".)'
    return f"{first}. The table is rollouts; its columns: {', '.join(COLUMNS)}."


def export(rows: Iterable[Row], file: Path) -> int:
    """Write rows to a new file, Parquet, JSON lines or CSV by its suffix; returns how many. The
    file is whole or not there."""
    writers: dict[str, Callable[[Iterator[Row], Path], None]] = {
        ".parquet": _parquet,
        ".jsonl": _jsonl,
        ".csv": _csv,
    }
    if file.suffix not in writers:
        raise RunError(f"{file} must end in .parquet, .jsonl or .csv: its suffix says the format.")
    if file.exists():
        raise RunError(f"{file} exists, and an export overwrites nothing. Choose another name.")
    if not file.parent.is_dir():
        raise RunError(f"{file} cannot be written: there is no folder {file.parent}.")
    aside = file.with_name(f".{file.name}.tmp")
    count = 0

    def counted() -> Iterator[Row]:
        nonlocal count
        for row in rows:
            count += 1
            yield row

    try:
        writers[file.suffix](counted(), aside)
        if count:
            with open(aside, "r+b") as written:
                os.fsync(written.fileno())
            os.replace(aside, file)
    except PermissionError as error:
        raise RunError(f"{file} cannot be written: {error.strerror}.") from None
    finally:
        aside.unlink(missing_ok=True)
    return count


def _parquet(rows: Iterator[Row], file: Path) -> None:
    name = file.name.removeprefix(".").removesuffix(".tmp")
    arrow, parquet = needed(name, "pyarrow", "pyarrow.parquet")
    with parquet.ParquetWriter(str(file), schema(arrow), compression="zstd") as writer:
        for batch in batches(arrow, rows, 4096):
            writer.write_batch(batch)


def _jsonl(rows: Iterator[Row], file: Path) -> None:
    with open(file, "wb") as out:
        for row in rows:
            out.write(encode([row]))


def _csv(rows: Iterator[Row], file: Path) -> None:
    """Lists and objects are JSON within their cell."""
    with open(file, "w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(COLUMNS)
        for row in rows:
            plain = unicode(row)
            writer.writerow(
                json.dumps(v, ensure_ascii=False) if isinstance(v, list | dict | bool) else v
                for v in (plain[name] for name in COLUMNS)
            )


def unicode(value: Any) -> Any:
    """Every text within a value as valid Unicode."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {unicode(key): unicode(v) for key, v in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], str | dict | list):
        return [unicode(v) for v in value]
    return value
