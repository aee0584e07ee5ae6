"""The code of docs/python.md runs as it is written, with fewer steps and problems."""

import re
from pathlib import Path

import glasshouse

ROOT = Path(__file__).parents[2]
SMALLER = '"steps": 2, "data.groups_per_step": 2, "generate.group_size": 2, "evaluate.problems": 4'


def test_code_of_the_python_page(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "python.md").read_text()
    first, second = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(first.splitlines()) <= 10
    monkeypatch.chdir(tmp_path)
    small = first.replace('"steps": 40', SMALLER).replace("first_step=40", "first_step=2")
    assert SMALLER in small
    exec(compile(small, "docs/python.md", "exec"), {})
    assert re.search(r"accuracy 0\.\d\d → 0\.\d\d", capsys.readouterr().out)
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    names: dict = {}
    exec(compile(second, "docs/python.md", "exec"), names)
    assert names["metrics"]["step"].tolist() == [1, 2]


def test_every_public_function_is_on_the_python_page():
    page = (ROOT / "docs" / "python.md").read_text()
    types = {name for name in glasshouse.__all__ if name[0].isupper()} - {"Problem", "Records"}
    for name in set(glasshouse.__all__) - {"Problem", "GlasshouseError", "Grade"}:
        assert f"`{name}" in page or f"glasshouse.{name}" in page or name in types, name
