"""The built front end in the package belongs to the sources beside it."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

SHARED = Path(__file__).resolve().parents[2] / "shared"
SOURCES, ASSETS = SHARED / "view_frontend", SHARED / "glasshouse" / "view" / "assets"

COLOUR_BLINDNESS = {
    "none": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
"""What each kind of sight makes of linear RGB (Machado, Oliveira and Fernandes 2009)."""
TO_XYZ = np.array([[0.4125, 0.3576, 0.1804], [0.2127, 0.7152, 0.0722], [0.0193, 0.1192, 0.9503]])
WHITE = np.array([0.9505, 1.0, 1.0888])
Vector = NDArray[np.float64]


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


def linear_rgb(colour: str) -> Vector:
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def cie_lab(rgb: Vector) -> Vector:
    x, y, z = np.cbrt(np.maximum(TO_XYZ @ np.clip(rgb, 0, 1) / WHITE, 1e-6))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(first: str, second: str) -> float:
    """WCAG's contrast ratio."""
    dark, light = sorted(float(TO_XYZ[1] @ linear_rgb(c)) for c in (first, second))
    return (light + 0.05) / (dark + 0.05)


def test_series_differ_for_colour_blind_readers_and_stand_out() -> None:
    style = (SOURCES / "src" / "style.css").read_text()
    pairs = dict(re.findall(r"--(surface|c[0-7]): light-dark\(([^)]*)\)", style))
    for light_or_dark in (0, 1):
        colours = {name: pair.split(", ")[light_or_dark] for name, pair in pairs.items()}
        surface = colours.pop("surface")
        palette = list(colours.values())
        assert len(palette) == 8
        assert min(contrast(colour, surface) for colour in palette) >= 3
        for sight, matrix in COLOUR_BLINDNESS.items():
            seen = [cie_lab(np.array(matrix) @ linear_rgb(colour)) for colour in palette]
            nearest = min(np.linalg.norm(a - b) for a, b in combinations(seen, 2))
            assert nearest >= 15, (sight, palette)  # 2.3 is just noticeable
