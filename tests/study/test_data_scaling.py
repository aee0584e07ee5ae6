"""How large should it be? The sweep on mock assets, and its arithmetic."""

import json
from pathlib import Path

import pytest

from glasshouse.cli import main
from glasshouse.study import data_scaling

MOCK = Path(__file__).resolve().parents[2] / "models" / "mock"


def sweep(out, *more):
    return main([
        "data", "scaling", "--base", "4", "--factors", "0.5,1", "--seeds", "1", "--steps", "2", "--jobs", "2",
        "--out", str(out), f"model={MOCK}", "task.name=multiplication", "data.groups_per_step=4",
        "generate.group_size=2", "generate.max_tokens=16", "evaluate.problems=6", "evaluate.samples=2", *more,
    ])  # fmt: skip


def test_a_sweep_compares_fixed_sets_with_fresh_problems_and_is_not_run_twice(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    out = tmp_path / "s"
    assert sweep(out) == 0
    assert "multiplication, 2 steps" in capsys.readouterr().out
    report = json.loads((out / "scaling.json").read_text())
    arms = {arm["arm"]: arm for arm in report["arms"]}
    assert {name: arm["size"] for name, arm in arms.items()} == {"0.5x": 2, "1x": 4, "fresh": None}
    distinct = {name: arm["distinct_problems"]["mean"] for name, arm in arms.items()}
    assert distinct == {"0.5x": 2, "1x": 4, "fresh": 8}
    for arm in arms.values():
        [run] = arm["runs"]
        assert run["gap"] == pytest.approx(run["training"] - run["held_out_sampled"])
        assert arm["held_out"] == {"mean": run["held_out"], "low": None, "high": None}
        assert run["seconds"] > 0
    assert (out / "scaling.png").stat().st_size > 5000

    times = {f: f.stat().st_mtime_ns for f in out.glob("*/results/summary.json")}
    cut_off = out / "1x-0" / "results" / "summary.json"
    cut_off.unlink()  # as if it had been killed in the middle
    assert sweep(out) == 0
    assert json.loads((out / "scaling.json").read_text())["arms"][0]["runs"] == arms["0.5x"]["runs"]
    for file, time in times.items():
        assert (file.stat().st_mtime_ns == time) == (file != cut_off)

    assert sweep(out, "learn.learning_rate=1e-5") == 2
    assert "another configuration (these differ: learn)" in capsys.readouterr().err


def test_an_arm_is_a_mean_with_its_t_interval():
    runs = [dict.fromkeys(data_scaling.MEASURES, value) for value in (0.2, 0.3, 0.4)]
    held = data_scaling.summarise(runs)["held_out"]
    half = 4.303 * 0.1 / 3**0.5  # t at 2 degrees of freedom
    assert held == pytest.approx({"mean": 0.3, "low": 0.3 - half, "high": 0.3 + half})


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
def test_a_mistake_is_one_sentence_and_starts_nothing(arguments, tmp_path, capsys):
    assert main(["data", "scaling", "--out", str(tmp_path / "s"), *arguments]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert not (tmp_path / "s").exists()
