"""The command that installs an extra, for each way of installing the package."""

from __future__ import annotations

import ast
import re
import shlex
import sys
from importlib import metadata
from pathlib import Path

import pytest

from glasshouse import errors

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "shared" / "glasshouse"


def install(folder: Path) -> None:
    """A site-packages folder in which glasshouse was installed."""
    info = folder / "glasshouse-0.0.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: glasshouse\nVersion: 0.0.0\nRequires-Dist: numpy>=2\n"
        'Requires-Dist: wandb<0.32,>=0.31; extra == "wandb"\nProvides-Extra: wandb\n'
    )


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package is outside of its repository."""
    folder = tmp_path / "site-packages"
    monkeypatch.setattr(errors, "__file__", str(folder / "glasshouse" / "errors.py"))
    monkeypatch.setattr(
        metadata,
        "distribution",
        lambda name: next(metadata.distributions(name=name, path=[str(folder)])),
    )
    return folder


def test_a_checkout_is_installed_again_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    words = shlex.split(errors.install_command("wandb"))
    assert words[-5:] == ["-m", "pip", "install", "-e", "./shared[wandb]"]
    assert Path(words[0]).absolute() == Path(sys.executable)


def test_an_installation_of_unknown_origin_gets_the_packages_of_the_extra(site: Path) -> None:
    install(site)
    assert shlex.split(errors.install_command("wandb"))[-2:] == ["install", "wandb<0.32,>=0.31"]


def test_every_extra_that_a_message_names_exists_and_no_message_names_an_index() -> None:
    known = set(re.findall(r"^(\w+) = \[", (ROOT / "shared/pyproject.toml").read_text(), re.M))
    for file in PACKAGE.rglob("*.py"):
        source = file.read_text()
        assert 'pip install "glasshouse[' not in source or file.name == "errors.py", file
        for call in ast.walk(ast.parse(source)) if "install_command(" in source else ():
            is_call = (
                isinstance(call, ast.Call) and getattr(call.func, "id", "") == "install_command"
            )
            if is_call and isinstance(call.args[0], ast.Constant):
                assert call.args[0].value in known, (file, call.args[0].value)
