"""Checksums of files and of JSON values: what tells a damaged file from an intact one.

A folder is verified against its `checksums.json` (checkpoints), a JSON object against its own last
key, `check` (metrics, events, summary, monitor results).
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glasshouse.errors import RunDataError

CHECKSUMS = "checksums.json"
CHECK = "check"
"""The key of a JSON object that holds the checksum of its other keys."""
CHECK_LENGTH = 16


def read_regular_file(path: Path) -> bytes:
    """Read a file; raise OSError if it is not a regular one. Opening a FIFO would wait forever."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(f"{path.name} is not a regular file")
    return path.read_bytes()


def compute_checksum(file: Path) -> dict[str, Any]:
    with open(file, "rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    return {"bytes": file.stat().st_size, "sha256": digest}


def format_checksums(checksums: dict[str, Any]) -> str:
    """Format checksums.json; a file that differs from this format by one byte is damaged."""
    return json.dumps(checksums, indent=1) + "\n"


def write_checksums(folder: Path) -> None:
    """Write checksums.json for the files of a folder, and flush them, it and the folder to disk."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    checksums = {file.name: compute_checksum(file) for file in files}
    (folder / CHECKSUMS).write_text(format_checksums(checksums))
    for path in (*files, folder / CHECKSUMS, folder):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def verify_folder(path: Path, required: Sequence[str] = ()) -> tuple[str, ...]:
    """Compare every file that checksums.json lists with its checksum; returns what is damaged."""
    try:
        expected = _read_checksums(path)
    except RunDataError as error:
        return (str(error),)
    problems = [f"{CHECKSUMS} does not list {name}" for name in required if name not in expected]
    problems += [_find_problem(path, name, *values) for name, values in expected.items()]
    return tuple(filter(None, problems))


def verify_file(path: Path, name: str) -> str:
    """Compare one file of a folder with its checksum; returns what is damaged, or an empty text."""
    try:
        expected = _read_checksums(path)
    except RunDataError as error:
        return str(error)
    if name not in expected:
        return f"{CHECKSUMS} does not list {name}"
    return _find_problem(path, name, *expected[name])


def _read_checksums(path: Path) -> dict[str, tuple[int, str]]:
    """Size and sha256 by file name; raise RunDataError if checksums.json is damaged."""
    try:
        text = read_regular_file(path / CHECKSUMS).decode()
        checksums = json.loads(text)
        if text != format_checksums(checksums):
            raise RunDataError(f"{CHECKSUMS} was changed")
        return {str(name): (int(c["bytes"]), str(c["sha256"])) for name, c in checksums.items()}
    except FileNotFoundError:
        raise RunDataError(f"{CHECKSUMS} is missing") from None
    except RunDataError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise RunDataError(f"{CHECKSUMS} cannot be read") from None


def _find_problem(path: Path, name: str, size: int, digest: str) -> str:
    file = path / name
    if Path(name).name != name:
        return f"{CHECKSUMS} lists {name!r}, which is not a file of this folder"
    if not file.is_file():
        return f"{name} is {'not a regular file' if file.exists() else 'missing'}"
    if file.stat().st_size != size:
        return f"{name} has {file.stat().st_size} bytes instead of {size}"
    if compute_checksum(file)["sha256"] != digest:
        return f"the sha256 of {name} is wrong"
    return ""


def add_check(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object with its checksum as the last key.

    Example: `add_check({"step": 1})` gives `{"step": 1, "check": "5363d00…"}`
    """
    return {**value, CHECK: _digest(value)}


def remove_check(value: Any) -> dict[str, Any]:
    """Return the object without its checksum; raise RunDataError if the checksum is wrong.

    An object without one was written by hand or by an older version and is returned unverified. If
    its last value looks like a checksum, then the key `check` itself is damaged.
    """
    if not isinstance(value, dict) or not value:
        raise RunDataError("it is not a JSON object with keys")
    content = {name: item for name, item in value.items() if name != CHECK}
    if CHECK in value:
        if value[CHECK] != _digest(content):
            raise RunDataError("its checksum is wrong")
    else:
        last = list(value.values())[-1]
        if isinstance(last, str) and len(last) == CHECK_LENGTH:
            raise RunDataError("its checksum is damaged")
    return content


def parse_checked(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object and verify its checksum; raise RunDataError if it is damaged."""
    try:
        return remove_check(json.loads(text))
    except RunDataError:
        raise
    except (ValueError, RecursionError):
        raise RunDataError("it is not valid JSON") from None


def _digest(value: Mapping[str, Any]) -> str:
    # Through JSON first: it makes strings of keys, which changes their order.
    plain = json.loads(json.dumps(value))
    text = json.dumps(plain, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:CHECK_LENGTH]
