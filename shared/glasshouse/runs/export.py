"""Export of rollouts to Parquet or JSON lines. Tables hold valid Unicode only, so a lone surrogate is written as its
escape (`\\udc80`)."""

from __future__ import annotations

import json
import os
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


def iter_batches(arrow: Any, rows: Iterable[Row], size: int = 4096) -> Iterator[Any]:
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
    arrow, parquet = import_extra("parquet", "A .parquet file", "pyarrow", "pyarrow.parquet")
    count = 0
    with parquet.ParquetWriter(str(file), arrow_schema(arrow), compression="zstd") as writer:
        for batch in iter_batches(arrow, rows):
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
