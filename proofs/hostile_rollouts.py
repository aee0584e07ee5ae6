"""Files of rollouts that `glasshouse measure` should refuse, or survive: see proofs/hostile_files.py."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pyarrow.parquet as parquet
import zstandard

PACK = {"": bytes, ".gz": lambda data: gzip.compress(data, 5), ".zst": zstandard.compress}


def make_row(n: int, **values: Any) -> dict[str, Any]:
    """A row that can be measured, or one with other values."""
    row = {"prompt": f"What is {n} + 1?", "completion": f"I add 1 to {n}. [ANSWER] {n + n % 2}"}
    row |= {"gold": str(n + 1), "reward": n % 2, "label": n % 3 == 0, "arm": str(n // 2 % 2)}
    return row | {"group": n // 4, "checkpoint": n // 20, "seed": n % 2} | values


ROWS = [make_row(n) for n in range(40)]


def to_jsonl(rows: Sequence[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def write(folder: Path, data: bytes, name: str = "a.jsonl") -> list[str]:
    """Write a file; the arguments that measure it."""
    (folder / name).write_bytes(data)
    return ["measure", name]


def write_row(folder: Path, **values: Any) -> list[str]:
    """Rows of which one has other values."""
    return write(folder, to_jsonl([*ROWS[:7], make_row(7, **values), *ROWS[8:]]))


def write_table(folder: Path, table: Any, variation: int) -> list[str]:
    stream = io.BytesIO()
    if variation % 2:
        parquet.write_table(table, stream, compression="zstd")
        return write(folder, stream.getvalue(), "a.parquet")
    with arrow.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    return write(folder, stream.getvalue(), "a.arrow")


def write_log(folder: Path, samples: Sequence[bytes]) -> Path:
    """An Inspect log."""
    with zipfile.ZipFile(folder / "a.eval", "w", zipfile.ZIP_DEFLATED) as archive:
        for number, sample in enumerate(samples):
            archive.writestr(f"samples/{number}.json", sample)
    return folder / "a.eval"


# --- what must be refused ----------------------------------------------------------------------


def cut_compressed_lines(folder: Path, variation: int) -> list[str]:
    suffix = (".gz", ".zst")[variation % 2]
    data = PACK[suffix](to_jsonl(ROWS * 10))
    return write(folder, data[: len(data) * (variation + 1) // 12], f"a.jsonl{suffix}")


def empty_lines_that_expand(folder: Path, variation: int) -> list[str]:
    """Gigabytes of empty lines."""
    suffix = (".gz", ".zst")[variation % 2]
    lines = (b"\n", b" \n", b"\t\n", b"\r\n", b" " * 999 + b"\n")[variation // 2] * 100_000
    return write(folder, PACK[suffix](lines) * (4_000_000_000 // len(lines)), f"a.jsonl{suffix}")


def line_without_end(folder: Path, variation: int) -> list[str]:
    """The longest would take gigabytes as Python's objects."""
    suffix = list(PACK)[variation % 3]
    data = (
        b'{"completion": ' + (b'"aaaaaa', b'[{"":0},', b"[[],[],")[variation // 3 % 3] * 40_000_000
    )
    return write(folder, PACK[suffix](data[: 10**7 * (variation + 1) * 3]), f"a.jsonl{suffix}")


def zip_bomb(folder: Path, variation: int) -> list[str]:
    samples = [b'{"input": "' + b"a" * (300_000_000 // (variation + 1))] * (variation + 1)
    return ["measure", write_log(folder, samples).name]


def dictionary_bomb(folder: Path, variation: int) -> list[str]:
    """A table of a few kilobytes: one long text in a dictionary, in every row."""
    text = "a" * (2_000_000 * (variation + 1))
    column = arrow.DictionaryArray.from_arrays(arrow.array([0] * 1024, arrow.int32()), [text])
    return write_table(folder, arrow.table({"completion": column}), variation)


def cut_table(folder: Path, variation: int) -> list[str]:
    arguments = write_table(folder, arrow.Table.from_pylist(ROWS), variation)
    file = folder / arguments[-1]
    os.truncate(file, file.stat().st_size * (variation + 1) // 12)
    return arguments


def duplicated_column(folder: Path, variation: int) -> list[str]:
    name, table = list(ROWS[0])[variation % 9], arrow.Table.from_pylist(ROWS)
    if variation < 5:
        return write(folder, to_jsonl(ROWS).replace(b"}", f', "{name}": 0}}'.encode()))
    return write_table(folder, table.append_column(name, table[name]), variation)


def damaged_log(folder: Path, variation: int) -> list[str]:
    message = {"role": "assistant", "content": "2 and 2 is 4. [ANSWER] 4"}
    sample = {
        "id": 0,
        "epoch": 1,
        "input": "2 + 2",
        "target": "4",
        "messages": [message],
        "output": {},
    }
    file = write_log(folder, [json.dumps(sample).encode()] * 20)
    data = bytearray(file.read_bytes())
    data[60 + 170 * variation] ^= 0xFF  # inside a compressed sample
    return write(folder, bytes(data if variation < 5 else data[: -200 * variation]), file.name)


def deep_nesting(folder: Path, variation: int) -> list[str]:
    depth, (start, end) = 2_000 * 3**variation, (("[", "]"), ('{"a":', "}"))[variation % 2]
    return write(folder, f'{{"completion": {start * depth}1{end * depth}}}\n'.encode())


def huge_number(folder: Path, variation: int) -> list[str]:
    digits = "9" * (400, 5_000, 4_000_000, 1_000, 4_300)[variation // 2]
    arguments = write_row(folder, **{("reward", "label")[variation % 2]: "huge"})
    return write(folder, (folder / arguments[-1]).read_bytes().replace(b'"huge"', digits.encode()))


def reward_that_is_not_finite(folder: Path, variation: int) -> list[str]:
    texts = [
        "1e101",
        "Infinity",
        "-Infinity",
        "1.5e308",
        '"nan"',
        '"1e999"',
        "{}",
        "true",
        "[1.0]",
        "{}",
    ]
    return write_row(folder, reward=json.loads(texts[variation]))


def unusable_value(folder: Path, variation: int) -> list[str]:
    texts = """{"seed": "²"}|{"seed": -1}|{"seed": 1.5}|{"label": 2}|{"label": "maybe"}|{"arm": "both"}|
        {"completion": 3}|{"completion": null}|{"completion": []}|{"seed": {"a": [{}]}}"""
    return write_row(folder, **json.loads(texts.split("|")[variation]))


def missing_column(folder: Path, variation: int) -> list[str]:
    name = list(ROWS[0])[variation % 9]
    first = 0 if name == "completion" else variation + 1
    rows = [{key: value for key, value in row.items() if key != name} for row in ROWS]
    return write(folder, to_jsonl([*ROWS[:first], *rows[first:]]))


def not_objects(folder: Path, variation: int) -> list[str]:
    texts = ["1", "null", "'text'", "[]", "[{}]", "true", "a,b", "<html>", "{'a': 1}", "{} {}"]
    return write(folder, to_jsonl(ROWS[:variation]) + texts[variation].encode() + b"\n")


def empty_source(folder: Path, variation: int) -> list[str]:
    (folder / "empty").mkdir()
    names = [
        "a.jsonl",
        "a.parquet",
        "a.arrow",
        "a.eval",
        "a.jsonl.gz",
        "a.jsonl.zst",
        "a.ndjson",
        "a.txt",
        "empty",
        "absent.jsonl",
    ]
    return write(folder, b"", names[variation]) if variation < 8 else ["measure", names[variation]]


def wrong_encoding(folder: Path, variation: int) -> list[str]:
    text = to_jsonl(ROWS).decode().replace("I add", "Ich füge")
    data = text.encode(["utf-16", "utf-16-le", "utf-32", "latin-1", "cp037"][variation % 5])
    return write(folder, data if variation < 5 else to_jsonl(ROWS) + data)


def foreign_bytes(folder: Path, variation: int) -> list[str]:
    """NUL bytes, random bytes, a pickle and other formats under names that are known."""
    data = (b"\0" * 99_999, random.Random(variation).randbytes(5_000), pickle.dumps(ROWS))
    data += (gzip.compress(to_jsonl(ROWS)), b"PK\3\4" + b"\0" * 99)
    names = ["a.jsonl", "a.parquet", "a.arrow", "a.eval", "a.jsonl.zst"]
    return write(folder, data[variation // 2], names[variation * 3 % 5])


def not_a_file(folder: Path, variation: int) -> list[str]:
    """Pipes, devices, loops of links, a folder with a file's name, and a file that cannot be read."""
    path = folder / ("a.jsonl", "a.arrow")[variation % 2]
    targets = [
        "/dev/zero",
        "/dev/full",
        "a.jsonl",
        "a.arrow",
        "/proc/self/mem",
        "/dev/stdin",
        "b/../..",
    ]
    if variation < 2:
        os.mkfifo(path)
        return ["measure", (path.name, ".")[variation]]
    path.mkdir() if variation == 2 else path.symlink_to(targets[variation - 3])
    return ["measure", path.name]


def expression_without_end(folder: Path, variation: int) -> list[str]:
    patterns = "(a+)+$ (a|a)*$ (a|aa)+$ (a+b?)+$ ^(([a-z])+.)+[A-Z]([a-z])+$ (.*a){20}c"
    patterns += " (?:a?){30}a{30}b (x+x+)+y|(a+)+y (aa?)+$ (?i)(A+)+$"
    arguments = write_row(folder, completion="a" * 50_000 + "! [ANSWER] 3")
    return [*arguments, "--monitor", f"rule:own={patterns.split()[variation]}"]


# --- what may be read --------------------------------------------------------------------------


def flipped_bits_of_a_table(folder: Path, variation: int) -> list[str]:
    """Without a checksum, a letter that became another cannot be known."""
    rng = random.Random(variation)
    arguments = write_table(folder, arrow.Table.from_pylist(ROWS), variation)
    data = bytearray((folder / arguments[-1]).read_bytes())
    for _ in range(3):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return write(folder, bytes(data), arguments[-1])


def byte_order_mark(folder: Path, variation: int) -> list[str]:
    return write(folder, to_jsonl(ROWS[:variation]) + b"\xef\xbb\xbf" + to_jsonl(ROWS[variation:]))


def uneven_checkpoints(folder: Path, variation: int) -> list[str]:
    """The last checkpoint has few rollouts, of one arm or label or other seeds, or very large rewards."""
    last = ({"arm": "1"}, {"label": True}, {"seed": 7}, {"reward": 1e99})[variation % 4]
    rows = [make_row(n, **last) for n in range(20, 21 + variation)]
    return write(folder, to_jsonl([*ROWS[:20], *rows]))


def lists_as_names(folder: Path, variation: int) -> list[str]:
    value = ([1, 2], {"a": 1}, [[1], [2]], ["a", {"content": ["b", 3]}], [{}])[variation % 5]
    return write_row(folder, **{("group", "checkpoint", "gold", "prompt")[variation % 4]: value})


def hostile_text(folder: Path, variation: int) -> list[str]:
    """Lone surrogates, escape sequences, markup and very long texts, written into a report."""
    texts = ["\ud800", "\x1b]0;a\x07\x1b[2J", "<script>alert(1)</script>", "|a|[b](javascript:c)"]
    texts += ["\0\r\v", "\u202e\u2066", "[ANSWER] " * 50_000, "<think>" * 20_000]
    text = [*texts, "\\boxed{" * 50_000, "9" * 200_000][variation]
    rows = [row | {"completion": text, "checkpoint": text[:40], "prompt": text} for row in ROWS]
    return [*write(folder, to_jsonl(rows)), "--out", "measured"]


READABLE = (
    *(flipped_bits_of_a_table, byte_order_mark, uneven_checkpoints, lists_as_names, hostile_text),
)
REFUSED = tuple(
    kind
    for name, kind in list(globals().items())
    if getattr(kind, "__code__", None) and kind.__code__.co_varnames[:2] == ("folder", "variation")
    if kind not in READABLE
)
