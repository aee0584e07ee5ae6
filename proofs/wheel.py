"""Proves that the wheel is complete: in a new environment it runs the demo, and parts of another package.

    make proofs ONLY=wheel                                   two short trainings, under 10 minutes on two cores
    make proofs ONLY=wheel ARGS="--torch /path/to/torch.whl" take PyTorch from a file instead of pip's index

The environment has the wheel, its dependencies at the versions of constraints.txt and the extras `report` and `train`,
but no file of this repository: commands run in an empty folder, isolated from PYTHONPATH. Then a package is installed
that offers a part of each kind by entry points: the task of docs/python.md and the commented parts of
training/example.rl/train.py. Before PyTorch is installed, the commands that need no model measure rollouts.
The tasks of that package are validated, and one step is trained with the parts. Everything is in build/wheel-proof.
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
PARTS = {
    "tasks": {"count_vowels": "vowels:CountVowels", "digit_pairs": "parts:DigitPairs"},
    "organisms": {"second_hint": "parts:SecondHint"},
    "rewards": {"brief": "parts:brief"},
    "penalties": {"shouting": "parts:Shouting"},
    "monitors": {"length": "parts:LengthMonitor"},
    "trackers": {"print": "parts:PrintTracker"},
    "engines": {"counting": "parts:CountingEngine"},
}
"""Entry points of the other package, by group."""
TRAINING = (
    "task.name=digit_pairs", "reward.terms={exact: 1, brief: 0.1}", "reward.penalties={shouting: {weight: 0.5}}",
    "evaluate.monitors={long: {kind: length, limit: 9}}", "trackers=[print]", "generate.engine=counting", "steps=1",
    "data.groups_per_step=2", "evaluate.problems=4", "out=runs/outside",
)  # fmt: skip
EXPECTED = ("pocket/model/model.safetensors", "report/templates/", "view/assets/", "py.typed")


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
    run("install the wheel without PyTorch", [*install, "-c", str(CONSTRAINTS), str(wheel)])
    (work / "rollouts.jsonl").write_text('{"completion": "<think>1+1</think>2", "gold": "2"}\n' * 4)
    measured = run("measure", [python, "-m", "glasshouse", "measure", "rollouts.jsonl"], work)
    assert "accuracy" in measured, measured
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
    write_package(FOLDER / "outside")
    run("install another package", [*install, "--no-deps", str(FOLDER / "outside")])
    for task in ("count_vowels", "digit_pairs", "second_hint"):
        command = [python, "-m", "glasshouse", "tasks", task, "--validate", "200"]
        assert "0 faults" in run(f"validate its task {task}", command, work)
    printed = run("train with its parts", [python, "-m", "glasshouse", "train", *TRAINING], work)
    assert "train 1" in printed, printed  # by its tracker
    print(f"passed: glasshouse {version} from {wheel.name}, {len(pictures)} pictures")
    return 0


def copy_sources() -> Path:
    """A copy of shared/ without build output: setuptools would add stale files of shared/build to the wheel."""
    ignore = shutil.ignore_patterns(
        "build", "*.egg-info", "__pycache__", "node_modules", "view_frontend"
    )
    return Path(shutil.copytree(ROOT / "shared", FOLDER / "sources", ignore=ignore))


def write_package(folder: Path) -> None:
    """A package as another project would write it, with an entry point of each group."""
    package = folder / "outside_parts"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    page = (ROOT / "docs" / "extend.md").read_text()
    (package / "vowels.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    template = (ROOT / "training" / "example.rl" / "train.py").read_text().splitlines()
    parts = [line[2:] for line in template if line.startswith("#")]
    lines = [
        line for line in parts if not line.startswith("@")
    ]  # entry points take the decorators' place
    (package / "parts.py").write_text("\n".join(lines) + "\n")
    project = '[project]\nname = "outside-parts"\nversion = "1.0"\n'
    for group, points in PARTS.items():
        project += f'\n[project.entry-points."glasshouse.{group}"]\n'
        project += "".join(f'{name} = "outside_parts.{where}"\n' for name, where in points.items())
    (folder / "pyproject.toml").write_text(project)


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
