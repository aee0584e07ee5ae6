"""Files of rollouts that `glasshouse measure` should refuse, or survive: see proofs/hostile_files.py."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pyarrow.parquet as parquet
import zstandard

Kind = Callable[[Path, int], Sequence[str]]
REFUSED: dict[str, Kind] = {}
READABLE: dict[str, Kind] = {}


def kind(*values: Any, kinds: dict[str, Kind] = REFUSED) -> Callable[[Callable[..., Any]], None]:
    """Register a function of a folder and a variation that writes a file and returns the arguments of a command.
    With values, its third argument is one of them; what is not a list of arguments is the content of a.jsonl."""

    def register(make: Callable[..., Any]) -> None:
        def make_file(folder: Path, n: int) -> Sequence[str]:
            made = make(folder, n, *([values[n % len(values)]] if values else []))
            return write(folder, made) if isinstance(made, bytes) else made

        kinds[make.__name__] = make_file

    return register


def make_row(n: int, **values: Any) -> dict[str, Any]:
    """A row that can be measured, or one with other values."""
    row = {"prompt": f"What is {n} + 1?", "completion": f"I add 1 to {n}. [ANSWER] {n + n % 2}"}
    row |= {"gold": str(n + 1), "reward": n % 2, "label": n % 3 == 0, "arm": str(n // 2 % 2)}
    return row | {"group": n // 4, "checkpoint": n // 20, "seed": n % 2} | values


ROWS = [make_row(n) for n in range(40)]
TABLE = arrow.Table.from_pylist(ROWS)


def to_jsonl(rows: Sequence[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def replace_row(**values: Any) -> bytes:
    """Rows of which one has other values."""
    return to_jsonl([*ROWS[:7], make_row(7, **values), *ROWS[8:]])


def write(folder: Path, data: bytes, name: str = "a.jsonl") -> list[str]:
    """Write a file; the arguments that measure it."""
    (folder / name).write_bytes(data)
    return ["measure", name]


def compress(data: bytes, n: int) -> tuple[bytes, str]:
    """The data with gzip or zstandard, and the name of its file."""
    if n % 2:
        return zstandard.compress(data), "a.jsonl.zst"
    return gzip.compress(data, 5), "a.jsonl.gz"


def write_table(folder: Path, table: Any, n: int) -> list[str]:
    stream = io.BytesIO()
    if n % 2:
        parquet.write_table(table, stream, compression="zstd")
        return write(folder, stream.getvalue(), "a.parquet")
    with arrow.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    return write(folder, stream.getvalue(), "a.arrow")


def write_log(folder: Path, samples: Sequence[bytes]) -> list[str]:
    """An Inspect log."""
    with zipfile.ZipFile(folder / "a.eval", "w", zipfile.ZIP_DEFLATED) as archive:
        for number, sample in enumerate(samples):
            archive.writestr(f"samples/{number}.json", sample)
    return ["measure", "a.eval"]


# --- what must be refused ----------------------------------------------------------------------


@kind()
def cut_compressed_lines(folder: Path, n: int) -> Any:
    data, name = compress(to_jsonl(ROWS * 10), n)
    return write(folder, data[: len(data) * (n + 1) // 12], name)


@kind()
def empty_lines_that_expand(folder: Path, n: int) -> Any:
    """Gigabytes of empty lines."""
    lines = (b"\n", b" \n", b"\t\n", b"\r\n", b" " * 999 + b"\n")[n // 2] * 100_000
    data, name = compress(lines, n)
    return write(folder, data * (4_000_000_000 // len(lines)), name)


@kind()
def line_without_end(folder: Path, n: int) -> Any:
    """The longest would take gigabytes as Python's objects."""
    repeated = (b'"aaaaaa', b'[{"":0},', b"[[],[],")[n // 3 % 3]
    data = (b'{"completion": ' + repeated * 40_000_000)[: 10**7 * (n + 1) * 3]
    return write(folder, *compress(data, n)) if n % 3 else data


@kind()
def zip_bomb(folder: Path, n: int) -> Any:
    return write_log(folder, [b'{"input": "' + b"a" * (300_000_000 // (n + 1))] * (n + 1))


@kind()
def dictionary_bomb(folder: Path, n: int) -> Any:
    """A table of a few kilobytes: one long text in a dictionary, in every row."""
    indices, texts = arrow.array([0] * 1024, arrow.int32()), ["a" * (2_000_000 * (n + 1))]
    column = arrow.DictionaryArray.from_arrays(indices, texts)
    return write_table(folder, arrow.table({"completion": column}), n)


@kind()
def cut_table(folder: Path, n: int) -> Any:
    arguments = write_table(folder, TABLE, n)
    file = folder / arguments[-1]
    os.truncate(file, file.stat().st_size * (n + 1) // 12)
    return arguments


@kind(*ROWS[0])
def duplicated_column(folder: Path, n: int, name: str) -> Any:
    if n < 5:
        return to_jsonl(ROWS).replace(b"}", f', "{name}": 0}}'.encode())
    return write_table(folder, TABLE.append_column(name, TABLE[name]), n)


@kind()
def damaged_log(folder: Path, n: int) -> Any:
    message = {"role": "assistant", "content": "2 and 2 is 4. [ANSWER] 4"}
    sample = {"id": 0, "epoch": 1, "input": "2 + 2", "target": "4", "messages": [message]}
    write_log(folder, [json.dumps(sample | {"output": {}}).encode()] * 20)
    data = bytearray((folder / "a.eval").read_bytes())
    data[60 + 170 * n] ^= 0xFF  # inside a compressed sample
    return write(folder, bytes(data if n < 5 else data[: -200 * n]), "a.eval")


@kind(("[", "]"), ('{"a":', "}"))
def deep_nesting(folder: Path, n: int, brackets: tuple[str, str]) -> Any:
    start, end = (bracket * 2_000 * 3**n for bracket in brackets)
    return f'{{"completion": {start}1{end}}}\n'.encode()


@kind("reward", "label")
def huge_number(folder: Path, n: int, column: str) -> Any:
    digits = b"9" * (400, 5_000, 4_000_000, 1_000, 4_300)[n // 2]
    return replace_row(**{column: "huge"}).replace(b'"huge"', digits)


@kind(1e101, float("inf"), -float("inf"), 1.5e308, "nan", "1e999", {}, True, [1.0], {})
def reward_that_is_not_finite(folder: Path, n: int, reward: Any) -> Any:
    return replace_row(reward=reward)


@kind(
    *({"seed": value} for value in ("²", -1, 1.5)),
    *({"label": 2}, {"label": "maybe"}, {"arm": "both"}),
    *({"completion": value} for value in (3, None, [])),
    {"seed": {"a": [{}]}},
)
def unusable_value(folder: Path, n: int, values: dict[str, Any]) -> Any:
    return replace_row(**values)


@kind(*ROWS[0])
def missing_column(folder: Path, n: int, name: str) -> Any:
    first = 0 if name == "completion" else n + 1
    rows = [{key: value for key, value in row.items() if key != name} for row in ROWS]
    return to_jsonl([*ROWS[:first], *rows[first:]])


@kind("1", "null", "'text'", "[]", "[{}]", "true", "a,b", "<html>", "{'a': 1}", "{} {}")
def not_objects(folder: Path, n: int, text: str) -> Any:
    return to_jsonl(ROWS[:n]) + text.encode() + b"\n"


@kind(
    *("a.jsonl", "a.parquet", "a.arrow", "a.eval", "a.jsonl.gz", "a.jsonl.zst"),
    *("a.ndjson", "a.txt", "empty", "absent.jsonl"),
)
def empty_source(folder: Path, n: int, name: str) -> Any:
    (folder / "empty").mkdir()
    return write(folder, b"", name) if n < 8 else ["measure", name]


@kind("utf-16", "utf-16-le", "utf-32", "latin-1", "cp037")
def wrong_encoding(folder: Path, n: int, encoding: str) -> Any:
    data = to_jsonl(ROWS).decode().replace("I add", "Ich füge").encode(encoding)
    return data if n < 5 else to_jsonl(ROWS) + data


@kind("jsonl", "eval", "parquet", "jsonl.zst", "arrow")
def foreign_bytes(folder: Path, n: int, suffix: str) -> Any:
    """NUL bytes, random bytes, a pickle and other formats under names that are known."""
    data = (b"\0" * 99_999, random.Random(n).randbytes(5_000), pickle.dumps(ROWS))
    data += (gzip.compress(to_jsonl(ROWS)), b"PK\3\4" + b"\0" * 99)
    return write(folder, data[n // 2], f"a.{suffix}")


@kind(
    *("", "", "", "/dev/zero", "/dev/full", "a.jsonl", "a.arrow", "/proc/self/mem", "/dev/stdin"),
    "b/../..",
)
def not_a_file(folder: Path, n: int, target: str) -> Any:
    """Pipes, devices, loops of links, a folder with a file's name, and a file that cannot be read."""
    path = folder / ("a.jsonl", "a.arrow")[n % 2]
    if n < 2:
        os.mkfifo(path)
    else:
        path.mkdir() if n == 2 else path.symlink_to(target)
    return ["measure", "." if n == 1 else path.name]


@kind(
    *("(a+)+$", "(a|a)*$", "(a|aa)+$", "(a+b?)+$", "^(([a-z])+.)+[A-Z]([a-z])+$", "(.*a){20}c"),
    *("(?:a?){30}a{30}b", "(x+x+)+y|(a+)+y", "(aa?)+$", "(?i)(A+)+$"),
)
def expression_without_end(folder: Path, n: int, pattern: str) -> Any:
    arguments = write(folder, replace_row(completion="a" * 50_000 + "! [ANSWER] 3"))
    return [*arguments, "--monitor", f"rule:own={pattern}"]


# --- what may be read --------------------------------------------------------------------------


@kind(kinds=READABLE)
def flipped_bits_of_a_table(folder: Path, n: int) -> Any:
    """Without a checksum, a letter that became another cannot be known."""
    rng = random.Random(n)
    arguments = write_table(folder, TABLE, n)
    data = bytearray((folder / arguments[-1]).read_bytes())
    for _ in range(3):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return write(folder, bytes(data), arguments[-1])


@kind(kinds=READABLE)
def byte_order_mark(folder: Path, n: int) -> Any:
    return to_jsonl(ROWS[:n]) + b"\xef\xbb\xbf" + to_jsonl(ROWS[n:])


@kind({"arm": "1"}, {"label": True}, {"seed": 7}, {"reward": 1e99}, kinds=READABLE)
def uneven_checkpoints(folder: Path, n: int, last: dict[str, Any]) -> Any:
    """The last checkpoint has few rollouts, of one arm or label or other seeds, or very large rewards."""
    return to_jsonl([*ROWS[:20], *(make_row(row, **last) for row in range(20, 21 + n))])


@kind("group", "checkpoint", "gold", "prompt", kinds=READABLE)
def lists_as_names(folder: Path, n: int, column: str) -> Any:
    value = ([1, 2], {"a": 1}, [[1], [2]], ["a", {"content": ["b", 3]}], [{}])[n % 5]
    return replace_row(**{column: value})


@kind(
    *("\ud800", "\x1b]0;a\x07\x1b[2J", "<script>alert(1)</script>", "|a|[b](javascript:c)"),
    *("\0\r\v", "\u202e\u2066", "[ANSWER] " * 50_000, "<think>" * 20_000),
    *("\\boxed{" * 50_000, "9" * 200_000),
    kinds=READABLE,
)
def hostile_text(folder: Path, n: int, text: str) -> Any:
    """Lone surrogates, escape sequences, markup and very long texts, written into a report."""
    values = {"completion": text, "checkpoint": text[:40], "prompt": text}
    return [*write(folder, to_jsonl([row | values for row in ROWS])), "--out", "measured"]
