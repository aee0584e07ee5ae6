"""Monarch's socket directories: those of killed processes are removed at the next start."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from glasshouse.distributed import monarch_sockets
from glasshouse.distributed.monarch_sockets import (
    CREATION_SECONDS,
    PREFIX,
    create_locked_directory,
    remove_stale_directories,
)

HOLDER = """
import importlib.util, pathlib, sys, time
spec = importlib.util.spec_from_file_location("monarch_sockets", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.create_locked_directory(pathlib.Path(sys.argv[2]))[0], flush=True)
time.sleep(600)
"""


def test_only_directories_of_killed_processes_are_removed(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-c", HOLDER, monarch_sockets.__file__, str(tmp_path)]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout
        directory = Path(holder.stdout.readline().strip())
        (directory / ".tmpAbCdEf").mkdir()
        own, lock = create_locked_directory(tmp_path)
        (tmp_path / "unrelated").mkdir()
        starting = tmp_path / f"{PREFIX}starting"  # created, but not yet locked
        starting.mkdir()
        (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "unrelated")
        assert remove_stale_directories(tmp_path) == []
    finally:
        holder.kill()
        holder.communicate()
    assert remove_stale_directories(tmp_path) == [directory]
    assert own.is_dir()
    assert (tmp_path / "unrelated").is_dir()
    old = time.time() - 2 * CREATION_SECONDS
    os.utime(starting, (old, old))
    os.close(lock)
    assert set(remove_stale_directories(tmp_path)) == {own, starting}


def test_monarch_starts_in_the_own_directory_and_the_environment_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    monkeypatch.setattr(monarch_sockets, "own_socket_directory", lambda: Path("/short"))
    with monarch_sockets.monarch_sockets_in_own_directory():
        assert os.environ["TMPDIR"] == "/short"
    assert os.environ["TMPDIR"] == "/elsewhere"
    monkeypatch.delenv("TMPDIR")
    with monarch_sockets.monarch_sockets_in_own_directory():
        pass
    assert "TMPDIR" not in os.environ
    long = Path("/" + "x" * 90)  # no socket could be created in it
    monkeypatch.setattr(monarch_sockets, "own_socket_directory", lambda: long)
    with monarch_sockets.monarch_sockets_in_own_directory():
        assert "TMPDIR" not in os.environ
