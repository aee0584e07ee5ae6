"""`glasshouse study control`: its verdict, and the study that it runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.study.in_process_pool import InProcessPool
from tests.study.test_process_pool import SMALL

from glasshouse.cli.app import main
from glasshouse.study.control import Gain, judge_control


def gains(*pairs: tuple[float, float]) -> list[Gain]:
    return [Gain(seed, before, after) for seed, (before, after) in enumerate(pairs)]


LEARNS = gains((0.3, 0.9), (0.31, 0.92), (0.3, 0.88))
FLAT = gains((0.3, 0.28), (0.31, 0.33), (0.3, 0.29))


def test_a_pipeline_that_learns_only_from_its_rewards_passes() -> None:
    passed, verdict = judge_control(LEARNS, FLAT)
    assert passed
    assert "The pipeline learns" in verdict
    assert "does not learn from shuffled rewards" in verdict


def test_a_gain_from_shuffled_rewards_is_a_leak() -> None:
    passed, verdict = judge_control(LEARNS, LEARNS)
    assert not passed
    assert "leak" in verdict


def test_one_seed_that_does_not_learn_fails_the_control() -> None:
    passed, verdict = judge_control(gains((0.3, 0.9), (0.3, 0.9), (0.3, 0.35)), FLAT)
    assert not passed
    assert "It does not learn" in verdict


def test_the_likeliest_reason_depends_on_the_starting_accuracy() -> None:
    assert "rule_none" in judge_control(gains((0, 0), (0, 0.01)), [])[1]
    assert "make the task harder" in judge_control(gains((0.95, 0.95), (0.96, 0.95)), [])[1]
    assert "collapses" in judge_control(gains((0.4, 0.1), (0.4, 0.38)), [])[1]


def test_the_command_trains_both_arms_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glasshouse.study.runner.ProcessPool", InProcessPool)
    out = tmp_path / "control"
    command = ["study", "control", "--seeds", "1", "--out", str(out), *SMALL, "steps=2"]
    assert main(command) == 1
    printed = capsys.readouterr().out
    assert "positive seed 0" in printed
    assert "negative seed 0" in printed
    assert "It does not learn" in printed
    report = (out / "results" / "control.json").read_text()
    assert set(json.loads(report)) == {"passed", "verdict", "positive", "negative"}
    times = {p: p.stat().st_mtime_ns for p in out.glob("runs/*/*/results/summary.json")}
    assert len(times) == 2
    assert main(command) == 1
    assert {p: p.stat().st_mtime_ns for p in times} == times
    assert (out / "results" / "control.json").read_text() == report
