"""The loop on mock assets: real model, real files, real signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from glasshouse import config
from glasshouse.data import Split, split_of
from glasshouse.errors import ConfigError, RewardError, RunError
from glasshouse.rewards import REWARDS, RewardInputs, reward
from glasshouse.rollout.collector import shuffle_rewards
from glasshouse.store import rollout_reader
from glasshouse.train import Run

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


def run(out: Path, *overrides: str) -> dict:
    return Run(config.load([], [*SMALL, f"out={out}", *overrides])).train()


def rows(out: Path, kind: str = "train") -> list[dict]:
    listed = list(rollout_reader.read(out / "results" / "rollouts", kind))
    return [{k: v for k, v in row.items() if k != "time"} for row in listed]


def metrics(out: Path) -> list[dict]:
    lines = (out / "results" / "metrics.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if k not in ("timing", "record_bytes")}
        for line in lines
    ]


def test_the_same_command_twice_gives_the_same_bits(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run(tmp_path / name)
    a, b = (tmp_path / n / "checkpoints/step-000002/model.safetensors" for n in ("a", "b"))
    assert a.read_bytes() == b.read_bytes()
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b")
    for kind in ("train", "validation"):
        assert rows(tmp_path / "a", kind) == rows(tmp_path / "b", kind)


def test_another_seed_gives_another_run(tmp_path: Path) -> None:
    run(tmp_path / "a")
    run(tmp_path / "b", "seed=1")
    assert {r["key"] for r in rows(tmp_path / "a")} != {r["key"] for r in rows(tmp_path / "b")}
    same_evaluation = [{r["key"] for r in rows(tmp_path / n, "validation")} for n in ("a", "b")]
    assert same_evaluation[0] == same_evaluation[1]


def test_training_and_evaluation_problems_keep_to_their_splits(tmp_path: Path) -> None:
    outcome = Run(config.load([], [*SMALL, f"out={tmp_path / 'a'}"]))
    assert {split_of(p) for p in outcome.held_out} == {Split.VALIDATION}
    outcome.train()
    trained = {r["key"] for r in rows(tmp_path / "a")}
    assert trained.isdisjoint(p.key for p in outcome.held_out)


def test_the_summary_has_what_programs_need(tmp_path: Path) -> None:
    run(tmp_path / "a")
    summary = json.loads((tmp_path / "a" / "results" / "summary.json").read_text())
    assert {"task", "algorithm", "steps", "seed", "before", "after", "seconds"} <= summary.keys()
    for when in ("before", "after"):
        found = summary[when]
        assert found["accuracy_low"] <= found["accuracy"] <= found["accuracy_high"]
        assert {"lenient", "strict", "format", "pass_at_1", "pass_at_2", "levels"} <= found.keys()
        assert sum(level["problems"] for level in found["levels"].values()) == found["problems"]


def test_every_step_logs_what_the_issue_asks_for(tmp_path: Path) -> None:
    run(tmp_path / "a")
    row = json.loads((tmp_path / "a" / "results" / "metrics.jsonl").read_text().splitlines()[0])
    wanted = (
        "step reward reward_std part_exact groups_all_right groups_all_wrong accuracy format rule_tag "
        "rule_none length truncated entropy kl grad_norm"
    )
    assert set(wanted.split()) <= row.keys()
    timed = {"time", "generate_tokens_per_second", "learn_tokens_per_second", "generate", "learn"}
    assert timed <= row["timing"].keys()


def test_a_run_never_writes_into_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="already holds files"):
        run(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_shuffling_deals_out_the_same_rewards(tmp_path: Path) -> None:
    run(tmp_path / "a", "reward.shuffle=true", "reward.terms={closeness: 1}", "steps=1")
    listed = rows(tmp_path / "a")
    assert sorted(r["reward"] for r in listed) == sorted(r["parts"]["earned"] for r in listed)
    assert [r["reward"] for r in listed] != [r["parts"]["earned"] for r in listed]
    assert shuffle_rewards([], 0, 1) == []


def test_dynamic_sampling_trains_on_groups_with_variance(tmp_path: Path) -> None:
    run(tmp_path / "a", "learn.algorithm=dapo", "reward.terms={closeness: 1}", "steps=1")
    groups: dict[int, set[float]] = {}
    for row in rows(tmp_path / "a"):
        groups.setdefault(row["group"], set()).add(row["reward"])
    assert groups
    assert all(len(rewards) > 1 for rewards in groups.values())


@pytest.mark.parametrize("name", ["reinforce", "rloo", "grpo", "dr_grpo", "dapo", "gspo", "cispo"])
def test_every_algorithm_runs(tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    run(
        out,
        f"learn.algorithm={name}",
        "reward.terms={closeness: 1}",
        "learn.kl_coef=0.1",
        "learn.entropy_coef=0.01",
        "steps=1",
    )
    assert metrics(out)[0]["grad_norm"] > 0


def test_a_reward_that_raises_stops_the_run_with_its_completion(tmp_path: Path) -> None:
    @reward("broken")
    def broken(given: RewardInputs) -> float:
        raise ZeroDivisionError

    try:
        with pytest.raises(RewardError, match=r"broken.*completion was"):
            run(tmp_path / "a", "reward.terms={broken: 1}")
    finally:
        del REWARDS["broken"]


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("generate.group_size=1", "at least 2"),
        ("generate.temperature=0", "greedy"),
        ("learn.algorithm=grpu", "grpo"),
        ("data.file=x.jsonl", "data.source"),
        ("reward.terms={exakt: 1}", "exact"),
        ("generate.max_tokens=600", "context"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_written(
    tmp_path: Path, override: str, word: str
) -> None:
    with pytest.raises(ConfigError, match=word):
        run(tmp_path / "a", override)
    assert not (tmp_path / "a").exists()


def test_a_run_without_variance_says_so_in_words(tmp_path: Path) -> None:
    run(
        tmp_path / "a", "diagnostics.zero_variance_steps=2", "task.name=reverse_digits"
    )  # the mock is never right
    events = [
        json.loads(e)
        for e in (tmp_path / "a" / "results" / "events.jsonl").read_text().splitlines()
    ]
    warnings = [e["text"] for e in events if e["event"] == "warning"]
    assert any("nothing is learned: no answer is ever right" in w for w in warnings), warnings


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_cleanly(tmp_path: Path, sent: signal.Signals) -> None:
    command = [
        sys.executable,
        "-m",
        "glasshouse",
        "train",
        *SMALL,
        "steps=100000",
        f"out={tmp_path / 'a'}",
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
    )
    log = tmp_path / "a" / "results" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (log.exists() and log.read_text().count("\n") >= 2):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(sent)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    summary = json.loads((tmp_path / "a" / "results" / "summary.json").read_text())
    assert summary["interrupted_at"] == len(metrics(tmp_path / "a"))
    assert Path(summary["checkpoint"], "model.safetensors").is_file()


def test_a_lag_of_one_learns_from_exactly_one_version_before(tmp_path: Path) -> None:
    run(tmp_path / "a", "steps=4", "max_offpolicy_steps=1", "reward.terms={closeness: 1}")
    versions = {r["step"]: r["version"] for r in rows(tmp_path / "a")}
    assert versions == {1: 0, 2: 0, 3: 1, 4: 2}
    gaps = [m["gap_max"] for m in metrics(tmp_path / "a")]
    assert gaps[0] < 1e-4 < min(gaps[1:])  # and the loss sees by how much they differ


def test_a_lag_is_refused_where_it_could_not_be_corrected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"learn\.refills=0"):
        run(tmp_path / "a", "max_offpolicy_steps=1", "learn.algorithm=dapo")
    with pytest.raises(ConfigError, match="importance_cap"):
        run(tmp_path / "a", "max_offpolicy_steps=1", "learn.importance_cap=0")
    assert not (tmp_path / "a").exists()
