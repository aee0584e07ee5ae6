"""`glasshouse study control` and `scaling`: their verdicts, and the studies that they run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.study.in_process_pool import InProcessPool
from tests.study.test_runner import SMALL

from glasshouse.cli.app import main
from glasshouse.study.controls import Gain, judge_control


def gains(*pairs: tuple[float, float]) -> list[Gain]:
    return [Gain(seed, before, after) for seed, (before, after) in enumerate(pairs)]


LEARNS = gains((0.3, 0.9), (0.31, 0.92), (0.3, 0.88))
FLAT = gains((0.3, 0.28), (0.31, 0.33), (0.3, 0.29))
ONE_FAILS = gains((0.3, 0.9), (0.3, 0.9), (0.3, 0.35))


@pytest.mark.parametrize(
    ("positive", "negative", "expected", "words"),
    [
        (LEARNS, FLAT, True, ["The pipeline learns", "does not learn from shuffled rewards"]),
        (LEARNS, LEARNS, False, ["leak"]),
        (ONE_FAILS, FLAT, False, ["It does not learn:"]),
        (gains((0.3, 0.9)), gains((0.3, 0.3)), True, ["learns"]),
    ],
)
def test_a_pipeline_must_learn_in_every_seed_and_only_from_its_rewards(
    positive: list[Gain], negative: list[Gain], expected: bool, words: list[str]
) -> None:
    passed, verdict = judge_control(positive, negative)
    assert passed == expected
    assert all(word in verdict for word in words)


def test_control_trains_both_arms_once(
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


def test_scaling_compares_fixed_sets_with_fresh_problems(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glasshouse.study.runner.ProcessPool", InProcessPool)
    out = tmp_path / "scaling"
    sizes = ["--base", "4", "--factors", "0.5,1", "--seeds", "1", "--out", str(out)]
    command = ["study", "scaling", *sizes, *SMALL, "task.name=multiplication", "steps=2"]
    assert main(command) == 0
    assert "multiplication, 2 steps" in capsys.readouterr().out
    report = json.loads((out / "results" / "scaling.json").read_text())
    arms = {arm["arm"]: arm for arm in report["arms"]}
    assert {name: arm["size"] for name, arm in arms.items()} == {"0.5x": 2, "1x": 4, "fresh": None}
    for arm in arms.values():
        [run] = arm["runs"]
        assert run["gap"] == pytest.approx(run["training"] - run["held_out_sampled"])
        assert arm["held_out"] == {"mean": run["held_out"], "low": None, "high": None, "n": 1}
    assert main([*command, "learn.learning_rate=1e-5"]) == 2
    assert "learn.learning_rate" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [
        "--factors=one",
        "--factors=0",
        "--base=0",
        "--seeds=0",
        "evaluate.problems=0",
        "steps=0",
        "a=1",
    ],
)
def test_a_wrong_argument_is_an_error_and_starts_nothing(wrong: str, tmp_path: Path) -> None:
    assert main(["study", "scaling", "--out", str(tmp_path / "s"), wrong]) == 2
    assert not (tmp_path / "s").exists()
