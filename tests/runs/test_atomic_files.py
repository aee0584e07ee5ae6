"""A file is written whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from glasshouse.cli.app import explain_os_error
from glasshouse.files import write_bytes, write_text


def test_an_interrupted_write_leaves_the_old_file_and_no_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "page.html"
    write_text(file, "old")

    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_text(file, "new")
    assert list(tmp_path.iterdir()) == [file]
    assert file.read_text() == "old"


def test_a_write_beyond_the_size_limit_names_the_file_and_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handle: int) -> None:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError) as raised:  # noqa: PT011
        write_bytes(tmp_path / "big", b"x")
    text = explain_os_error(raised.value)
    assert str(tmp_path / "big") in text
    assert "ulimit -f" in text
