"""Creates problem files: problems of one split, each once, with their provenance.

`FILE` holds the problems (JSON lines or Parquet, by suffix). `FILE.provenance.json` describes how to
reproduce them: task, options, split, seed, counts, version and source hash of the code, and the sha256
of FILE.
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
from glasshouse.errors import ConfigError
from glasshouse.tasks.catalogue import make_task
from glasshouse.tasks.problem_files import import_pyarrow, write_problem_file
from glasshouse.tasks.streams import SPLIT_PERCENT, FreshProblems, ProblemsExhausted, Split

SUFFIXES = (".jsonl", ".parquet")


def create_problem_file(
    task_name: str,
    options: Mapping[str, Any],
    split: Split,
    count: int,
    oversize: float,
    seed: int,
    out: Path,
) -> dict[str, Any]:
    """Draws `count * oversize` problems, writes them and their provenance; returns the provenance.

    Example: `create_problem_file("multiplication", {}, Split.TEST, 1000, 1.5, 0, Path("v.jsonl"))`
    """
    provenance_file = provenance_path(out)
    if out.suffix not in SUFFIXES:
        raise ConfigError(f"--out is {out}; the file name must end in .jsonl or .parquet.")
    if count < 1 or not math.isfinite(oversize) or oversize < 1:
        raise ConfigError(f"--count is {count} and --oversize {oversize}; both must be at least 1.")
    if out.suffix == ".parquet":
        import_pyarrow(out)
    for path in (out, provenance_file):
        if path.exists():
            raise ConfigError(f"{path} already exists; choose another --out or delete it.")
    task = make_task(task_name, options)
    total = math.ceil(round(count * oversize, 6))  # 10 × 1.1 is 11, not 12
    stream = FreshProblems(task, split, seed, on_exhausted="stop")
    try:
        problems = stream.take(total)
    except ProblemsExhausted:
        raise ConfigError(
            f"{task_name} has only {stream.drawn:,} {split} problems with these options, not {count:,} × "
            f"{oversize:g} = {total:,}. Lower --count, or choose --options with more problems."
        ) from None
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.stem}.tmp{out.suffix}")
    write_problem_file(temporary, problems)
    size = task.size()
    split_size = None if size is None else round(size * SPLIT_PERCENT[split] / 100)
    provenance = {
        "task": task_name,
        "options": task.options.model_dump(mode="json"),
        "split": split.value,
        "seed": seed,
        "count": count,
        "oversize": oversize,
        "problems": len(problems),
        "task_size": size,
        "approximate_split_size": split_size,
        "approximate_share_of_split": (
            min(1.0, round(len(problems) / split_size, 6)) if split_size else None
        ),
        "glasshouse": glasshouse.__version__,
        "sources_sha256": hash_sources(),
        "sha256": hashlib.sha256(temporary.read_bytes()).hexdigest(),
    }
    os.replace(temporary, out)
    text = json.dumps(provenance, indent=2, ensure_ascii=False) + "\n"
    provenance_file.write_text(text, encoding="utf-8")
    return provenance


def provenance_path(file: Path) -> Path:
    """The path of a problem file's provenance."""
    return file.with_name(f"{file.name}.provenance.json")


def hash_sources() -> str:
    """A hash of the code that determines the problems: the package tasks."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    contents = b"".join(path.name.encode() + b"\0" + path.read_bytes() for path in files)
    return hashlib.sha256(contents).hexdigest()


def summarize_provenance(provenance: Mapping[str, Any], out: Path) -> str:
    """What was written and which share of the split it is, for the command line."""
    share = provenance["approximate_share_of_split"]
    coverage = (
        "the number of problems of this task is unknown"
        if share is None
        else f"about {share:.2%} of the {provenance['approximate_split_size']:,} in that split "
        f"({provenance['task_size']:,} in total)"
    )
    return (
        f"{provenance['problems']:,} {provenance['split']} problems of {provenance['task']}, "
        f"{coverage} → {out}\n"
        f"sha256 {provenance['sha256']}\nprovenance {provenance_path(out)}"
    )
