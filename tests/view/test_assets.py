"""The built front end in the package belongs to the sources beside it."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"
SOURCES, ASSETS = SHARED / "view_frontend", SHARED / "glasshouse" / "view" / "assets"


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_built_files_match_their_sources() -> None:
    recorded = json.loads((ASSETS / "sources.json").read_text())
    files = [p for p in (SOURCES / "src").rglob("*") if p.is_file()]
    files += [SOURCES / "build.mjs", SOURCES / "package-lock.json"]
    sources = {file.relative_to(SOURCES).as_posix(): digest(file) for file in files}
    assert recorded["sources"] == sources, "run `make view-assets` and commit the result"
    built = {p.name: digest(p) for p in ASSETS.iterdir() if p.name != "sources.json"}
    assert recorded["built"] == built, "run `make view-assets` and commit the result"


def test_a_build_gives_the_committed_bytes(tmp_path: Path) -> None:
    if not shutil.which("node") or not (SOURCES / "node_modules" / "esbuild").is_dir():
        pytest.skip("Node or the packages of the front end are not installed (make view-assets)")
    subprocess.run(
        ["node", "build.mjs", "--out", str(tmp_path)], cwd=SOURCES, check=True, timeout=120
    )
    for file in ASSETS.iterdir():
        assert (tmp_path / file.name).read_bytes() == file.read_bytes(), file.name


def test_nothing_in_the_page_names_another_server() -> None:
    for name in ("index.html", "app.css", "app.js"):
        text = (ASSETS / name).read_text()
        addresses = {part.split('"')[0].split("'")[0] for part in text.split("http")[1:]}
        allowed = {"://www.w3.org/2000/svg", "://www.w3.org/1999/xhtml", "://www.w3.org/1999/xlink"}
        named = {address for address in addresses if address.startswith(("://", "s://"))}
        assert named <= allowed | {a for a in named if a.startswith("://www.w3.org/")}, name
