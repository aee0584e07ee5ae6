"""Read rows of rollouts one at a time, from whatever another trainer wrote.

    rollouts.jsonl, .jsonl.zst, .jsonl.gz   one JSON object per line
    rollouts.parquet                        needs the extra `parquet`
    folder                                  a Hugging Face dataset (save_to_disk), JSON lines or Parquet files,
                                            a Glasshouse run
    log.eval                                an Inspect log

Nothing is held but one row (of Parquet: one batch). No code of a file is run.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import zstandard

from glasshouse.errors import RolloutFileError
from glasshouse.extras import install_command
from glasshouse.runs.rollout_log import LOG, read_rows

Row = dict[str, Any]
OnProgress = Callable[[float], None]
"""Called with the share of the source that is read."""
BATCH_ROWS = 1024
MAX_LINE_BYTES = 64_000_000
ZSTD_READ_BYTES = 4096
"""Compressed bytes that are decompressed at once; they may hold 30,000 times as many."""
JSONL = (".jsonl", ".ndjson", ".jsonl.zst", ".jsonl.gz", ".ndjson.zst", ".ndjson.gz")
ZIP_ZSTD = 93
"""Inspect compresses with zstd, which Python's zipfile cannot read before version 3.14."""


def iter_rows(path: Path, on_progress: OnProgress = lambda share: None) -> Iterator[Row]:
    """The rows of a file or folder, in order."""
    files = list_files(path)
    for number, file in enumerate(files):

        def report_file(share: float, number: int = number) -> None:
            on_progress((number + share) / len(files))

        yield from _iter_file(file, report_file)
    on_progress(1.0)


def list_files(path: Path) -> list[Path]:
    """The files of a source; the run directory itself for a Glasshouse run."""
    if not path.exists():
        raise RolloutFileError(f"{path} does not exist.")
    if not path.is_file() and not path.is_dir():
        raise RolloutFileError(f"{path} is neither a regular file nor a folder.")
    if path.is_file():
        if _kind(path) == "":
            raise RolloutFileError(
                f"{path}: the format is not known by its name. Known: .jsonl (also .zst, .gz), .parquet, "
                ".eval, a folder of these, a Hugging Face dataset, a run directory."
            )
        return [path]
    if (path / "results" / LOG).is_file():
        return [path]
    arrow = sorted(path.glob("*.arrow")) or sorted(
        path.glob("*/*.arrow")
    )  # a dataset, or its splits
    files = arrow or sorted(file for file in path.rglob("*") if file.is_file() and _kind(file))
    files = [file for file in files if not _is_copy(file, files)]
    if not files:
        raise RolloutFileError(f"{path} holds no .jsonl, .parquet, .arrow or .eval file.")
    return files


def _is_copy(file: Path, files: Sequence[Path]) -> bool:
    """prime-rl writes the rollouts that it trains on twice: to all/ and to effective/."""
    folder = file.parent
    return folder.name == "effective" and folder.with_name("all") / file.name in files


def _kind(file: Path) -> str:
    name = file.name.lower()
    if name.endswith(JSONL):
        return "jsonl"
    return {".parquet": "parquet", ".eval": "inspect", ".arrow": "arrow"}.get(
        file.suffix.lower(), ""
    )


def _iter_file(file: Path, on_progress: OnProgress) -> Iterator[Row]:
    if file.is_dir():
        return _iter_run(file)
    readers = {
        "jsonl": _iter_jsonl,
        "parquet": _iter_parquet,
        "inspect": _iter_inspect,
        "arrow": _iter_arrow,
    }
    return readers[_kind(file)](file, on_progress)


def _iter_jsonl(file: Path, on_progress: OnProgress) -> Iterator[Row]:
    size = max(1, file.stat().st_size)
    with open(file, "rb") as raw:
        stream: Any = raw
        if file.name.lower().endswith(".zst"):
            stream = io.BufferedReader(ZstdFrames(raw))
        elif file.name.lower().endswith(".gz"):
            stream = gzip.GzipFile(fileobj=raw)
        number = 0
        while True:
            try:
                line = stream.readline(MAX_LINE_BYTES + 1)
            except (zstandard.ZstdError, zlib.error, EOFError, gzip.BadGzipFile) as error:
                raise RolloutFileError(
                    f"{file}, after row {number}: the compressed data is damaged ({_plain(error)})."
                ) from None
            if not line:
                return
            if not line.strip():
                continue
            number += 1
            yield _parse_line(line, file, number)
            if number % BATCH_ROWS == 0:
                on_progress(min(1.0, raw.tell() / size))


class ZstdFrames(io.RawIOBase):
    """The content of consecutive zstd frames. Unlike zstandard's reader, it raises if the last frame is
    cut off: otherwise a part of the rollouts would be measured as if it were all of them."""

    def __init__(self, raw: Any) -> None:
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


def _plain(error: Exception) -> str:
    """The message of a library without its full stop: a sentence of ours goes on after it."""
    return str(error).rstrip(". ")


def _parse_line(line: bytes, file: Path, number: int) -> Row:
    if len(line) > MAX_LINE_BYTES:
        raise RolloutFileError(
            f"{file}, row {number}: the line is longer than {MAX_LINE_BYTES:,} bytes."
        )
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RolloutFileError(
            f"{file}, row {number}: this is not JSON: {_plain(error)}."
        ) from None
    if not isinstance(row, dict):
        raise RolloutFileError(
            f"{file}, row {number}: this is a {type(row).__name__}; each line must be an object."
        )
    return row


def _iter_parquet(file: Path, on_progress: OnProgress) -> Iterator[Row]:
    parquet = _import_arrow("pyarrow.parquet", file)
    arrow = _import_arrow("pyarrow", file)
    try:
        table = parquet.ParquetFile(file)
        done, total = 0, max(1, table.metadata.num_rows)
        for batch in table.iter_batches(batch_size=BATCH_ROWS):
            yield from batch.to_pylist()
            done += batch.num_rows
            on_progress(done / total)
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise RolloutFileError(f"{file} cannot be read as Parquet: {_plain(error)}.") from None


def _iter_arrow(file: Path, on_progress: OnProgress) -> Iterator[Row]:
    """A Hugging Face dataset: the Arrow stream that `Dataset.save_to_disk` writes."""
    arrow = _import_arrow("pyarrow", file)
    size = max(1, file.stat().st_size)
    try:
        with arrow.memory_map(str(file)) as source, arrow.ipc.open_stream(source) as stream:
            for batch in stream:
                for start in range(0, batch.num_rows, BATCH_ROWS):
                    yield from batch.slice(start, BATCH_ROWS).to_pylist()
                on_progress(min(1.0, source.tell() / size))
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise RolloutFileError(
            f"{file} cannot be read as a Hugging Face dataset: {_plain(error)}."
        ) from None


def _iter_inspect(file: Path, on_progress: OnProgress) -> Iterator[Row]:
    """The samples of an Inspect log, a zip archive with one JSON file per sample."""
    try:
        with zipfile.ZipFile(file) as archive, open(file, "rb") as raw:
            samples = [info for info in archive.infolist() if info.filename.startswith("samples/")]
            for number, info in enumerate(samples, 1):
                data = (
                    _read_zstd_member(raw, info)
                    if info.compress_type == ZIP_ZSTD
                    else _read_member(archive, info)
                )
                yield _parse_line(data, file, number)
                on_progress(number / len(samples))
    except (
        zipfile.BadZipFile, zstandard.ZstdError, zlib.error, lzma.LZMAError, struct.error, EOFError,
        NotImplementedError, RuntimeError,
    ) as error:  # fmt: skip  # the last two: unknown compression, encryption
        raise RolloutFileError(
            f"{file} is not an Inspect log, or is damaged: {_plain(error)}."
        ) from None


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """A file of the archive, of which no more is unpacked than a line may hold."""
    with archive.open(info) as member:
        return member.read(MAX_LINE_BYTES + 1)


def _read_zstd_member(raw: Any, info: zipfile.ZipInfo) -> bytes:
    raw.seek(info.header_offset + 26)
    name_length, extra_length = struct.unpack("<HH", raw.read(4))
    raw.seek(name_length + extra_length, io.SEEK_CUR)
    data = raw.read(info.compress_size)
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        return bytes(reader.read(MAX_LINE_BYTES + 1))


def _iter_run(run: Path) -> Iterator[Row]:
    from glasshouse.runs.checkpoints import read_newest_state
    from glasshouse.runs.verify import verify_rollout_log

    state = read_newest_state(run / "checkpoints")
    for damage in verify_rollout_log(run, state, frames=False):
        raise RolloutFileError(f"{run}: {damage}")
    yield from read_rows(run)


def _import_arrow(name: str, file: Path) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        raise RolloutFileError(
            f"{file} needs pyarrow, which is not installed: {install_command('parquet')}"
        ) from None
