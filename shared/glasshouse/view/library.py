"""Everything that a server shows: runs found in the served folders, and files of rollouts, with readers and indexes.

While a page is open, its stream of changes asks for a look at the files (`poll`), which reads what has grown and
indexes new rollouts of the runs that somebody looks at. Requests read what is there and never wait for a whole index.

A run is shown under an id: its path below the folder that the user named, such as `control/seed-0`. URLs
contain ids, never paths, and an id is looked up in the list of runs that were found, so a URL cannot name
anything outside the served folders.
"""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glasshouse.errors import RolloutFileError, RunError, did_you_mean
from glasshouse.runs.labels import labels_file, read_labels, write_label
from glasshouse.runs.run_directory import LOCK, is_run_directory, stamp_file
from glasshouse.tables import list_files
from glasshouse.view.file_reader import FileReader, read_file_overview, stamp_files
from glasshouse.view.rollout_index import RolloutIndex
from glasshouse.view.run_reader import RunLocation, RunReader, is_being_written, read_overview

INDEX_SECONDS = 0.15
"""How long a look at the files indexes before it lets requests and other runs go first."""
SCAN_SECONDS = 3.0
"""How often the folders are searched for new runs."""
MAX_OPEN_RUNS = 12
"""Runs whose metrics or indexes are kept in memory; the others are read again when they are opened."""
MAX_DEPTH = 6
"""How deep folders are searched; a study's runs are four levels below a folder of studies."""
MAX_FOLDERS = 20_000
"""How many folders one search visits."""
STUDY_FILE = "study.yaml"


@dataclass(frozen=True, slots=True)
class Catalog:
    """The runs and studies that were found."""

    runs: Mapping[str, RunLocation] = field(default_factory=dict)
    studies: Mapping[str, Path] = field(default_factory=dict)


class OpenRun:
    """A run that somebody looks at: its reader, and its index once rollouts are asked for."""

    def __init__(self, location: RunLocation, options: Mapping[str, Any]) -> None:
        self.location = location
        self.reader: RunReader | FileReader = (
            FileReader(location, options) if location.is_file else RunReader(location)
        )
        self.reader.refresh()
        self.index: RolloutIndex | None = None
        self.lock = threading.Lock()
        self._frames_stamp: Any = None
        self._labels_stamp: Any = None

    def open_index(
        self,
        budget: float = 0.25,
        first: float = 0,
        last: float = math.inf,
        *,
        newest: bool = False,
    ) -> RolloutIndex:
        """The index. For at most `budget` seconds, index the steps that a request asks for, the newest first if it
        lists them so; if somebody is indexing already, return what there is."""
        if (index := self.index) is None:
            with self.lock:
                if (index := self.index) is None:
                    index = RolloutIndex(self.reader.monitors)
                    self._frames_stamp = self._labels_stamp = None
                    self._list_frames(index)
                    self.index = index
        if index.missing() and self.lock.acquire(timeout=budget):
            try:
                self._add_frames(index, budget, first, last, newest)
            finally:
                self.lock.release()
        return index

    def poll(self) -> bool:
        """Read what has grown, and index for a moment; returns whether anything changed."""
        changed = self.reader.refresh()
        if self.index is not None and self.lock.acquire(blocking=False):
            try:
                changed |= self._list_frames(self.index)
                changed |= self._add_frames(self.index, INDEX_SECONDS)
            finally:
                self.lock.release()
        return changed

    def _add_frames(
        self,
        index: RolloutIndex,
        budget: float,
        first: float = 0,
        last: float = math.inf,
        newest: bool = False,
    ) -> bool:
        """Index these steps for at most `budget` seconds; returns whether there were any."""
        deadline = time.monotonic() + budget
        is_changed = False
        while wanted := [f for f in index.missing() if f.step is None or first <= f.step <= last]:
            if newest:
                wanted.sort(key=lambda frame: frame.step or 0, reverse=True)
            for frame in wanted:
                index.add(frame)
                if time.monotonic() > deadline:
                    self._list_frames(index)
                    return True
            is_changed = True
            self._list_frames(index)  # a file tells only now whether there are more
        while index.unscored and time.monotonic() <= deadline:
            index.score()
            is_changed = True
        return is_changed

    def _list_frames(self, index: RolloutIndex) -> bool:
        """List the frames again if they have changed, and read the labels again if these have."""
        labels = stamp_file(labels_file(self.location.path))
        if labels != self._labels_stamp:
            self._labels_stamp = labels
            index.set_labels(read_labels(self.location.path))
        stamp = self.reader.frames_stamp
        if stamp == self._frames_stamp:
            return False
        self._frames_stamp = stamp
        index.set_frames(self.reader.frames)
        return True

    def set_label(self, ref: str, label: bool | None) -> None:
        """Write a label into the file beside the rollouts; None removes it."""
        index = self.open_index()
        key = index.find_text(ref)
        if key is None:
            raise RunError(f'There is no rollout "{ref[:100]}".')
        with self.lock:
            index.set_labels(write_label(self.location.path, key, label))

    def close(self) -> None:
        with self.lock:
            if self.index is not None:
                self.index.close()
                self.index = None


class Library:
    """The runs below the served folders.

    Example: `library = Library([Path("runs")]); library.open_run("try").reader.describe()`
    """

    def __init__(self, roots: Sequence[Path], options: Mapping[str, Any] | None = None) -> None:
        self.roots, self.options = list(roots), options or {}
        """Options of `RolloutFile`: how files are read, and which monitors score them."""
        self.catalog: Catalog = find_runs(self.roots)
        self.open_runs: OrderedDict[str, OpenRun] = OrderedDict()
        self.version = 0
        """Increases whenever anything changed."""
        self.lock = threading.Lock()
        self._overview_lock = threading.Lock()
        self._overviews: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._polling = threading.Lock()
        self._scanned = time.monotonic()

    def open_run(self, id: str) -> OpenRun:
        """The run with this id, opened if it is not."""
        location = self.catalog.runs.get(id)
        if location is None:  # it may have begun while no page was open
            self.catalog = find_runs(self.roots)
            location = self.catalog.runs.get(id)
        if location is None:
            hint = did_you_mean(id, self.catalog.runs)
            raise RunError(f'There is no run "{id[:100]}" in the served folders.{hint}')
        with self.lock:
            run = self.open_runs.get(id)
            if run is None or run.location != location:
                run = OpenRun(location, self.options)
                self.open_runs[id] = run
            self.open_runs.move_to_end(id)
            while len(self.open_runs) > MAX_OPEN_RUNS:
                self.open_runs.popitem(last=False)[1].close()
        return run

    def list_overviews(self) -> list[dict[str, Any]]:
        """One entry per run; a run whose files have not changed is not read again."""
        overviews = []
        for location in self.catalog.runs.values():
            stamp = stamp_location(location)
            with self._overview_lock:
                known = self._overviews.get(location.id)
                if known is None or known[0] != stamp:
                    read = read_file_overview if location.is_file else read_overview
                    known = (stamp, read(location))
                    self._overviews[location.id] = known
            overviews.append(known[1])
        return overviews

    # --- staying up to date ----------------------------------------------------------------

    def poll(self) -> None:
        """Look at every open run and at the files of all others once, unless another page does so just now."""
        if not self._polling.acquire(blocking=False):
            return
        try:
            # a run was deleted, or the disk is full
            with contextlib.suppress(OSError, sqlite3.Error):
                self.version += self._look_for_changes()
        finally:
            self._polling.release()

    def _look_for_changes(self) -> bool:
        changed = False
        if time.monotonic() - self._scanned > SCAN_SECONDS:
            catalog = find_runs(self.roots)
            changed |= catalog != self.catalog
            self.catalog, self._scanned = catalog, time.monotonic()
            self._overviews = {id: o for id, o in self._overviews.items() if id in catalog.runs}
        with self.lock:
            runs = list(self.open_runs.values())
        for run in runs:
            changed |= run.poll()
        for id, (stamp, _) in list(self._overviews.items()):
            location = self.catalog.runs.get(id)
            changed |= location is not None and stamp_location(location) != stamp
        return changed


def stamp_location(location: RunLocation) -> tuple[Any, ...]:
    """Changes when a file changes that the list of runs depends on."""
    path = location.path
    if location.is_file:
        return stamp_files(path)
    names = ("metrics.jsonl", "events.jsonl", "summary.json", "monitor.json")
    files = [path / "config.yaml", *(path / "results" / name for name in names)]
    return (*map(stamp_file, files), is_being_written(path))


def find_runs(roots: Sequence[Path]) -> Catalog:
    """Find every run and study in these folders; a folder may itself be a run or a study. A file, and a folder that
    has files of rollouts and no run, are shown as what `glasshouse measure` would read.

    Example: `find_runs([Path("runs")]).runs["sum_digits-grpo-1"].path`
    """
    found: dict[str, Path] = {}
    files: set[Path] = set()
    budget = [MAX_FOLDERS]
    for root in (path.resolve() for path in roots):
        folders = [] if root.is_file() else list(_walk(root, root, MAX_DEPTH, budget))
        if not folders:
            with contextlib.suppress(RolloutFileError):
                list_files(root)
                folders = [root]
                files.add(root)
        for folder in folders:
            name = folder.name if folder == root else folder.relative_to(root).as_posix()
            id, number = name, 1
            while found.setdefault(id, folder) != folder:  # another folder has the id already
                number += 1
                id = f"{name} ({number})"
    studies = {id: path for id, path in found.items() if (path / STUDY_FILE).is_file()}
    runs = {}
    for id, path in found.items():
        if id not in studies:
            study = next((s for s, folder in studies.items() if path.is_relative_to(folder)), "")
            runs[id] = RunLocation(id, path, study, path in files)
    return Catalog(runs, studies)


def _walk(folder: Path, root: Path, depth: int, budget: list[int]) -> Iterator[Path]:
    """Yield runs and studies, without entering runs or leaving `root` through a link."""
    budget[0] -= 1
    if budget[0] <= 0:
        return
    # an experiment has a config.yaml too, but no files of a run
    has_run_files = (folder / "results").is_dir() or (folder / LOCK).exists()
    if is_run_directory(folder) and (folder == root or has_run_files):
        yield folder
        return
    if (folder / STUDY_FILE).is_file():
        yield folder
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name) if depth else []
    except OSError:  # a folder that may not be read has no runs to show
        return
    for entry in entries:
        path = Path(entry.path)
        is_outside = entry.is_symlink() and not path.resolve().is_relative_to(root)
        if entry.is_dir() and not entry.name.startswith(".") and not is_outside:
            yield from _walk(path, root, depth - 1, budget)
