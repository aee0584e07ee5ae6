"""`make edition`: an edition file takes the place of the study file, and its verdicts stand beside the old ones."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from tests.study.in_process_pool import InProcessPool
from tests.study.test_evaluations import STUDY
from tools import edition

from glasshouse.study.evaluations import ROLLOUTS_FILE


def test_an_edition_is_published_in_place_of_the_study_and_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(edition, "ROOT", tmp_path)
    monkeypatch.setattr("glasshouse.study.runner.ProcessPool", InProcessPool)
    folder = tmp_path / "studies" / "mini"
    folder.mkdir(parents=True)
    (folder / "study.yaml").write_text("old: study")
    small = STUDY.replace("problems: 20", "problems: 4").replace("reserve: 120", "reserve: 8")
    (folder / "edition.yaml").write_text(small)
    old = {"ask": "Does it rise?", "verdict": "Shown", "effect": {"effect": 0.5}}
    (folder / "study.json").write_text(json.dumps({"questions": [old]}))
    arguments = argparse.Namespace(only=None, list=False, analyse=False, attempt=False, jobs=1)
    assert edition.main(arguments) == 0
    assert not (folder / "edition.yaml").exists()
    assert (folder / "study.yaml").read_text() == small
    assert {"README.md", "study.json", "table.jsonl.zst", ROLLOUTS_FILE} <= {
        path.name for path in folder.iterdir()
    }
    verdicts = (tmp_path / "studies" / "verdicts.md").read_text()
    assert "Shown (+0.50)" in verdicts
    assert "**changed**" in verdicts
    before = (folder / "table.jsonl.zst").read_bytes()
    capsys.readouterr()
    assert edition.main(arguments) == 0  # nothing is left to train
    assert "2 of 2 runs are already finished" in capsys.readouterr().out
    assert (folder / "table.jsonl.zst").read_bytes() == before
