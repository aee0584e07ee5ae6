"""Proves that the wheel is complete: in a new environment it measures rollouts and runs the demo.

    make proofs ONLY=wheel                                   two short trainings, under 10 minutes on two cores
    make proofs ONLY=wheel ARGS="--torch /path/to/torch.whl" take PyTorch from a file instead of pip's index

The environment has the wheel, its dependencies at the versions of constraints.txt and the extras `report` and `train`,
but no file of this repository: commands run in an empty folder, isolated from PYTHONPATH. Before PyTorch is installed,
the commands that need no model measure rollouts. Everything is in build/wheel-proof.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

from tools.torch_build import CONSTRAINTS, read_pin

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "wheel-proof"
EXPECTED = (
    "pocket/model/model.safetensors",
    "kernel/small_llama.c",
    "study/demo.yaml",
    "view/assets/",
    "py.typed",
)

ASK_PAGE = """
import re, subprocess, sys, urllib.request
command = [sys.executable, "-m", "glasshouse", "view", "rollouts.jsonl", "--port", "0"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
    address = re.search("http://[^#]*", server.stdout.readline())[0]
    print(urllib.request.urlopen(address + "api/run?run=rollouts.jsonl").read().decode())
    server.terminate()
"""
"""Ask the page of a file for its measures."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--torch", default=read_pin(CONSTRAINTS.read_text()), help="what pip installs as PyTorch"
    )
    arguments = parser.parse_args()
    if FOLDER.exists():
        shutil.rmtree(FOLDER)
    work = FOLDER / "work"
    work.mkdir(parents=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(
        "build the wheel",
        [*pip, "wheel", "-q", "--no-deps", "-w", str(FOLDER), str(copy_sources())],
    )
    (wheel,) = FOLDER.glob("glasshouse-*.whl")
    check_contents(wheel)
    python = str(FOLDER / "venv" / "bin" / "python")
    install = [python, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    run("create an environment", [sys.executable, "-m", "venv", str(FOLDER / "venv")])
    run("install the wheel without PyTorch", [*install, "-c", str(CONSTRAINTS), f"{wheel}[view]"])
    (work / "rollouts.jsonl").write_text('{"completion": "<think>1+1</think>2", "gold": "2"}\n' * 4)
    page = ["rollouts.jsonl", "--report", "page.html"]
    measured = run("measure", [python, "-m", "glasshouse", "measure", *page], work)
    assert "accuracy" in measured, measured
    assert "4 rollouts" in run("view", [python, "-c", ASK_PAGE], work)
    absent = "import importlib.util as u; assert not u.find_spec('torch')"
    run("is PyTorch absent?", [python, "-c", absent], work)
    run("install PyTorch", [*install, arguments.torch])
    run("install the wheel", [*install, "-c", str(CONSTRAINTS), f"{wheel}[report,train]"])
    where = "import glasshouse; print(glasshouse.__version__, glasshouse.__file__)"
    version, _, file = run("import", [python, "-c", where], work).strip().partition(" ")
    assert Path(file).is_relative_to(FOLDER / "venv"), file
    assert f"-{version}-" in wheel.name, (version, wheel.name)
    run("run the demo", [python, "-m", "glasshouse", "demo"], work)
    pictures = sorted(path.name for path in (work / "runs" / "demo").rglob("*.png"))
    assert pictures, "the demo drew no picture"
    print(f"passed: glasshouse {version} from {wheel.name}, {len(pictures)} pictures")
    return 0


def copy_sources() -> Path:
    """A copy of shared/ without build output: setuptools would add stale files of shared/build to the wheel."""
    ignore = shutil.ignore_patterns(
        "build", "*.egg-info", "__pycache__", "node_modules", "view_frontend"
    )
    return Path(shutil.copytree(ROOT / "shared", FOLDER / "sources", ignore=ignore))


def check_contents(wheel: Path) -> None:
    """The wheel has the data files, the licence and the description."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    for part in EXPECTED:
        assert any(name.startswith(f"glasshouse/{part}") for name in names), part
    assert any(name.endswith("licenses/LICENSE") for name in names), names[-10:]
    for field in (
        "Author",
        "Classifier",
        "License-Expression",
        "Requires-Python",
        "Provides-Extra",
    ):
        assert f"\n{field}: " in metadata, field
    assert "Description-Content-Type: text/markdown" in metadata


def run(what: str, command: list[str], folder: Path = ROOT) -> str:
    """Run the command and return what it printed; print its errors and stop if it fails."""
    started = time.monotonic()
    print(f"{what} … ", end="", flush=True)
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        command, cwd=folder, env=clean, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(
            f"FAILED (exit code {done.returncode})\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    print(f"{time.monotonic() - started:.0f} s")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
