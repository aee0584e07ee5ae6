"""Files that survive a crash, and checksums that tell a damaged file from an intact one.

Files are written to a temporary name, flushed, then renamed. A folder is verified against its
`checksums.json` (checkpoints), a JSON object against its own last key, `check` (metrics, events,
summary, monitor results).
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from glasshouse.errors import RunDataError, RunError

CHECKSUMS = "checksums.json"
CHECK = "check"
"""The key of a JSON object that holds the checksum of its other keys."""
CHECK_LENGTH = 16

# --- reading and writing -------------------------------------------------------------------


def read_regular_file(path: Path) -> bytes:
    """Read a file; raise OSError if it is not a regular one. Opening a FIFO would wait forever."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(f"{path.name} is not a regular file")
    return path.read_bytes()


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
    except BaseException as error:  # a full disk, or Ctrl-C
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            error.filename = error.filename or str(path)  # a failed write does not name its file
        raise
    flush_to_disk(path.parent)


def write_text(path: Path, text: str) -> None:
    """Replace a file atomically; a lone surrogate, which UTF-8 cannot hold, is written as its escape."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def flush_to_disk(path: Path) -> None:
    """Flush a file, or a folder, so that renames and deletions in it survive a power loss."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_output_file(option: str, path: Path, suffixes: Sequence[str] = ()) -> None:
    """Raise unless a file can be written at the path that the user gave: its folder must exist, the
    path must not be a folder or a device, and the name must end in one of `suffixes`.

    Example: `check_output_file("--out", Path("report.html"), (".html",))`
    """
    if suffixes and path.suffix not in suffixes:
        raise RunError(f"{option} {path} must end in {' or '.join(suffixes)}.")
    if path.exists() and not path.is_file():  # /dev/null or a pipe would be replaced by a file
        what = "a folder" if path.is_dir() else "not a regular file"
        raise RunError(f"{option} {path} is {what}. Name another file.")
    if not path.parent.is_dir():
        raise RunError(f"{option} {path} cannot be written: there is no folder {path.parent}.")


def check_output_folder(option: str, path: Path) -> None:
    """Raise if the path that the user gave for a folder, or one above it, is a file."""
    for folder in (path, *path.parents):
        if folder.exists() and not folder.is_dir():
            raise RunError(f"{option} {path} cannot be a folder: {folder} is a file.")


# --- checksums of files --------------------------------------------------------------------


def compute_checksum(file: Path) -> dict[str, Any]:
    with open(file, "rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    return {"bytes": file.stat().st_size, "sha256": digest}


def format_checksums(checksums: dict[str, Any]) -> str:
    """Format checksums.json; a file that differs from this format by one byte is damaged."""
    return json.dumps(checksums, indent=1) + "\n"


def write_checksums(folder: Path) -> None:
    """Write checksums.json for the files of a folder, and flush them, it and the folder to disk."""
    paths = sorted(folder.rglob("*"))
    files = {path.relative_to(folder).as_posix(): path for path in paths if path.is_file()}
    checksums = {name: compute_checksum(file) for name, file in files.items()}
    (folder / CHECKSUMS).write_text(format_checksums(checksums))
    for path in (*paths, folder / CHECKSUMS, folder):
        flush_to_disk(path)


def verify_folder(
    path: Path, required: Sequence[str] = (), *, only_required: bool = False
) -> tuple[str, ...]:
    """Compare every file that checksums.json lists, or only the required ones, with its checksum; returns
    what is damaged."""
    try:
        expected = _read_checksums(path)
    except RunDataError as error:
        return (str(error),)
    problems = [f"{CHECKSUMS} does not list {name}" for name in required if name not in expected]
    for name, values in expected.items():
        if name in required or not only_required:
            problems += _find_problem(path, name, *values)
    return tuple(problems)


def _read_checksums(path: Path) -> dict[str, tuple[int, str]]:
    """Size and sha256 by file name; raise RunDataError if checksums.json is damaged."""
    try:
        text = read_regular_file(path / CHECKSUMS).decode()
        checksums = json.loads(text)
        values = {str(name): (int(c["bytes"]), str(c["sha256"])) for name, c in checksums.items()}
    except FileNotFoundError:
        raise RunDataError(f"{CHECKSUMS} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise RunDataError(f"{CHECKSUMS} cannot be read") from None
    if text != format_checksums(checksums):
        raise RunDataError(f"{CHECKSUMS} was changed")
    return values


def _find_problem(path: Path, name: str, size: int, digest: str) -> list[str]:
    file = path / name
    if Path(name).is_absolute() or ".." in Path(name).parts:
        return [f"{CHECKSUMS} lists {name!r}, which is not a file of this folder"]
    if not file.is_file():
        return [f"{name} is {'not a regular file' if file.exists() else 'missing'}"]
    if file.stat().st_size != size:
        return [f"{name} has {file.stat().st_size} bytes instead of {size}"]
    if compute_checksum(file)["sha256"] != digest:
        return [f"the sha256 of {name} is wrong"]
    return []


# --- checksums of JSON objects -------------------------------------------------------------


def add_check(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object with its checksum as the last key.

    Example: `add_check({"step": 1})` gives `{"step": 1, "check": "5363d00…"}`
    """
    # Through JSON first: it makes strings of keys, which changes their order.
    plain = json.loads(json.dumps(value))
    text = json.dumps(plain, sort_keys=True)
    return {**value, CHECK: hashlib.sha256(text.encode()).hexdigest()[:CHECK_LENGTH]}


def parse_checked(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object and verify its checksum, which the result lacks; raise RunDataError if it is
    damaged.

    An object without a checksum was written by hand or by an older version and is returned unverified. If
    its last value looks like one, then the key `check` itself is damaged.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise RunDataError("it is not valid JSON") from None
    if not isinstance(value, dict) or not value:
        raise RunDataError("it is not a JSON object with keys")
    content = {name: item for name, item in value.items() if name != CHECK}
    if CHECK in value:
        if value[CHECK] != add_check(content)[CHECK]:
            raise RunDataError("its checksum is wrong")
    else:
        last = list(value.values())[-1]
        if isinstance(last, str) and len(last) == CHECK_LENGTH:
            raise RunDataError("its checksum is damaged")
    return content
