"""A file is written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from glasshouse.files import write_text


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
