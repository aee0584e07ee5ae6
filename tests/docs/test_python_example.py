"""The Python example of the front page runs as it is written, with fewer steps and problems."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs.tables import ROOT

SMALLER = '"steps": 1, "data.groups_per_step": 2, "generate.group_size": 2, "evaluate.problems": 4'


def test_python_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 1
    code = blocks[0].replace('"steps": 40', SMALLER)
    assert SMALLER in code
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    last = capsys.readouterr().out.splitlines()[-2:]
    assert [line.split()[0] for line in last] == ["0", "1"]
    assert (tmp_path / "runs" / "monitor-in-reward" / "results" / "summary.json").is_file()
