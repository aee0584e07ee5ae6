"""The command that installs an extra, for each way of installing the package."""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
from importlib import metadata
from pathlib import Path

import pytest

from glasshouse import extras

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "shared" / "glasshouse"


def install(folder: Path, url: str) -> None:
    """A site-packages folder in which glasshouse was installed from this address."""
    info = folder / "glasshouse-0.0.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: glasshouse\nVersion: 0.0.0\nRequires-Dist: numpy>=2\n"
        'Requires-Dist: wandb<0.32,>=0.31; extra == "wandb"\nProvides-Extra: wandb\n'
    )
    if url:
        (info / "direct_url.json").write_text(json.dumps({"url": url, "archive_info": {}}))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package is outside of its repository."""
    folder = tmp_path / "site-packages"
    monkeypatch.setattr(extras, "__file__", str(folder / "glasshouse" / "extras.py"))
    monkeypatch.setattr(
        metadata,
        "distribution",
        lambda name: next(metadata.distributions(name=name, path=[str(folder)])),
    )
    return folder


def test_a_checkout_is_installed_again_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    words = shlex.split(extras.install_command("wandb"))
    assert words[-5:] == ["-m", "pip", "install", "-e", "./shared[wandb]"]
    assert Path(words[0]).absolute() == Path(sys.executable)


def test_a_wheel_is_installed_again_and_a_deleted_one_is_not(site: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "my wheels" / "glasshouse-0.0.0-py3-none-any.whl"
    install(site, wheel.as_uri())
    assert shlex.split(extras.install_command("wandb"))[-2:] == ["install", "wandb<0.32,>=0.31"]
    wheel.parent.mkdir()
    wheel.touch()
    assert shlex.split(extras.install_command("wandb"))[-2:] == ["install", f"{wheel}[wandb]"]


def test_an_installation_of_unknown_origin_gets_the_packages_of_the_extra(site: Path) -> None:
    install(site, "")
    assert shlex.split(extras.install_command("wandb"))[-2:] == ["install", "wandb<0.32,>=0.31"]


def test_every_extra_that_a_message_names_exists_and_no_message_names_an_index() -> None:
    known = set(re.findall(r"^(\w+) = \[", (ROOT / "shared/pyproject.toml").read_text(), re.M))
    for file in PACKAGE.rglob("*.py"):
        source = file.read_text()
        assert 'pip install "glasshouse[' not in source or file.name == "extras.py", file
        for call in ast.walk(ast.parse(source)) if "install_command(" in source else ():
            is_call = (
                isinstance(call, ast.Call) and getattr(call.func, "id", "") == "install_command"
            )
            if is_call and isinstance(call.args[0], ast.Constant):
                assert call.args[0].value in known, (file, call.args[0].value)
