"""Atomic file writes: write to a temporary file, flush it to disk, then rename it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from glasshouse.errors import RunError


def write_text(path: Path, text: str) -> None:
    """Replace a file atomically; a lone surrogate, which UTF-8 cannot hold, is written as its escape."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file atomically: after a crash it has either its old or its new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:  # a full disk, or Ctrl-C
        with suppress(OSError):
            temporary.unlink()
        raise
    fsync_directory(path.parent)


def check_output_file(option: str, path: Path, suffixes: Sequence[str] = ()) -> None:
    """Raise unless a file can be written at the path that the user gave: its folder must exist, the
    path must not be a folder or a device, and the name must end in one of `suffixes`.

    Example: `check_output_file("--out", Path("curves.png"), (".png", ".svg"))`
    """
    if suffixes and path.suffix not in suffixes:
        *others, last = suffixes
        listed = f"{', '.join(others)} or {last}" if others else last
        raise RunError(f"{option} {path} must end in {listed}.")
    if path.is_dir():
        raise RunError(f"{option} {path} is a folder. Name a file in it.")
    if path.exists() and not path.is_file():  # /dev/null or a pipe would be replaced by a file
        raise RunError(f"{option} {path} is not a regular file. Name another file.")
    if not path.parent.is_dir():
        raise RunError(f"{option} {path} cannot be written: there is no folder {path.parent}.")


def check_output_folder(option: str, path: Path) -> None:
    """Raise if the path that the user gave for a folder, or one above it, is a file."""
    for folder in (path, *path.parents):
        if folder.exists() and not folder.is_dir():
            raise RunError(f"{option} {path} cannot be a folder: {folder} is a file.")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def fsync_directory(folder: Path) -> None:
    """Flush a folder, so that renames and deletions in it survive a power loss."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
