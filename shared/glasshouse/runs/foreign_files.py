"""Read rows of rollouts one at a time, from whatever another trainer wrote.

    rollouts.jsonl, .jsonl.zst, .jsonl.gz   one JSON object per line
    rollouts.parquet                        needs the extra `parquet`
    folder                                  a Hugging Face dataset (save_to_disk), JSON lines or Parquet files,
                                            a Glasshouse run
    log.eval                                an Inspect log

Nothing is held but one row (of a table: one batch). No code of a file is run.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import zstandard

from glasshouse.errors import RolloutFileError, import_extra
from glasshouse.runs.checkpoints import read_newest_state
from glasshouse.runs.rollout_log import LOG, read_rows
from glasshouse.runs.rows import Row
from glasshouse.runs.verify import verify_rollout_log

OnProgress = Callable[[float], None]
"""Called with the share of the source that is read."""
BATCH_ROWS = 1024
MAX_LINE_BYTES = 64_000_000
ZSTD_READ_BYTES = 4096
"""Compressed bytes that are decompressed at once; they may hold 30,000 times as many."""
ZIP_ZSTD = 93
"""Inspect compresses with zstd, which Python's zipfile cannot read before version 3.14."""
UNPACKING = (zlib.error, lzma.LZMAError, struct.error, zipfile.BadZipFile, zstandard.ZstdError)
DAMAGE = (OSError, ValueError, EOFError, RuntimeError, *UNPACKING)
"""What damaged files raise; RuntimeError is unknown compression or encryption."""


def iter_rows(path: Path, on_progress: OnProgress = lambda share: None) -> Iterator[Row]:
    """The rows of a file or folder, in order."""
    if (path / "results" / LOG).is_file():
        for damage in verify_rollout_log(
            path, read_newest_state(path / "checkpoints"), frames=False
        ):
            raise RolloutFileError(f"{path}: {damage}")
        yield from read_rows(path)
        return
    files = list_files(path)
    for number, file in enumerate(files):
        size, count = max(1, file.stat().st_size), 0
        with open(file, "rb") as raw:
            try:
                for count, row in enumerate(_find_reader(file)(raw, file), 1):
                    yield _check_row(row)
                    if count % BATCH_ROWS == 0:
                        on_progress((number + min(1.0, raw.tell() / size)) / len(files))
            except RolloutFileError:
                raise
            except DAMAGE as error:
                raise RolloutFileError(
                    f"{file}, after row {count}: this cannot be read, or is damaged: {str(error).rstrip('. ')}."
                ) from None
    on_progress(1.0)


def list_files(path: Path) -> list[Path]:
    """The files of a source."""
    if not path.exists():
        raise RolloutFileError(f"{path} does not exist.")
    if not path.is_dir():
        if not path.is_file():
            raise RolloutFileError(f"{path} is neither a regular file nor a folder.")
        _find_reader(path)
        return [path]
    # a dataset, or its splits
    files = sorted(path.glob("*.arrow")) or sorted(path.glob("*/*.arrow"))
    if not files:
        files = sorted(
            f for f in path.rglob("*") if f.is_file() and f.name.lower().endswith(SUFFIXES)
        )
    # prime-rl writes the rollouts that it trains on twice: to all/ and to effective/
    files = [
        file
        for file in files
        if file.parent.name != "effective" or file.parent.with_name("all") / file.name not in files
    ]
    if not files:
        raise RolloutFileError(f"{path} holds no .jsonl, .parquet, .arrow or .eval file.")
    return files


def _check_row(row: Any) -> Row:
    if not isinstance(row, dict):
        raise ValueError(f"the next is a {type(row).__name__}; each must be an object")
    return row


def _parse(line: bytes) -> Any:
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"the next is longer than {MAX_LINE_BYTES:,} bytes")
    return json.loads(line)


def _iter_jsonl(raw: IO[bytes], file: Path) -> Iterator[Any]:
    stream: Any = raw
    if file.name.lower().endswith(".zst"):
        stream = io.BufferedReader(ZstdFrames(raw))
    elif file.name.lower().endswith(".gz"):
        stream = gzip.GzipFile(fileobj=raw)
    while line := stream.readline(MAX_LINE_BYTES + 1):
        if line.strip():
            yield _parse(line)


class ZstdFrames(io.RawIOBase):
    """The content of consecutive zstd frames. Unlike zstandard's reader, it raises if the last frame is
    cut off: otherwise a part of the rollouts would be measured as if it were all of them."""

    def __init__(self, raw: IO[bytes]) -> None:
        self.raw, self.pending, self.rest = raw, memoryview(b""), b""
        self.frame: Any = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.pending:
            data = self.rest or self.raw.read(ZSTD_READ_BYTES)
            if not data:
                if self.frame is not None:
                    raise EOFError("the file ends inside a frame")
                return 0
            self.frame = self.frame or zstandard.ZstdDecompressor().decompressobj()
            self.pending = memoryview(self.frame.decompress(data))
            self.rest = b""
            if self.frame.eof:
                self.rest, self.frame = self.frame.unused_data, None
        count = min(len(buffer), len(self.pending))
        buffer[:count] = self.pending[:count]
        self.pending = self.pending[count:]
        return count


def _iter_table(raw: IO[bytes], file: Path) -> Iterator[Any]:
    """A Parquet file, or the Arrow stream that `Dataset.save_to_disk` of Hugging Face writes."""
    names = ("pyarrow", "pyarrow.parquet")
    arrow, parquet = import_extra("parquet", str(file), *names, error=RolloutFileError)
    try:
        if file.suffix.lower() == ".arrow":
            batches = arrow.ipc.open_stream(raw)
        else:
            batches = parquet.ParquetFile(raw).iter_batches(batch_size=BATCH_ROWS)
        for batch in batches:
            for start in range(0, batch.num_rows, BATCH_ROWS):
                yield from batch.slice(start, BATCH_ROWS).to_pylist()
    except arrow.ArrowException as error:
        raise ValueError(str(error)) from None


def _iter_inspect(raw: IO[bytes], file: Path) -> Iterator[Any]:
    """The samples of an Inspect log, a zip archive with one JSON file per sample. No more of one is unpacked
    than a line may hold."""
    archive = zipfile.ZipFile(raw)
    for info in archive.infolist():
        if not info.filename.startswith("samples/"):
            continue
        if info.compress_type == ZIP_ZSTD:
            raw.seek(info.header_offset + 26)
            name_length, extra_length = struct.unpack("<HH", raw.read(4))
            raw.seek(name_length + extra_length, io.SEEK_CUR)
            data = io.BytesIO(raw.read(info.compress_size))
            yield _parse(io.BufferedReader(ZstdFrames(data)).read(MAX_LINE_BYTES + 1))
        else:
            with archive.open(info) as member:
                yield _parse(member.read(MAX_LINE_BYTES + 1))


READERS: dict[tuple[str, ...], Callable[[IO[bytes], Path], Iterator[Any]]] = {
    (".jsonl", ".ndjson", ".jsonl.zst", ".jsonl.gz", ".ndjson.zst", ".ndjson.gz"): _iter_jsonl,
    (".parquet", ".arrow"): _iter_table,
    (".eval",): _iter_inspect,
}
SUFFIXES = tuple(suffix for suffixes in READERS for suffix in suffixes)


def _find_reader(file: Path) -> Callable[[IO[bytes], Path], Iterator[Any]]:
    for suffixes, reader in READERS.items():
        if file.name.lower().endswith(suffixes):
            return reader
    raise RolloutFileError(
        f"{file}: the format is not known by its name. Known: .jsonl (also .zst, .gz), .parquet, .eval, a folder "
        "of these, a Hugging Face dataset, a run directory."
    )
