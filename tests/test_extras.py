"""The command that installs an extra, for each way of installing the package."""

from __future__ import annotations

import re
import shlex
import sys
from importlib import metadata
from pathlib import Path

import pytest

from glasshouse import errors

ROOT = Path(__file__).resolve().parent.parent


def test_a_checkout_is_installed_again_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    words = shlex.split(errors.install_command("wandb"))
    assert words[-5:] == ["-m", "pip", "install", "-e", "./shared[wandb]"]
    assert Path(words[0]).absolute() == Path(sys.executable)


def test_an_installation_of_unknown_origin_gets_the_packages_of_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "glasshouse-0.0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: glasshouse\nVersion: 0.0.0\nRequires-Dist: numpy>=2\n"
        'Requires-Dist: wandb<0.32,>=0.31; extra == "wandb"\nProvides-Extra: wandb\n'
    )
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "glasshouse" / "errors.py"))
    monkeypatch.setattr(metadata, "distribution", lambda name: metadata.Distribution.at(info))
    assert shlex.split(errors.install_command("wandb"))[-2:] == ["install", "wandb<0.32,>=0.31"]


def test_every_extra_that_a_message_names_exists() -> None:
    known = set(re.findall(r"^(\w+) = \[", (ROOT / "shared/pyproject.toml").read_text(), re.M))
    for file in (ROOT / "shared" / "glasshouse").rglob("*.py"):
        named = set(re.findall(r"install_command\(\s*\"(\w+)\"", file.read_text()))
        assert named <= known, file
