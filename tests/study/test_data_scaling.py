"""`glasshouse study scaling`: fixed sets against fresh problems on mock assets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.study.in_process_pool import InProcessPool

from glasshouse.cli.app import main
from glasshouse.study.data_scaling import COLUMNS, summarize_runs

MOCK_MODEL = Path(__file__).resolve().parents[2] / "models" / "mock"


def run_command(out: Path, *overrides: str) -> int:
    return main([
        "study", "scaling", "--base", "4", "--factors", "0.5,1", "--seeds", "1", "--steps", "2", "--jobs", "1",
        "--out", str(out), f"model={MOCK_MODEL}", "task.name=multiplication", "data.groups_per_step=4",
        "generate.group_size=2", "generate.max_tokens=16", "evaluate.problems=6", "evaluate.samples=2",
        *overrides,
    ])  # fmt: skip


def test_fixed_sets_are_compared_with_fresh_problems_and_trained_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("glasshouse.study.runner.ProcessPool", InProcessPool)
    out = tmp_path / "scaling"
    assert run_command(out) == 0
    assert "multiplication, 2 steps" in capsys.readouterr().out
    report = json.loads((out / "results" / "scaling.json").read_text())
    arms = {arm["arm"]: arm for arm in report["arms"]}
    assert {name: arm["size"] for name, arm in arms.items()} == {"0.5x": 2, "1x": 4, "fresh": None}
    distinct = {name: arm["distinct_problems"]["mean"] for name, arm in arms.items()}
    assert distinct == {"0.5x": 2, "1x": 4, "fresh": 8}
    for arm in arms.values():
        [run] = arm["runs"]
        assert run["gap"] == pytest.approx(run["training"] - run["held_out_sampled"])
        assert arm["held_out"] == {"mean": run["held_out"], "low": None, "high": None}
        assert run["seconds"] > 0
    assert (out / "results" / "scaling.png").stat().st_size > 5000

    times = {f: f.stat().st_mtime_ns for f in out.glob("runs/*/*/results/summary.json")}
    assert len(times) == 3
    assert run_command(out) == 0
    assert {f: f.stat().st_mtime_ns for f in times} == times
    assert json.loads((out / "results" / "scaling.json").read_text()) == report
    capsys.readouterr()
    assert run_command(out, "learn.learning_rate=1e-5") == 2
    assert "learn.learning_rate" in capsys.readouterr().err


def test_an_arm_is_summarized_by_its_mean_and_t_interval() -> None:
    runs = [dict.fromkeys(COLUMNS, value) for value in (0.2, 0.3, 0.4)]
    half = 4.303 * 0.1 / 3**0.5  # t with 2 degrees of freedom
    expected = {"mean": 0.3, "low": 0.3 - half, "high": 0.3 + half}
    assert summarize_runs(runs)["held_out"] == pytest.approx(expected)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--factors", "one"],
        ["--factors", "0"],
        ["--base", "0"],
        ["--seeds", "0"],
        ["evaluate.problems=0"],
        ["--steps", "0"],
        ["lern.lr=1"],
    ],
)
def test_a_wrong_argument_is_an_error_and_starts_nothing(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", "scaling", "--out", str(tmp_path / "s"), *arguments]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert not (tmp_path / "s").exists()
