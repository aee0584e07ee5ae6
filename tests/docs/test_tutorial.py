"""docs/tutorial.ipynb: its cells run, with fewer steps and problems. `make docs` executes it as it is written."""

from __future__ import annotations

import json
import re
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import matplotlib as mpl
import pytest
from rich.console import Console
from tests.docs.tables import ROOT

from glasshouse.terminal import shows_bars
from glasshouse.training.display import TerminalDisplay

SMALLER = (
    '"steps": 1, "data.groups_per_step": 2, "generate.group_size": 2, "evaluate.problems": 4, '
    '"evaluate.samples": 2'
)


def read_cells() -> list[str]:
    notebook = json.loads((ROOT / "docs" / "tutorial.ipynb").read_text())
    for cell in notebook["cells"]:
        assert not cell.get("outputs"), "commit the notebook without outputs"
    return ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]


def test_cells_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "\n".join(read_cells())
    for steps, problems in ((12, 50), (20, 60)):
        size = rf'"steps": {steps},\s+"evaluate.problems": {problems}'
        code, replaced = re.subn(size, SMALLER, code)
        assert replaced == 1
    code = code.replace("first_step=12, correct=False", "first_step=1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with mpl.rc_context({"backend": "agg"}):
        names: dict = {}
        exec(compile(code, "docs/tutorial.ipynb", "exec"), names)
    assert [(row["arm"], row["step"]) for row in names["rows"]] == [
        ("outcome reward", "0"), ("outcome reward", "1"), ("with penalty", "0"), ("with penalty", "1"),
    ]  # fmt: skip
    penalised = names["glasshouse"].open_run(names["folder"] / "with penalty")
    assert all("mentions_hint" in row["terms"] for row in penalised.rollouts(splits=("train",)))


class StandInOutput:
    """The part of `ipywidgets.Output` that rich uses."""

    drawn = 0

    def __enter__(self) -> None:
        StandInOutput.drawn += 1

    def __exit__(self, *error: object) -> None: ...

    def clear_output(self, wait: bool) -> None: ...


def test_a_notebook_draws_progress_bars_as_widgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """With stand-ins for Jupyter; tools/tutorial.py looks for the real widgets in the executed notebook."""
    for name, members in {
        "ipywidgets": {"Output": StandInOutput},
        "IPython": {},
        "IPython.display": {"display": id},
    }.items():
        module = types.ModuleType(name)
        module.__dict__.update(members, __spec__=ModuleSpec(name, None))
        monkeypatch.setitem(sys.modules, name, module)
    notebook = Console(force_jupyter=True)
    assert shows_bars(notebook)
    with TerminalDisplay(notebook) as display:
        bar = display.progress.add_task("train", total=2, line="")
        display.progress.update(bar, completed=1, refresh=True)
    assert StandInOutput.drawn > 0
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    assert not shows_bars(notebook)  # lines are printed instead
