"""Find the runs and studies in the folders that the user names.

A run is shown under an id: its path below the folder that the user named, such as
`control/seed-0`. URLs contain ids, never paths, and an id is looked up in the list of runs that
were found, so a URL cannot name anything outside the served folders.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from glasshouse.errors import RunError
from glasshouse.runs.run_config import is_run_directory
from glasshouse.runs.run_directory import LOCK

MAX_DEPTH = 6
"""How deep folders are searched; a study's runs are four levels below a folder of studies."""
MAX_FOLDERS = 20_000
"""How many folders one search visits."""
STUDY_FILE = "study.yaml"


@dataclass(frozen=True, slots=True)
class RunLocation:
    """A run directory and where it belongs."""

    id: str
    path: Path
    study: str = ""
    """The id of its study; empty if it is not part of one."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """The runs and studies that were found."""

    runs: Mapping[str, RunLocation] = field(default_factory=dict)
    studies: Mapping[str, Path] = field(default_factory=dict)


def check_roots(paths: Sequence[Path]) -> None:
    """Raise unless every path is a folder."""
    for path in paths:
        if not path.exists():
            raise RunError(f"{path} does not exist. Name run directories, or a folder with runs.")
        if not path.is_dir():
            raise RunError(f"{path} is a file. Name run directories, or a folder with runs.")


def find_runs(roots: Sequence[Path]) -> Catalog:
    """Find every run and study in these folders; a folder may itself be a run or a study.

    Example: `find_runs([Path("runs")]).runs["sum_digits-grpo-1"].path`
    """
    runs: dict[str, Path] = {}
    studies: dict[str, Path] = {}
    taken: dict[str, Path] = {}
    budget = [MAX_FOLDERS]
    for root in (path.resolve() for path in roots):
        for folder, kind in _walk(root, root, MAX_DEPTH, budget):
            name = folder.name if folder == root else folder.relative_to(root).as_posix()
            id, number = name, 1
            while taken.setdefault(id, folder) != folder:  # another folder has the id already
                number += 1
                id = f"{name} ({number})"
            (studies if kind == "study" else runs)[id] = folder
    located = {}
    for id, path in runs.items():
        study = next((s for s, folder in studies.items() if path.is_relative_to(folder)), "")
        located[id] = RunLocation(id, path, study)
    return Catalog(located, studies)


def _walk(folder: Path, root: Path, depth: int, budget: list[int]) -> Iterator[tuple[Path, str]]:
    """Yield (folder, "run" or "study"), without entering runs or leaving `root` through a link."""
    budget[0] -= 1
    if budget[0] <= 0:
        return
    if is_run_directory(folder) and (folder == root or _has_run_files(folder)):
        yield folder, "run"
        return
    if (folder / STUDY_FILE).is_file():
        yield folder, "study"
    if depth == 0:
        return
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:  # a folder that may not be read has no runs to show
        return
    for entry in entries:
        if entry.name.startswith(".") or not entry.is_dir():
            continue
        path = Path(entry.path)
        if entry.is_symlink() and not path.resolve().is_relative_to(root):
            continue
        yield from _walk(path, root, depth - 1, budget)


def _has_run_files(folder: Path) -> bool:
    """Tells a run from an experiment, which has a config.yaml too."""
    return (folder / "results").is_dir() or (folder / LOCK).exists()
