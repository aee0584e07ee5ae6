"""The Python code of README.md and docs/python.md runs as it is written, with fewer steps and problems."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs.tables import ROOT

import glasshouse

SMALLER = '"steps": 2, "data.groups_per_step": 2, "generate.group_size": 2, "evaluate.problems": 4'
FRONT, PAGE = ((ROOT / page).read_text() for page in ("README.md", "docs/python.md"))
CALLS, _PARTS = PAGE.split("## Your own parts")


@pytest.mark.parametrize("page", [FRONT, CALLS], ids=["README.md", "python.md"])
def test_ten_lines_train_the_pocket_model_and_plot_the_curve(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *others = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(first.splitlines()) <= 10
    code = first.replace('"steps": 40', SMALLER).replace("first_step=40", "first_step=2")
    assert SMALLER in code
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(code, "page", "exec"), names)
    assert len(re.findall(r"\b[01]\.\d+", capsys.readouterr().out)) >= 2  # before and after
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    for code in others:
        exec(compile(code, "page", "exec"), names)
        assert names["metrics"]["step"].tolist() == [1, 2]


def test_the_overrides_below_the_example_are_accepted() -> None:
    (text,) = re.findall(r"The overrides `(.*?)`", FRONT, re.DOTALL)
    config = glasshouse.load_config(overrides=eval(f"{{{text}}}"))
    assert config.reward.penalties == {"monitor": {"weight": 1.0}}


def test_every_public_function_is_on_the_python_page() -> None:
    types = {name for name in glasshouse.__all__ if name[0].isupper()}
    for name in set(glasshouse.__all__) - types:
        assert f"`{name}" in PAGE or f"glasshouse.{name}" in PAGE, name
