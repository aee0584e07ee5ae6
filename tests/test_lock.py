"""Dependencies: the lock, the constraints, and the extras that messages name."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tools.lock import CONSTRAINTS, HEADER, LOCK, format_constraints, format_lock
from tools.torch_build import choose_build, is_reachable, read_pin

import glasshouse
from glasshouse import errors
from glasshouse.config.loading import parse_yaml

ROOT = Path(__file__).resolve().parent.parent
SEPARATE = {"kernel", "docs", "gemma3", "mlflow", "trackio", "wandb"}
"""Extras with their own environments, .venv-docs and .venv-track, the weights of a model, and a compiler."""
ENTRY = re.compile(r"(?P<name>[a-z0-9._-]+)==(?P<version>\S+) \\\n    --hash=sha256:[0-9a-f]{64}\n")


def test_every_dependency_is_locked_with_a_hash_at_a_version_that_is_allowed() -> None:
    text = "".join(x for x in LOCK.read_text().splitlines(True) if not x.startswith("#"))
    entries = {canonicalize_name(m["name"]): m["version"] for m in ENTRY.finditer(text)}
    assert ENTRY.sub("", text) == ""  # nothing else, no index for example
    project = tomllib.loads((ROOT / "shared" / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].items()
    lines = project["dependencies"] + [x for name, e in extras if name not in SEPARATE for x in e]
    for requirement in map(Requirement, lines):
        if requirement.name != "torch":  # its CPU and CUDA builds are different files
            version = entries[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), requirement
    assert "torch" not in entries


def test_constraints_are_the_versions_of_the_lock_and_of_torch() -> None:
    pins = [m["name"] + "==" + m["version"] for m in ENTRY.finditer(LOCK.read_text())]
    torch = read_pin(CONSTRAINTS.read_text())
    assert CONSTRAINTS.read_text() == format_constraints([*pins, torch])
    project = tomllib.loads((ROOT / "shared" / "pyproject.toml").read_text())["project"]
    required = Requirement(project["optional-dependencies"]["train"][0])
    assert required.specifier.contains(torch.partition("==")[2])
    for file in ("requirements.lock", "training/Dockerfile.base", "bench/requirements.txt"):
        assert torch in (ROOT / file).read_text(), file
    assert not is_reachable("http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("driver", "reachable", "expected"),
    [
        (True, True, ["torch==2.13.0"]),
        (False, True, ["torch==2.13.0+cpu", "--extra-index-url", "https://cpu.example"]),
        (False, False, ["torch==2.13.0"]),
    ],
)
def test_the_driver_decides_the_build_of_torch(
    driver: bool, reachable: bool, expected: list[str]
) -> None:
    arguments, sentence = choose_build(
        "torch==2.13.0", "https://cpu.example", "linux", lambda: driver, lambda url: reachable
    )
    assert arguments == expected
    assert ("CUDA build" in sentence) == driver
    assert ("CPU build" in sentence) == (reachable and not driver)


def test_licence_and_version_are_in_one_place() -> None:
    assert (ROOT / "shared" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    project = tomllib.loads((ROOT / "shared" / "pyproject.toml").read_text())["project"]
    assert glasshouse.__version__ == project["version"]
    citation = parse_yaml((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == project["version"]
    assert citation["license"] == project["license"]


def test_the_lock_does_not_say_where_a_file_was_downloaded() -> None:
    url = "https://index.example/x-1.0-py3-none-any.whl"
    info = {"url": url, "archive_info": {"hashes": {"sha256": "0" * 64}}}
    entry = {"metadata": {"name": "X", "version": "1.0"}, "download_info": info}
    text = format_lock([entry], "2.13.0")
    assert text.endswith(f"x==1.0 \\\n    --hash=sha256:{'0' * 64}\n")
    assert len(text.splitlines()) == len(HEADER.splitlines()) + 2
    assert "index.example" not in text


def test_a_checkout_is_installed_again_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    words = shlex.split(errors.install_command("wandb"))
    assert words[-5:] == ["-m", "pip", "install", "-e", "./shared[wandb]"]
    assert Path(words[0]).absolute() == Path(sys.executable)


def test_an_environment_of_uv_gets_the_command_of_uv(tmp_path: Path) -> None:
    uv, python = Path(sys.executable).with_name("uv"), tmp_path / "new" / "bin" / "python"
    if not uv.exists():
        pytest.skip("uv is not installed")
    make = [uv, "venv", "--quiet", "--offline", "--python", sys.executable, tmp_path / "new"]
    subprocess.run(make, check=True)
    program = "from glasshouse import errors; print(errors.install_command('wandb'))"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "shared")}
    printed = subprocess.check_output([python, "-c", program], text=True, cwd=ROOT, env=env)
    words = ["uv", "pip", "install", "--python", str(python), "-e", "./shared[wandb]"]
    assert shlex.split(printed) == words


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
