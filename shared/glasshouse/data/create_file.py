"""Problem files with a pedigree: drawn from one split, each problem once, with their provenance.

`FILE` holds the problems (JSON lines or Parquet, by suffix); `FILE.provenance.json` beside it says
what they are and how to make them again: task, options, split, seed, counts, the code's version
and a hash of its sources, and the sha256 of FILE.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import glasshouse
from glasshouse import tasks
from glasshouse.data import files
from glasshouse.data.splits import SHARES, Split
from glasshouse.data.streams import Fresh, UsedUp
from glasshouse.errors import ConfigError

SUFFIXES = (".jsonl", ".parquet")


def generate(
    name: str,
    options: Mapping[str, Any],
    split: Split,
    count: int,
    oversize: float,
    seed: int,
    out: Path,
) -> dict[str, Any]:
    """Draw, write, and return the provenance that it also writes.

    Example: `generate("multiplication", {}, Split.VALIDATION, 1000, 1.5, 0, Path("v.jsonl"))`
    """
    side = provenance_of(out)
    if out.suffix not in SUFFIXES:
        raise ConfigError(f"{out} must end in .jsonl or .parquet, which says its format.")
    if count < 1 or not math.isfinite(oversize) or oversize < 1:
        raise ConfigError(f"A count of {count} × {oversize} is not 1 or more problems.")
    if out.suffix == ".parquet":
        files.pyarrow_for(out)
    for path in (out, side):
        if path.exists():
            raise ConfigError(f"{path} exists, and nothing is overwritten; choose another --out.")
    task = tasks.make(name, options)
    wanted = math.ceil(round(count * oversize, 6))  # 10 × 1.1 is 11, not 12
    stream = Fresh(task, split, seed, when_used_up="stop")
    try:
        problems = stream.take(wanted)
    except UsedUp:
        raise ConfigError(
            f"{name} has only {stream.drawn:,} {split} problems at these options, not {count:,} × "
            f"{oversize:g} = {wanted:,}. Ask for fewer, or make the space larger with --options."
        ) from None
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = out.with_name(f".{out.stem}.tmp{out.suffix}")
    files.write(aside, problems)
    size = task.size()
    space = None if size is None else round(size * SHARES[split] / 100)
    about = {
        "task": name,
        "options": task.options.model_dump(mode="json"),
        "split": split.value,
        "seed": seed,
        "count": count,
        "oversize": oversize,
        "problems": len(problems),
        "space": size,
        "split_space_about": space,
        "share_of_split_about": None if not space else min(1.0, round(len(problems) / space, 6)),
        "glasshouse": glasshouse.__version__,
        "sources_sha256": sources(),
        "sha256": hashlib.sha256(aside.read_bytes()).hexdigest(),
    }
    os.replace(aside, out)
    side.write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return about


def provenance_of(file: Path) -> Path:
    """Where a file's provenance stands."""
    return file.with_name(f"{file.name}.provenance.json")


def sources() -> str:
    """A hash of the code that decides which problems there are: the tasks and this room."""
    root = Path(glasshouse.__file__).parent
    listed = [*sorted((root / "tasks").glob("*.py")), *sorted((root / "data").glob("*.py"))]
    whole = b"".join(path.name.encode() + b"\0" + path.read_bytes() for path in listed)
    return hashlib.sha256(whole).hexdigest()


def sentence(about: Mapping[str, Any], out: Path) -> str:
    """What was written and how much of the space it takes, for people."""
    share = about["share_of_split_about"]
    taken = (
        "of a space that cannot be counted"
        if share is None
        else f"about {share:.2%} of the {about['split_space_about']:,} in that split "
        f"({about['space']:,} in all)"
    )
    return (
        f"{about['problems']:,} {about['split']} problems of {about['task']}, {taken} → {out}\n"
        f"sha256 {about['sha256']}\nprovenance {provenance_of(out)}"
    )
