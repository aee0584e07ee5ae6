"""The directory of Monarch's Unix sockets, which Monarch itself leaves behind when it is killed.

Monarch creates a randomly named directory in the temporary directory. Here it is created inside one
that is recognizable and locked while its process runs, so that the next start can remove the
directories of killed processes, and no others.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX, LOCK = "glasshouse-monarch-", "lock"
MAX_DIRECTORY_PATH = 80
"""A socket's path is limited to 107 bytes; Monarch adds up to 24."""
CREATION_SECONDS = 60.0
"""A directory that is not locked yet may belong to a process that is just starting."""


@contextlib.contextmanager
def monarch_sockets_in_own_directory() -> Iterator[None]:
    """Start Monarch within this block: its sockets are then removed however this process ends."""
    previous = os.environ.get("TMPDIR")
    os.environ.update(socket_environment())
    try:
        yield
    finally:
        os.environ.pop("TMPDIR", None)
        if previous is not None:
            os.environ["TMPDIR"] = previous


def socket_environment() -> dict[str, str]:
    """Return the variable that makes Monarch use this process's directory, unless its path is too long."""
    directory = str(own_socket_directory())
    return {"TMPDIR": directory} if len(os.fsencode(directory)) <= MAX_DIRECTORY_PATH else {}


def clear_socket_directory() -> None:
    """Remove the sockets of a child process that has ended."""
    for entry in own_socket_directory().iterdir():
        if entry.name != LOCK:
            shutil.rmtree(entry, ignore_errors=True)


@functools.cache
def own_socket_directory() -> Path:
    """Return this process's directory, created at the first call and removed when the process exits."""
    remove_stale_directories(Path(tempfile.gettempdir()))
    directory, lock = create_locked_directory(Path(tempfile.gettempdir()))
    creator = os.getpid()

    def remove() -> None:
        if os.getpid() == creator:  # not in a forked child
            shutil.rmtree(directory, ignore_errors=True)
            os.close(lock)

    atexit.register(remove)
    return directory


def create_locked_directory(parent: Path) -> tuple[Path, int]:
    """Create a directory and lock it; the lock ends with the process or when it is closed."""
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)  # not inherited by children
    fcntl.flock(lock, fcntl.LOCK_EX)
    return directory, lock


def remove_stale_directories(parent: Path) -> list[Path]:
    """Remove this user's directories that no running process has locked; return them."""
    removed = []
    for directory in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or removed by another start
            status = directory.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                continue
            if _is_locked(directory / LOCK, time.time() - status.st_mtime):
                continue
            shutil.rmtree(directory)
            removed.append(directory)
    return removed


def _is_locked(path: Path, age: float) -> bool:
    try:
        lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return age < CREATION_SECONDS
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
