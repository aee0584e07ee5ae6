"""Rollouts as tables: SQL queries through DuckDB, and export to Parquet, JSON lines or CSV.

DuckDB gets rows from `RolloutReader` and never opens the log itself: given a truncated file, it
would return the first part without an error. Tables hold valid Unicode only, so a lone surrogate is
written as its escape (`\\udc80`).
"""

from __future__ import annotations

import csv
import importlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from glasshouse.errors import RunError
from glasshouse.extras import install_command
from glasshouse.files import check_output_file
from glasshouse.runs.rows import Row, encode_rows, row_types
from glasshouse.types import Message


def import_optional(feature: str, *names: str) -> list[Any]:
    """Import modules of the extra `sql`; the error names the feature that needs them."""
    try:
        return [importlib.import_module(name) for name in names]
    except ImportError:
        packages = "DuckDB and pyarrow" if "duckdb" in names else "pyarrow"
        raise RunError(
            f"{feature} needs {packages} (--json and .jsonl files do not): {install_command('sql')}"
        ) from None


def arrow_schema(arrow: Any) -> Any:
    """Build the Arrow schema of the table from the fields of a row; `meta` is JSON text."""
    text = arrow.string()
    columns = {
        int: arrow.int64(),
        float: arrow.float64(),
        bool: arrow.bool_(),
        tuple[int, ...]: arrow.list_(arrow.int32()),
        tuple[int, int]: arrow.list_(arrow.int64()),
        tuple[float, ...]: arrow.list_(arrow.float32()),
        Mapping[str, float]: arrow.map_(text, arrow.float64()),
        Sequence[Message]: arrow.list_(arrow.struct([("role", text), ("content", text)])),
    }
    return arrow.schema(
        [(name, columns.get(kind, text)) for name, (kind, _) in row_types().items()]
    )


def iter_batches(arrow: Any, rows: Iterable[Row], size: int = 512) -> Iterator[Any]:
    """Convert rows to Arrow record batches of `size` rows."""
    schema, iterator = arrow_schema(arrow), iter(rows)
    while chunk := list(islice(iterator, size)):
        values = [
            {
                **escape_surrogates(row),
                "meta": json.dumps(row["meta"]),
                "terms": list(row["terms"].items()),
            }
            for row in chunk
        ]
        yield arrow.RecordBatch.from_pylist(values, schema=schema)


def run_sql(rows: Iterable[Row], query: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Run a SELECT over the table `rollouts`; returns column names and records. The table is in a
    temporary file, so a log larger than memory can be queried."""
    arrow, duckdb = import_optional("--sql", "pyarrow", "duckdb")
    with tempfile.TemporaryDirectory() as folder:
        database = duckdb.connect(str(Path(folder) / "rollouts.duckdb"))
        try:
            database.execute("set autoinstall_known_extensions = false")
            incoming = arrow.RecordBatchReader.from_batches(
                arrow_schema(arrow), iter_batches(arrow, rows)
            )
            database.register("incoming", incoming)
            # A copy, because the batch reader can be read only once.
            database.execute("create table rollouts as from incoming")
            database.unregister("incoming")
            try:
                _require_select(duckdb, database.extract_statements(query))
                database.execute(query)
                names = [column[0] for column in database.description or []]
                return names, database.fetchall() if names else []
            except duckdb.Error as error:
                raise RunError(f"--sql failed. {_explain_sql_error(str(error))}") from None
        finally:
            database.close()


def _require_select(duckdb: Any, statements: Sequence[Any]) -> None:
    """Raise unless the query is one statement that only reads: the table is a copy, so that a change
    would be lost in silence."""
    readers = {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN}
    if len(statements) != 1:
        raise RunError(f"--sql takes one SELECT statement; this query has {len(statements)}.")
    if statements[0].type not in readers:
        kind = statements[0].type.name.replace("_", " ")
        raise RunError(
            f"--sql takes only SELECT statements, and this is {kind}: the rollout log cannot be changed."
        )


def _explain_sql_error(message: str) -> str:
    """Shorten DuckDB's message to one line, and add a hint."""
    first = " ".join(message.split("\n\n")[0].split())
    if "syntax error" in first:
        return f'{first}. A column named like an SQL keyword needs quotes: "group".'
    return f"{first}. The table is rollouts; its columns are {', '.join(row_types())}."


def export_rows(rows: Iterable[Row], file: Path) -> int:
    """Write rows atomically to a new .parquet, .jsonl or .csv file; returns their number. Without
    rows, no file is written."""
    writers: dict[str, Callable[[Iterator[Row], Path], None]] = {
        ".parquet": _write_parquet,
        ".jsonl": _write_jsonl,
        ".csv": _write_csv,
    }
    check_output_file("--export", file, list(writers))
    if file.exists():
        raise RunError(f"--export {file} already exists. Choose another name.")
    temporary = file.with_name(f".{file.name}.tmp")
    count = 0

    def count_rows() -> Iterator[Row]:
        nonlocal count
        for row in rows:
            count += 1
            yield row

    try:
        writers[file.suffix](count_rows(), temporary)
        if count:
            with open(temporary, "r+b") as written:
                os.fsync(written.fileno())
            os.replace(temporary, file)
    except OSError as error:
        raise RunError(f"--export {file} cannot be written: {error.strerror}.") from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    return count


def _write_parquet(rows: Iterator[Row], file: Path) -> None:
    name = file.name.removeprefix(".").removesuffix(".tmp")
    arrow, parquet = import_optional(name, "pyarrow", "pyarrow.parquet")
    with parquet.ParquetWriter(str(file), arrow_schema(arrow), compression="zstd") as writer:
        for batch in iter_batches(arrow, rows, 4096):
            writer.write_batch(batch)


def _write_jsonl(rows: Iterator[Row], file: Path) -> None:
    with open(file, "wb") as out:
        for row in rows:
            out.write(encode_rows([row]))


def _write_csv(rows: Iterator[Row], file: Path) -> None:
    """Write CSV; lists and objects are JSON text in their cell."""
    with open(file, "w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(row_types())
        for row in rows:
            values = escape_surrogates(row)
            writer.writerow(
                json.dumps(v, ensure_ascii=False) if isinstance(v, list | dict | bool) else v
                for v in (values[name] for name in row_types())
            )


def escape_surrogates(value: Any) -> Any:
    """Replace lone surrogates in every text of a value by their escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {escape_surrogates(key): escape_surrogates(v) for key, v in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], str | dict | list):
        return [escape_surrogates(v) for v in value]
    return value
