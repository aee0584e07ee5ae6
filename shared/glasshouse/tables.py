"""Read rows of rollouts or problems one at a time, from whatever other projects write.

    rows.jsonl, .jsonl.zst, .jsonl.gz   one JSON object per line
    rows.csv                            with a line of column names
    rows.parquet                        needs the extra `parquet`
    log.eval, log.json                  an Inspect log: a row per sample, beside the header of its log
    folder                              a Hugging Face dataset (save_to_disk), or any of these files

Nothing is held but one row (of a table: one batch, in another process). No code of a file is run.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import struct
import subprocess
import sys
import zipfile
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from subprocess import PIPE
from typing import IO, Any

import zstandard

from glasshouse import table_rows
from glasshouse.errors import RolloutFileError, import_extra

Row = dict[str, Any]
OnProgress = Callable[[float], None]
"""Called with the share of the source that is read."""
PROGRESS_ROWS = 1024
MAX_ROW_BYTES = 10_000_000
"""Of one row as JSON; Python's objects take up to 40 times as much."""
MAX_EXPANSION, FREE_BYTES = 100, 128_000_000
"""A file may expand to so many times its size, and to FREE_BYTES in any case."""
MAX_EMPTY_BYTES = 1_000_000
"""Of all empty lines."""
TABLE_BYTES = 2_000_000_000
"""Memory of the process that reads a table."""
ZSTD_READ_BYTES = 4096
"""Compressed bytes that are decompressed at once; they may hold 30,000 times as many."""
MAX_LOG_BYTES = 400_000_000
"""Of an Inspect log as one JSON value, which is parsed at once."""
LOG_FIELDS = ("eval_id", "model", "task", "created", "metadata", "task_args")
"""What a row has of the header of an Inspect log, besides the file's name."""
ZIP_ZSTD = 93
"""Inspect compresses with zstd, which Python's zipfile cannot read before version 3.14."""
UNPACKING = (zlib.error, lzma.LZMAError, struct.error, zipfile.BadZipFile, zstandard.ZstdError)
DAMAGE = (OSError, ValueError, EOFError, RuntimeError, *UNPACKING)
"""What damaged files raise; RuntimeError is unknown compression or encryption."""


def iter_rows(path: Path, on_progress: OnProgress = lambda share: None) -> Iterator[Row]:
    """The rows of a file or folder, in order."""
    files = list_files(path)
    for number, file in enumerate(files):
        size, count = max(1, file.stat().st_size), 0
        with open(file, "rb") as raw:
            try:
                for count, row in enumerate(_parse_lines(_find_reader(file)(raw, file), size), 1):
                    yield row
                    if count % PROGRESS_ROWS == 0:
                        on_progress((number + min(1.0, raw.tell() / size)) / len(files))
            except RolloutFileError:
                raise
            except DAMAGE as error:
                raise RolloutFileError(
                    f"{file}, after row {count}: this cannot be read, or is damaged: {str(error).rstrip('. ')}."
                ) from None
    on_progress(1.0)


def get_field(row: Mapping[str, Any], column: str, default: Any = None) -> Any:
    """A column of a row, or with dots a field inside of it. Example: `get_field(config, "task.name", "")`"""
    if column in row:
        return row[column]
    name, dot, rest = column.partition(".")
    inner = row.get(name)
    return get_field(inner, rest, default) if dot and isinstance(inner, Mapping) else default


def list_files(path: Path) -> list[Path]:
    """The files of a source."""
    if not path.exists():
        raise RolloutFileError(f"{path} does not exist.")
    if not path.is_dir():
        if not path.is_file():
            raise RolloutFileError(f"{path} is neither a regular file nor a folder.")
        _require_extra([path])
        return [path]
    # a dataset, or its splits; .json is last, since many folders have such files beside their tables
    for pattern in ("*.arrow", "*/*.arrow", "**/*", "**/*.json"):
        wanted = SUFFIXES if pattern != "**/*" else TABLES
        found = path.glob(pattern)
        files = sorted(f for f in found if f.is_file() and f.name.lower().endswith(wanted))
        if files:
            break
    # prime-rl writes the rollouts that it trains on twice: to all/ and to effective/
    files = [
        file
        for file in files
        if file.parent.name != "effective" or file.parent.with_name("all") / file.name not in files
    ]
    if not files:
        raise RolloutFileError(
            f"{path} holds no .jsonl, .csv, .parquet, .arrow, .eval or .json file."
        )
    _require_extra(files)
    return files


def _require_extra(files: Sequence[Path]) -> None:
    """Raise before anything is read if one of the files needs a package that is not installed."""
    for file in files:
        if _find_reader(file) is _read_table:
            import_extra("parquet", str(file), "pyarrow", error=RolloutFileError)


def _parse_lines(lines: Iterator[bytes], file_bytes: int) -> Iterator[Row]:
    """The row of each line that is not empty. Every limit on what a source expands to is checked here."""
    expanded = empty = 0
    for line in lines:
        expanded += len(line)
        if len(line) > MAX_ROW_BYTES:
            raise ValueError(f"the next is longer than {MAX_ROW_BYTES:,} bytes")
        if expanded > max(FREE_BYTES, MAX_EXPANSION * file_bytes):
            raise ValueError(
                f"it expands to more than {MAX_EXPANSION} times its size. If you trust the file, unpack it to .jsonl"
            )
        if not line.strip():
            empty += len(line)
            if empty > MAX_EMPTY_BYTES:
                raise ValueError(f"more than {MAX_EMPTY_BYTES:,} bytes of it are empty lines")
            continue
        row = json.loads(line, object_pairs_hook=_make_object)
        if not isinstance(row, dict):
            raise ValueError(f"the next is a {type(row).__name__}; each must be an object")
        yield row


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("the next names a column twice")
    return values


def _read_jsonl(raw: IO[bytes], file: Path) -> Iterator[bytes]:
    stream: Any = raw
    if file.name.lower().endswith(".zst"):
        stream = io.BufferedReader(ZstdFrames(raw))
    elif file.name.lower().endswith(".gz"):
        stream = gzip.GzipFile(fileobj=raw)
    while line := stream.readline(MAX_ROW_BYTES + 1):
        yield line.removeprefix(BOM_UTF8)


def _read_csv(raw: IO[bytes], file: Path) -> Iterator[bytes]:
    csv.field_size_limit(MAX_ROW_BYTES)
    text = io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")
    try:
        for row in csv.DictReader(text, strict=True):
            if None in row or None in row.values():
                raise ValueError("the next has more or fewer values than there are columns")
            yield json.dumps(row).encode()
    except csv.Error as error:
        raise ValueError(str(error)) from None
    finally:
        text.detach()


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


def _read_table(raw: IO[bytes], file: Path) -> Iterator[bytes]:
    """A Parquet file, or the Arrow stream of a Hugging Face dataset; see table_rows.py."""
    command = [sys.executable, "-m", table_rows.__name__, file.suffix.lower()[1:], str(TABLE_BYTES)]
    with subprocess.Popen(command, stdin=raw, stdout=PIPE, stderr=PIPE) as child:
        assert child.stdout
        assert child.stderr
        try:
            while line := child.stdout.readline(MAX_ROW_BYTES + 1):
                yield line
            reason = child.stderr.read(10_000).decode(errors="replace").strip().splitlines()[-1:]
            if code := child.wait():
                raise ValueError(*reason or [f"its reader ended with code {code}"])
        finally:
            child.kill()


def _read_inspect(raw: IO[bytes], file: Path) -> Iterator[bytes]:
    """An Inspect log as a zip archive with one JSON file per sample."""
    archive = zipfile.ZipFile(raw)
    members = {info.filename: info for info in archive.infolist()}
    start = members.get("header.json") or members.get("_journal/start.json")  # of a log without end
    header = _log_header(json.loads(_read_member(archive, raw, start)) if start else {}, file)
    for name, info in members.items():
        if name.startswith("samples/"):
            yield b'{"log": %b, "sample": %b}' % (header, _read_member(archive, raw, info))


def _read_member(archive: zipfile.ZipFile, raw: IO[bytes], info: zipfile.ZipInfo) -> bytes:
    if info.compress_type != ZIP_ZSTD:
        with archive.open(info) as member:
            return member.read(MAX_ROW_BYTES + 1)
    raw.seek(info.header_offset + 26)
    name_length, extra_length = struct.unpack("<HH", raw.read(4))
    raw.seek(name_length + extra_length, io.SEEK_CUR)
    data = io.BytesIO(raw.read(min(info.compress_size, MAX_ROW_BYTES)))
    return io.BufferedReader(ZstdFrames(data)).read(MAX_ROW_BYTES + 1)


def _read_inspect_json(raw: IO[bytes], file: Path) -> Iterator[bytes]:
    """An Inspect log as one JSON value."""
    text = raw.read(MAX_LOG_BYTES + 1)
    if len(text) > MAX_LOG_BYTES:
        raise ValueError("it is too large; `inspect log convert --to eval` makes it readable")
    log = json.loads(text)
    if not isinstance(log, dict) or not isinstance(log.get("eval"), dict):
        raise ValueError("it is not an Inspect log, the only .json file that is read")
    header = _log_header(log, file)
    for sample in log.get("samples") or []:
        yield b'{"log": %b, "sample": %b}' % (header, json.dumps(sample).encode())


def _log_header(log: Mapping[str, Any], file: Path) -> bytes:
    evaluation = log.get("eval") or {}
    fields = {name: evaluation.get(name) for name in LOG_FIELDS}
    return json.dumps({**fields, "file": file.name}).encode()


READERS: dict[tuple[str, ...], Callable[[IO[bytes], Path], Iterator[bytes]]] = {
    (".jsonl", ".ndjson", ".jsonl.zst", ".jsonl.gz", ".ndjson.zst", ".ndjson.gz"): _read_jsonl,
    (".csv",): _read_csv,
    (".parquet", ".arrow"): _read_table,
    (".eval",): _read_inspect,
    (".json",): _read_inspect_json,
}
"""Each yields the JSON of one row at a time; _parse_lines checks it."""
SUFFIXES = tuple(suffix for suffixes in READERS for suffix in suffixes)
TABLES = tuple(suffix for suffix in SUFFIXES if suffix != ".json")


def _find_reader(file: Path) -> Callable[[IO[bytes], Path], Iterator[bytes]]:
    for suffixes, reader in READERS.items():
        if file.name.lower().endswith(suffixes):
            return reader
    raise RolloutFileError(
        f"{file}: the format is not known by its name. Known: .jsonl (also .zst, .gz), .csv, .parquet, .eval, .json of "
        "Inspect, a folder of these, a Hugging Face dataset, a run directory."
    )
