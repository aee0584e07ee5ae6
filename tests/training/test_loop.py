"""The training loop on mock assets: a real model, real files, real signals."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from glasshouse.cli.app import main
from glasshouse.config.loading import load_config
from glasshouse.errors import ConfigError, RewardError, RunError
from glasshouse.rollout.grading import RewardInputs, reward
from glasshouse.rollout.penalties import shuffle_rewards
from glasshouse.runs import rollout_log
from glasshouse.runs.run_directory import load_events, load_metrics
from glasshouse.tasks.answers import split_completion
from glasshouse.training.metrics import check_staleness
from glasshouse.training.run import TrainingRun

pytestmark = pytest.mark.xdist_group(
    "training loop"
)  # one worker makes the expensive fixtures once
ROOT = Path(__file__).resolve().parents[2]
SMALL = [
    f"model={ROOT / 'models' / 'mock'}",
    "steps=2",
    "data.groups_per_step=4",
    "generate.group_size=4",
    "generate.max_tokens=32",
    "evaluate.problems=6",
    "evaluate.samples=2",
]
PARTIAL_REWARD = "reward.terms={closeness: 1}"


def train(out: Path, *overrides: str) -> dict[str, Any]:
    return TrainingRun(load_config([], [*SMALL, f"out={out}", *overrides])).train()


def read_rows(out: Path, kind: str = "train") -> list[dict[str, Any]]:
    """The rollouts without their wall-clock times."""
    rows = rollout_log.read_rows(out, kind)
    return [{k: v for k, v in row.items() if k != "time"} for row in rows]


def read_metrics(out: Path) -> list[dict[str, Any]]:
    """The metrics without timings and compressed sizes."""
    return [
        {k: v for k, v in row.items() if k not in ("timing", "rollout_log_bytes")}
        for row in load_metrics(out)
    ]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two steps."""
    out = tmp_path_factory.mktemp("trained") / "run"
    train(out)
    return out


def test_seed_changes_training_but_not_the_evaluation_problems(
    trained: Path, tmp_path: Path
) -> None:
    train(tmp_path / "other", "seed=1", "steps=1")
    runs = (trained, tmp_path / "other")
    trained_on, evaluated_on = (
        [{row["key"] for row in read_rows(run, kind)} for run in runs]
        for kind in ("train", "validation")
    )
    assert trained_on[0] != trained_on[1]
    assert evaluated_on[0] == evaluated_on[1]


def test_summary_has_both_evaluations_with_intervals(trained: Path) -> None:
    summary = json.loads((trained / "results" / "summary.json").read_text())
    assert {"task", "algorithm", "steps", "seed", "before", "after", "seconds"} <= summary.keys()
    for when in ("before", "after"):
        results = summary[when]
        assert results["accuracy_low"] <= results["accuracy"] <= results["accuracy_high"]
        assert {"lenient", "strict", "format", "pass_at_1", "pass_at_2", "levels"} <= results.keys()
        by_level = sum(level["problems"] for level in results["levels"].values())
        assert by_level == results["problems"]


def test_every_step_logs_its_metrics_and_timings(trained: Path) -> None:
    row = json.loads((trained / "results" / "metrics.jsonl").read_text().splitlines()[0])
    expected = (
        "step reward reward_std term_exact frac_all_correct frac_all_wrong frac_zero_std accuracy "
        "format rule_tag rule_none length truncated entropy kl grad_norm logprob_diff_max"
    )
    assert set(expected.split()) <= row.keys()
    cots = [split_completion(r["text"]).cot for r in read_rows(trained) if r["step"] == 1]
    assert row["cot_characters"] == pytest.approx(sum(map(len, cots)) / len(cots))
    phases = {"sample", "generate", "reward", "learn", "log"}
    assert phases | {"time", "generate_tokens_per_second", "peak_memory_mb"} <= (
        row["timing"].keys()
    )


def test_a_run_refuses_a_directory_with_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="out="):
        train(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_shuffled_rewards_are_a_permutation_of_the_earned_ones(tmp_path: Path) -> None:
    train(tmp_path / "a", "reward.shuffle=true", PARTIAL_REWARD, "steps=1")
    rows = read_rows(tmp_path / "a")
    assert sorted(r["reward"] for r in rows) == sorted(r["terms"]["earned"] for r in rows)
    assert [r["reward"] for r in rows] != [r["terms"]["earned"] for r in rows]
    assert shuffle_rewards([], 0, 1) == []


def test_a_reward_that_raises_stops_the_run_and_shows_the_completion(tmp_path: Path) -> None:
    @reward("broken")
    def broken(inputs: RewardInputs) -> float:
        raise ZeroDivisionError

    try:
        with pytest.raises(RewardError, match=r"broken(.|\n)*completion"):
            train(tmp_path / "a", "reward.terms={broken: 1}", "evaluate.problems=0")
    finally:
        del reward.parts["broken"]


def test_the_time_of_grading_is_not_that_of_generation(tmp_path: Path) -> None:
    @reward("slow")
    def slow(inputs: RewardInputs) -> float:
        time.sleep(1)
        return 0.0

    settings = (
        "reward.terms={slow: 1}",
        "data.groups_per_step=1",
        "steps=1",
        "evaluate.problems=0",
    )
    try:
        train(tmp_path / "a", *settings, "generate.max_tokens=1")
    finally:
        del reward.parts["slow"]
    timing = load_metrics(tmp_path / "a")[0]["timing"]
    assert timing["reward"] > max(1, timing["generate"])


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ("generate.group_size=1", "generate.group_size"),
        *(
            (f"generate.{greedy}", greedy)
            for greedy in ("temperature=0", "temperature=1e-09", "top_k=1", "min_p=1")
        ),
        ("learn.algorithm=grpu", "grpo"),
        ("data.file=x.jsonl", "data.source"),
        ("reward.terms.exakt=1", "exact"),
        ("generate.max_tokens=600", "generate.max_tokens"),
        ("max_offpolicy_steps=1 learn.algorithm=dapo", "learn.max_resamples"),
        ("max_offpolicy_steps=1 learn.importance_cap=0", "learn.importance_cap"),
    ],
)
def test_an_impossible_configuration_is_refused_before_anything_is_written(
    tmp_path: Path, overrides: str, named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        train(tmp_path / "a", *overrides.split())
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ("data.source=fixed data.size=3", "data.size=3 is less than data.groups_per_step=4"),
        ("task.schedule.9={}", "the stage of step 9 is never reached, since steps=1"),
        ("generate.stop=['2']", "generate.stop='2' cuts every number with this digit"),
        ("generate.stop=[']']", "generate.stop=']' cuts the answer tag"),
        ("learn.learning_rate=10", "learn.learning_rate=10: "),
    ],
)
def test_a_setting_that_can_hardly_be_meant_is_said_at_the_start(
    tmp_path: Path, overrides: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["steps=1", "evaluate.problems=0", *overrides.split()]
    train(tmp_path / "a", *settings)
    [first, *_] = load_events(tmp_path / "a", "warning")
    assert reason in first["text"]
    assert main(["train", "--dry-run", "data.groups_per_step=4", *settings]) == 0
    assert reason in capsys.readouterr().err


def test_a_run_without_reward_variance_warns_with_the_cause(tmp_path: Path) -> None:
    # the mock model never solves reverse_digits
    train(tmp_path / "a", "diagnostics.zero_variance_steps=2", "task.name=reverse_digits")
    lines = (tmp_path / "a" / "results" / "events.jsonl").read_text().splitlines()
    warnings = [e["text"] for e in map(json.loads, lines) if e["event"] == "warning"]
    assert any("reward.terms.closeness" in text for text in warnings), warnings


def test_offpolicy_steps_learn_from_weights_that_are_as_many_updates_old(tmp_path: Path) -> None:
    train(tmp_path / "a", "steps=5", "max_offpolicy_steps=2", PARTIAL_REWARD)
    versions = {row["step"]: row["policy_version"] for row in read_rows(tmp_path / "a")}
    assert versions == {1: 0, 2: 0, 3: 0, 4: 1, 5: 2}
    metrics = read_metrics(tmp_path / "a")
    assert [m["staleness"] for m in metrics] == [0, 1, 2, 2, 2]
    for age in (-1, 3):  # from weights that do not exist yet, and beyond the bound
        with pytest.raises(RuntimeError, match="max_offpolicy_steps"):
            check_staleness(age, 2)
    differences = [m["logprob_diff_max"] for m in metrics]
    assert differences[0] < 1e-4 < min(differences[1:])  # the loss sees that they are off-policy
