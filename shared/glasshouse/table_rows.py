"""Prints the rows of a Parquet or Arrow file on stdin as JSON lines; imports no glasshouse.

`foreign_files` runs it in a process of its own, with a limit of memory: a few bytes of a table can expand to
gigabytes, and a damaged one can end the process that reads it, also where validation finds nothing.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

BATCH_ROWS = 64


def iter_batches(format: str) -> Iterator[Any]:
    import pyarrow as arrow
    from pyarrow import parquet

    with open(0, "rb") as raw:
        if format == "arrow":  # the stream that `Dataset.save_to_disk` of Hugging Face writes
            stream = arrow.ipc.open_stream(raw)
            schema, batches = stream.schema, iter(stream)
        else:
            file = parquet.ParquetFile(raw, buffer_size=2**20)
            schema = file.schema_arrow
            batches = file.iter_batches(batch_size=BATCH_ROWS, use_threads=False)
        if len(set(schema.names)) < len(schema.names):
            raise ValueError("two columns have the same name")
        for batch in batches:
            batch.validate(full=True)
            for start in range(0, batch.num_rows, BATCH_ROWS):
                yield batch.slice(start, BATCH_ROWS)


def to_json(value: Any) -> str | None:
    """A value that JSON does not have. Bytes may be text; None if they are an image."""
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def main(format: str, memory_bytes: int) -> None:
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # others reserve more than they use
    with suppress(ValueError, OSError):  # not supported on every system
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    try:
        for batch in iter_batches(format):
            for row in batch.to_pylist():
                sys.stdout.write(json.dumps(row, default=to_json) + "\n")
        sys.stdout.flush()
    except MemoryError:  # also Arrow's
        sys.exit(f"{BATCH_ROWS} rows of it take more than {memory_bytes:,} bytes of memory")
    except Exception as error:
        sys.exit(str(error) or type(error).__name__)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
    os._exit(0)  # Arrow's threads may abort the end of a process on a busy machine
