"""What a tracker has to be able to do, and what it is told of the run."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from glasshouse.config import Config
from glasshouse.store.atomic_files import write_text
from glasshouse.track.records import Kind, Record

PROJECT = "glasshouse"
"""Under which name a tracker lists the runs, unless its own environment variable says another."""

Ending = Literal["finished", "interrupted", "failed"]
Held = Mapping[Kind, int]
"""The last step of each kind that a tracker has already; nothing of it is sent again."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The run that is mirrored."""

    path: Path
    """Its directory."""
    id: str
    """The same for all trackers, and for as long as the directory lasts: this is how a tracker finds
    the run again when it goes on."""
    name: str
    config: Config

    @property
    def folder(self) -> Path:
        """Where a tracker that writes files puts them."""
        return self.path / "track"


class Mirror(Protocol):
    """One tracker. Any exception that it raises is its own end, never the run's."""

    look: str
    """The command or address that shows what it holds; known once it has started."""

    def start(self, run: Subject) -> Held:
        """Begin, or find the run again; how far it reaches there."""
        ...

    def log(self, record: Record) -> None:
        """Take a record, and make it last as soon as possible."""
        ...

    def end(self, numbers: Mapping[str, float], how: Ending) -> None:
        """The run's summary, and how it ended. All that was logged is safe when this returns."""
        ...


def subject(path: Path, config: Config) -> Subject:
    """The run of a directory; its id is made the first time and kept in track/id."""
    file = path / "track" / "id"
    if not file.exists():
        write_text(file, uuid.uuid4().hex + "\n")
    return Subject(path, file.read_text().strip(), name(path), config)


def name(path: Path) -> str:
    """What follows the last folder that is called runs, or else the directory's own name.

    Example: `name(Path("study/runs/penalty/seed-3"))` gives "penalty-seed-3"
    """
    parts = path.resolve().parts
    last = max((i for i, part in enumerate(parts[:-1]) if part == "runs"), default=len(parts) - 2)
    return "-".join(parts[last + 1 :])
