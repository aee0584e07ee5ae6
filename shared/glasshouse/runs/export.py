"""Rollouts as tables: SQL queries through DuckDB, and export to Parquet or JSON lines.

DuckDB gets rows from `RolloutReader` and never opens the log itself: given a truncated file, it
would return the first part without an error. Tables hold valid Unicode only, so a lone surrogate is
written as its escape (`\\udc80`).
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from glasshouse.errors import RunError, import_extra
from glasshouse.files import check_output_file
from glasshouse.runs.rows import Row, encode_rows, row_types
from glasshouse.types import Message


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
    """Run a query over the table `rollouts`; returns column names and records. The table is a copy in a
    temporary file, so a log larger than memory can be queried."""
    arrow, duckdb = import_extra("sql", "--sql", "pyarrow", "duckdb")
    with (
        tempfile.TemporaryDirectory() as folder,
        duckdb.connect(str(Path(folder) / "rollouts.duckdb")) as database,
    ):
        database.execute("set autoinstall_known_extensions = false")
        batches = iter_batches(arrow, rows)
        incoming = arrow.RecordBatchReader.from_batches(arrow_schema(arrow), batches)
        database.register("incoming", incoming)
        database.execute("create table rollouts as from incoming")
        database.unregister("incoming")
        try:
            kinds = [statement.type.name for statement in database.extract_statements(query)]
            if kinds not in (["SELECT"], ["EXPLAIN"]):  # a change of the copy would be lost
                found = ", ".join(kinds).replace("_", " ") or "nothing"
                raise RunError(f"--sql takes one SELECT statement, and this is {found}.")
            database.execute(query)
            return [column[0] for column in database.description], database.fetchall()
        except duckdb.Error as error:
            raise RunError(f"--sql failed. {_explain_sql_error(str(error))}") from None


def _explain_sql_error(message: str) -> str:
    """Shorten DuckDB's message to one line, and add a hint."""
    first = " ".join(message.split("\n\n")[0].split())
    if "syntax error" in first:
        return f'{first}. A column named like an SQL keyword needs quotes: "group".'
    return f"{first}. The table is rollouts; its columns are {', '.join(row_types())}."


def export_rows(rows: Iterable[Row], file: Path) -> int:
    """Write rows atomically to a new .parquet or .jsonl file; returns their number. Without rows, no file is
    written."""
    writers = {".parquet": _write_parquet, ".jsonl": _write_jsonl}
    check_output_file("--export", file, list(writers))
    if file.exists():
        raise RunError(f"--export {file} already exists. Choose another name.")
    temporary = file.with_name(f".{file.name}.tmp")
    try:
        count = writers[file.suffix](rows, temporary)
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


def _write_parquet(rows: Iterable[Row], file: Path) -> int:
    arrow, parquet = import_extra("sql", "A .parquet file", "pyarrow", "pyarrow.parquet")
    count = 0
    with parquet.ParquetWriter(str(file), arrow_schema(arrow), compression="zstd") as writer:
        for batch in iter_batches(arrow, rows, 4096):
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def _write_jsonl(rows: Iterable[Row], file: Path) -> int:
    count = 0
    with open(file, "wb") as out:
        for row in rows:
            out.write(encode_rows([row]))
            count += 1
    return count


def escape_surrogates(value: Any) -> Any:
    """Replace lone surrogates in every text of a value by their escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {escape_surrogates(key): escape_surrogates(v) for key, v in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], str | dict | list):
        return [escape_surrogates(v) for v in value]
    return value
