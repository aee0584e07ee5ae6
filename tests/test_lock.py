"""requirements.lock: every dependency at a tested version, each file with its hash, no index."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tools.lock import HEADER, LOCK, format_lock

ROOT = Path(__file__).resolve().parent.parent
TRACKERS = {"mlflow", "trackio", "wandb"}
"""Extras with their own environment, .venv-track."""
ENTRY = re.compile(r"(?P<name>[a-z0-9._-]+)==(?P<version>\S+) \\\n    --hash=sha256:[0-9a-f]{64}\n")


def test_every_dependency_is_locked_with_a_hash_at_a_version_that_is_allowed() -> None:
    text = "".join(x for x in LOCK.read_text().splitlines(True) if not x.startswith("#"))
    entries = {canonicalize_name(m["name"]): m["version"] for m in ENTRY.finditer(text)}
    assert ENTRY.sub("", text) == ""  # nothing else, no index for example
    project = tomllib.loads((ROOT / "shared" / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].items()
    lines = project["dependencies"] + [x for name, e in extras if name not in TRACKERS for x in e]
    for requirement in map(Requirement, lines):
        if requirement.name != "torch":  # its CPU and CUDA builds are different files
            version = entries[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), requirement
    assert "torch" not in entries


def test_the_header_names_the_tested_torch() -> None:
    dependencies = (ROOT / "shared" / "pyproject.toml").read_text()
    (torch,) = re.findall(r'"torch==([^"]+)"', dependencies)
    assert f"torch=={torch} first" in LOCK.read_text()


def test_the_lock_does_not_say_where_a_file_was_downloaded() -> None:
    url = "https://index.example/x-1.0-py3-none-any.whl"
    info = {"url": url, "archive_info": {"hashes": {"sha256": "0" * 64}}}
    entry = {"metadata": {"name": "X", "version": "1.0"}, "download_info": info}
    text = format_lock([entry], "2.13.0")
    assert text.endswith(f"x==1.0 \\\n    --hash=sha256:{'0' * 64}\n")
    assert len(text.splitlines()) == len(HEADER.splitlines()) + 2
    assert "index.example" not in text
