"""The Python example of the front page runs as it is written, with fewer steps and problems."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs.tables import ROOT

import glasshouse

SMALLER = '"steps": 1, "data.groups_per_step": 2, "generate.group_size": 2, "evaluate.problems": 4'


def test_ten_lines_train_the_pocket_model_and_plot_the_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(block.splitlines()) <= 10
    code = block.replace('"steps": 40', SMALLER).replace("first_step=40", "first_step=1")
    assert SMALLER in code
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["config"].model == "pocket"
    assert re.search(r"(?m)^before [01]\.\d+\nafter [01]\.\d+$", capsys.readouterr().out)
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def test_the_overrides_below_the_example_are_accepted() -> None:
    (text,) = re.findall(r"The overrides `(.*?)`", (ROOT / "README.md").read_text(), re.DOTALL)
    config = glasshouse.load_config(overrides=eval(f"{{{text}}}"))
    assert config.reward.penalties == {"monitor": {"weight": 1.0}}
