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

Row = dict[str, Any]


def make_rows(count: int = 40) -> list[Row]:
    """Rows that can be measured."""
    return [
        {
            "prompt": f"What is {n} + 1?",
            "completion": f"I add one to {n}. [ANSWER] {n + n % 2}",
            "gold": str(n + 1),
            "reward": float(n % 2),
            "label": n % 3 == 0,
            "arm": ("planted", "control")[n // 2 % 2],
            "group": n // 4,
            "checkpoint": n // 20,
            "seed": n % 2,
        }
        for n in range(count)
    ]


def to_jsonl(rows: Sequence[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def write(folder: Path, data: bytes, name: str = "rollouts.jsonl") -> list[str]:
    """Write a file; the arguments that measure it."""
    (folder / name).write_bytes(data)
    return ["measure", name]


def write_changed(folder: Path, variation: int, **values: Any) -> list[str]:
    """Rows of which one has other values."""
    rows = make_rows()
    rows[variation * 4 % len(rows)] |= values
    return write(folder, to_jsonl(rows))


def write_table(folder: Path, table: Any, suffix: str) -> list[str]:
    stream = io.BytesIO()
    if suffix == "parquet":
        parquet.write_table(table, stream)
    else:
        with arrow.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table)
    return write(folder, stream.getvalue(), f"rollouts.{suffix}")


def make_table(folder: Path, variation: int) -> Path:
    suffix = ("arrow", "parquet")[variation % 2]
    write_table(folder, arrow.Table.from_pylist(make_rows()), suffix)
    return folder / f"rollouts.{suffix}"


def inspect_sample(number: int = 0) -> Row:
    message = {"role": "assistant", "content": "2 and 2 is 4. [ANSWER] 4"}
    output = {"choices": [{"message": message}]}
    return {
        "id": number,
        "epoch": 1,
        "input": "2 + 2",
        "target": "4",
        "messages": [message],
        "output": output,
    }


# --- what must be refused ----------------------------------------------------------------------


def cut_compressed_lines(folder: Path, variation: int) -> list[str]:
    suffix, compress = (("gz", gzip.compress), ("zst", zstandard.compress))[variation % 2]
    data = compress(to_jsonl(make_rows(400)))
    return write(folder, data[: len(data) * (variation + 1) // 12], f"rollouts.jsonl.{suffix}")


def empty_lines_that_expand(folder: Path, variation: int) -> list[str]:
    """A few kilobytes of gigabytes of newlines."""
    blank = (b"\n", b" \n", b"\t\n", b"\r\n", b"\n \n")[variation // 2] * 8_000_000
    name = ("rollouts.jsonl.gz", "rollouts.jsonl.zst")[variation % 2]
    data = gzip.compress(blank, 9) if name.endswith("gz") else zstandard.compress(blank)
    return write(folder, data * (8_000_000_000 // len(blank)), name)


def line_without_end(folder: Path, variation: int) -> list[str]:
    text = b'{"completion": "' + b"a" * 200_000_000
    name = ("rollouts.jsonl", "rollouts.jsonl.gz", "rollouts.jsonl.zst")[variation % 3]
    pack: Sequence[Callable[[bytes], bytes]] = (
        bytes,
        lambda b: gzip.compress(b, 1),
        zstandard.compress,
    )
    return write(folder, pack[variation % 3](text[: 20 * 10 ** (6 + (variation > 2))]), name)


def zip_bomb(folder: Path, variation: int) -> list[str]:
    """Samples of an Inspect log that unpack to far more than the log."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for number in range(variation + 1):
            with archive.open(f"samples/{number}.json", "w", force_zip64=True) as member:
                member.write(b'{"input": "')
                for _ in range(300 // (variation + 1)):
                    member.write(b"a" * 1_000_000)
    return write(folder, stream.getvalue(), "log.eval")


def dictionary_bomb(folder: Path, variation: int) -> list[str]:
    """A table of a few kilobytes: one long text in a dictionary, in every row."""
    text = "a" * (2_000_000 * (variation + 1))
    column = arrow.DictionaryArray.from_arrays(arrow.array([0] * 1024, arrow.int32()), [text])
    table = arrow.table({"completion": column, "reward": [1.0] * 1024})
    stream = io.BytesIO()
    if variation % 3 == 2:
        return write_table(folder, table, "arrow")
    parquet.write_table(table, stream, compression="zstd")
    return write(folder, stream.getvalue(), "rollouts.parquet")


def cut_table(folder: Path, variation: int) -> list[str]:
    file = make_table(folder, variation)
    os.truncate(file, file.stat().st_size * (variation + 1) // 12)
    return ["measure", file.name]


def duplicated_columns(folder: Path, variation: int) -> list[str]:
    rows = make_rows()
    name = list(rows[0])[variation % 5]
    if variation % 2:
        line = to_jsonl(rows[:1]).decode().replace("}", f', "{name}": 0}}')
        return write(folder, line.encode() + to_jsonl(rows[1:]))
    table = arrow.Table.from_pylist(rows)
    return write_table(
        folder, table.append_column(name, table[name]), ("parquet", "arrow")[variation // 2 % 2]
    )


def damaged_inspect_log(folder: Path, variation: int) -> list[str]:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(20):
            archive.writestr(f"samples/{number}.json", json.dumps(inspect_sample(number)))
    data = bytearray(stream.getvalue())
    if variation < 5:  # inside a compressed sample
        data[60 + 170 * variation] ^= 0xFF
    return write(folder, bytes(data if variation < 5 else data[: -200 * variation]), "log.eval")


def deep_nesting(folder: Path, variation: int) -> list[str]:
    depth = 2_000 * 3**variation
    opening, end = (("[", "]"), ('{"a":', "}"))[variation % 2]
    value = opening * depth + "1" + end * depth * (variation % 3 > 0)
    return write(folder, f'{{"completion": {value}}}\n'.encode())


def huge_number(folder: Path, variation: int) -> list[str]:
    digits = "9" * (400, 5_000, 4_000_000)[variation % 3]
    column = ("reward", "seed", "label", "activations")[variation % 4]
    row = to_jsonl(make_rows()).decode().replace(f'"{column}": ', f'"{column}": {digits}, "x": ', 1)
    arguments = write(folder, row.encode())
    return arguments if column != "activations" else [*arguments, "--map", "activations=x"]


def reward_that_is_not_finite(folder: Path, variation: int) -> list[str]:
    values = (
        float("nan"),
        float("inf"),
        -float("inf"),
        1.5e308,
        "nan",
        "1e999",
        None,
        True,
        [1.0],
        {},
    )
    return write_changed(folder, variation, reward=values[variation])


def unusable_value(folder: Path, variation: int) -> list[str]:
    values: Sequence[Row] = (
        {"seed": "²"}, {"seed": -1}, {"seed": 1.5}, {"label": 2}, {"label": "maybe"}, {"arm": "both"},
        {"completion": 3}, {"completion": None}, {"completion": []}, {"checkpoint": {"a": [{}]}, "seed": "x"},
    )  # fmt: skip
    return write_changed(folder, variation, **values[variation])


def missing_column(folder: Path, variation: int) -> list[str]:
    rows = make_rows()
    name = ("completion", "gold", "reward", "label", "arm")[variation // 2]
    for row in rows if name == "completion" else rows[variation + 1 :]:
        del row[name]
    return write(folder, to_jsonl(rows))


def not_objects(folder: Path, variation: int) -> list[str]:
    texts = ("1", "null", '"text"', "[]", "[{}]", "true", "a,b\n1,2", "<html>", "{'a': 1}", "{} {}")
    return write(folder, to_jsonl(make_rows()[:variation]) + texts[variation].encode() + b"\n")


def empty_source(folder: Path, variation: int) -> list[str]:
    names = (
        "a.jsonl",
        "a.parquet",
        "a.arrow",
        "a.eval",
        "a.jsonl.gz",
        "a.jsonl.zst",
        "a.ndjson",
        "a.txt",
    )
    if variation < len(names):
        return write(folder, b"", names[variation])
    (folder / "empty").mkdir()
    return ["measure", "empty"] if variation == 8 else ["measure", "absent.jsonl"]


def wrong_encoding(folder: Path, variation: int) -> list[str]:
    text = to_jsonl(make_rows()).decode().replace("I add", "Ich füge")
    codes = ("utf-16", "utf-16-le", "utf-32", "latin-1", "cp037")
    data = text.encode(codes[variation % 5])
    return write(folder, data if variation < 5 else to_jsonl(make_rows()) + data)


def foreign_bytes(folder: Path, variation: int) -> list[str]:
    """NUL bytes, random bytes, a pickle and another format under a name that is known."""
    data = (b"\0" * 100_000, random.Random(variation).randbytes(5_000), pickle.dumps(make_rows()),
            gzip.compress(to_jsonl(make_rows())), b"PK\3\4" + b"\0" * 99)  # fmt: skip
    names = ("a.jsonl", "a.parquet", "a.arrow", "a.eval", "a.jsonl.zst")
    return write(folder, data[variation // 2], names[(variation * 3) % 5])


def not_a_file(folder: Path, variation: int) -> list[str]:
    """A pipe, devices, loops of links, a folder with a file's name, and a file that cannot be read."""
    path = folder / "a.jsonl"
    if variation == 0:
        os.mkfifo(path)
    elif variation == 1:
        path.mkdir()
    elif variation == 2:
        (folder / "runs").mkdir()
        os.mkfifo(folder / "runs" / "a.jsonl")
        return ["measure", "runs"]
    else:
        path.symlink_to(
            (
                "/dev/zero",
                "/dev/full",
                "a.jsonl",
                "/dev/tty",
                "/proc/self/mem",
                "/dev/stdin",
                "b/../..",
            )[variation - 3]
        )
    return ["measure", "a.jsonl"]


def regular_expression_without_end(folder: Path, variation: int) -> list[str]:
    patterns = ("(a+)+$", "(a|a)*$", "(a|aa)+$", "(a*)*b", "^(([a-z])+.)+[A-Z]([a-z])+$",
                "(.*a){20}c", "(?:a?){30}a{30}b", "(x+x+)+y|(a+)+!", "a*a*a*a*a*a*a*b", "(?i)(A+)+$")  # fmt: skip
    rows = make_rows()
    rows[variation]["completion"] = "a" * 50_000 + "! [ANSWER] 3"
    return [*write(folder, to_jsonl(rows)), "--monitor", f"rule:own={patterns[variation]}"]


# --- what may be read --------------------------------------------------------------------------


def flipped_bits_of_a_table(folder: Path, variation: int) -> list[str]:
    """Without a checksum, a letter that became another cannot be known."""
    rng, file = random.Random(variation), make_table(folder, variation)
    data = bytearray(file.read_bytes())
    for _ in range(20):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return write(folder, bytes(data), file.name)


def byte_order_mark(folder: Path, variation: int) -> list[str]:
    lines = to_jsonl(make_rows()).splitlines(keepends=True)
    lines[variation] = b"\xef\xbb\xbf" + lines[variation]
    return write(folder, b"".join(lines))


def uneven_checkpoints(folder: Path, variation: int) -> list[str]:
    """The last checkpoint has one rollout, one arm, one label, or other seeds."""
    rows, last = make_rows(), 20 + variation // 4
    column, value = (("arm", "planted"), ("label", True), ("seed", 7), ("reward", 1e299))[
        variation % 4
    ]
    return write(
        folder, to_jsonl([*rows[:20], *(row | {column: value} for row in rows[20 : last + 1])])
    )


def lists_as_names(folder: Path, variation: int) -> list[str]:
    name = ("group", "checkpoint", "gold", "prompt")[variation % 4]
    value = ([1, 2], {"a": 1}, [[1], [2]], ["a", {"content": ["b", 3]}], [{}])[variation % 5]
    return write_changed(folder, variation, **{name: value})


def hostile_text(folder: Path, variation: int) -> list[str]:
    """Lone surrogates, escape sequences, markup and very long texts, written into a report."""
    texts = ("\ud800", "\x1b]0;title\x07\x1b[2J", "<script>alert(1)</script>", "| a | [b](javascript:c)", "\0\r\v",
             "\u202e\u2066", "[ANSWER] " * 50_000, "<think>" * 20_000, "\\boxed{" * 50_000, "9" * 200_000)  # fmt: skip
    text = texts[variation]
    rows = [
        row | {"completion": text, "checkpoint": text[:40], "prompt": text} for row in make_rows()
    ]
    return [*write(folder, to_jsonl(rows)), "--out", "measured"]


REFUSED = (
    cut_compressed_lines, empty_lines_that_expand, line_without_end, zip_bomb, dictionary_bomb, cut_table,
    duplicated_columns, damaged_inspect_log, deep_nesting, huge_number, reward_that_is_not_finite, unusable_value,
    missing_column, not_objects, empty_source, wrong_encoding, foreign_bytes, not_a_file,
    regular_expression_without_end,
)  # fmt: skip
READABLE = (
    flipped_bits_of_a_table,
    byte_order_mark,
    uneven_checkpoints,
    lists_as_names,
    hostile_text,
)
