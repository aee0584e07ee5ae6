"""Streams in a run: used up, started over, scheduled, and cheap."""

import json
from pathlib import Path

import pytest

from glasshouse import config
from glasshouse.errors import ConfigError
from glasshouse.store import rollout_reader
from glasshouse.train import Trainer
from glasshouse.train.display import Display

MOCK = Path(__file__).resolve().parents[2] / "models" / "mock"
SMALL = [
    f"model={MOCK}", "steps=4", "task.name=multiplication", "data.groups_per_step=8", "generate.group_size=2",
    "generate.max_tokens=16", "evaluate.problems=4", "evaluate.samples=0", "evaluate.oversize=1",
]  # fmt: skip
TINY = "task.options={left_digits: 1, right_digits: 1}"  # 45 problems, 37 of them for training


class Listening(Display):
    def __init__(self):
        self.said = []

    def warn(self, sentence):
        self.said.append(sentence)


def run(out, *overrides):
    display = Listening()
    summary = Trainer(config.load_config([], [*SMALL, f"out={out}", *overrides]), display).train()
    return summary, display.said


def keys(out):
    rows = rollout_reader.read_rollouts(out / "results" / "rollouts", "train")
    return [r["key"] for r in rows if r["sample"] == 0]


def events(out, kind):
    lines = (out / "results" / "events.jsonl").read_text().splitlines()
    return [e for e in map(json.loads, lines) if e["event"] == kind]


def test_a_used_up_run_says_that_it_starts_over(tmp_path):
    summary, said = run(tmp_path / "a", TINY, "steps=6")
    assert summary["steps_done"] == 6
    drawn = keys(tmp_path / "a")
    assert len(set(drawn[:37])) == 37
    assert drawn[37:] == drawn[:11]
    assert [(e["step"], e["laps"]) for e in events(tmp_path / "a", "started_over")] == [(5, 1)]
    assert sum("from step 5 on they come again" in s for s in said) == 1


def test_a_run_told_to_stop_ends_with_a_sentence_and_its_evaluation(tmp_path):
    summary, said = run(tmp_path / "a", TINY, "steps=6", "data.on_exhausted=stop")
    assert summary["steps_done"] == summary["used_up_at"] == 4
    assert "accuracy" in summary["after"]
    assert any("The run ends after step 4" in s and "used up" in s for s in said)
    assert events(tmp_path / "a", "used_up")[0]["step"] == 4
    assert len(set(keys(tmp_path / "a"))) == 32
    assert Path(summary["checkpoint"], "model.safetensors").is_file()


def test_a_schedule_changes_the_difficulty_of_training_but_not_of_evaluation(tmp_path):
    run(
        tmp_path / "a",
        "task.options={left_digits: 3, right_digits: 1}",
        "task.schedule={0: {left_digits: 1}, 3: {left_digits: 2}, 4: {}}",
    )
    rows = list(rollout_reader.read_rollouts(tmp_path / "a" / "results" / "rollouts", "train"))
    by_step = {step: {r["level"] for r in rows if r["step"] == step} for step in range(1, 5)}
    assert by_step == {
        1: {"1x1, stage 1"},
        2: {"1x1, stage 1"},
        3: {"2x1, stage 2"},
        4: {"3x1, stage 3"},
    }
    held_out = rollout_reader.read_rollouts(tmp_path / "a" / "results" / "rollouts", "validation")
    assert {r["level"] for r in held_out} == {"3x1"}
    again = config.load_config([tmp_path / "a" / "config.yaml"]).task.schedule
    assert again == {0: {"left_digits": 1}, 3: {"left_digits": 2}, 4: {}}


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["task.schedule={5: {left_digit: 1}}"], r"schedule, step 5.*left_digits"),
        (["task.schedule={5: {left_digits: 0}}"], r"schedule, step 5.*left_digits"),
        (["task.schedule={-1: {}}"], "steps begin at 0"),
        (["task.schedule={soon: {}}"], "valid integer"),
        (["task.schedule={5: {}}", "data.source=fixed", "data.size=4"], "needs data.source=fresh"),
        ([TINY, "data.source=fixed", "data.size=40"], "has only 37 training problems"),
        (["evaluate.oversize=0.5"], "greater than or equal to 1"),
        (["data.on_exhausted=never"], "restart"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_written(tmp_path, overrides, says):
    with pytest.raises(ConfigError, match=says):
        run(tmp_path / "a", *overrides)
    assert not (tmp_path / "a").exists()


@pytest.mark.alone
def test_drawing_costs_less_than_a_fiftieth_of_a_step(tmp_path):
    """Even of the mock model's steps, which are far shorter than any real one's."""
    run(
        tmp_path / "a",
        "steps=12",
        "data.groups_per_step=16",
        "generate.group_size=8",
        "generate.max_tokens=48",
    )
    lines = (tmp_path / "a" / "results" / "metrics.jsonl").read_text().splitlines()
    timings = [json.loads(line)["timing"] for line in lines]
    phases = ("draw", "generate", "grade", "learn", "record")
    shares = sorted(t["draw"] / sum(t[p] for p in phases) for t in timings)
    assert shares[len(shares) // 2] < 0.02
