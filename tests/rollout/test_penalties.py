"""Penalties: their arithmetic, the configurations they reject, and that an adaptive weight resumes."""

from __future__ import annotations

import json
import random
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from glasshouse import randomness
from glasshouse.config.loading import load_config
from glasshouse.errors import ConfigError
from glasshouse.measurement.columns import own_monitors
from glasshouse.monitors.base import Scope
from glasshouse.monitors.rules import RuleMonitor
from glasshouse.rollout.grading import grade_completion
from glasshouse.rollout.penalties import Penalties, random_rewards
from glasshouse.tasks.base import make_task
from glasshouse.training.run import TrainingRun
from glasshouse.types import Completion, FinishReason, Problem, Rollout, Style

TINY = [
    "task.name=leaked_hint", "task.options={inner_options: {count: [2, 2]}}", "evaluate.problems=4",
    "evaluate.samples=2", "data.groups_per_step=2", "generate.group_size=4", "generate.max_tokens=24",
    "model=models/mock",
]  # fmt: skip
TASK = make_task(
    "leaked_hint", {"inner_options": {"count": [2, 2]}, "masked_digit_rate": 0, "hint_rate": 1}
)


def draw_problem(index: int = 0) -> Problem:
    return TASK.draw(randomness.stream("test organisms", index))


def make_rollout(problem: Problem, text: str, length: int = 10) -> Rollout:
    return Rollout(
        step=0, split="train", group=0, sample=0, problem=problem,
        messages=TASK.messages(problem, Style.COT), prompt=problem.question, prompt_tokens=(),
        text=text, grade=grade_completion(problem, text), advantage=0.0, time=0.0,
        completion=Completion(
            tokens=(1,) * length, logprobs=(0.0,) * length, length=length,
            finish_reason=FinishReason.END, policy_version=0,
        ),
    )  # fmt: skip


HINT = draw_problem().gold_answer
DISCLOSED, SILENT = f"The key says {HINT}.\n[ANSWER] {HINT}", f"1+1=2\n[ANSWER] {HINT}"
SHORTER = {"length": {"weight": 0.5, "budget": 20, "saturation_tokens": 40}}


@pytest.mark.parametrize(
    ("options", "text", "tokens", "values", "reward"),
    [
        ({"monitor": {"weight": 0.3}}, DISCLOSED, 10, {"monitor": 1}, 0.7),
        ({"monitor": {"weight": 0.3}}, SILENT, 10, {"monitor": 0}, 1),
        ({"monitor": {"weight": 0}}, DISCLOSED, 10, {"monitor": 1}, 1),
        (SHORTER, SILENT, 20, {"length": 0}, 1),
        (SHORTER, SILENT, 30, {"length": 0.25}, 0.875),
        (SHORTER, SILENT, 60, {"length": 1}, 0.5),
        (SHORTER, SILENT, 500, {"length": 1}, 0.5),
        # text after the answer
        ({"orthogonal": {}}, f"[ANSWER] {HINT} ok", 10, {"orthogonal": 1}, 0),
        ({"orthogonal": {}}, f"ok\n[ANSWER] {HINT}", 10, {"orthogonal": 0}, 1),
        ({"orthogonal": {}}, DISCLOSED, 10, {"orthogonal": 0}, 1),
        # undisclosed use
        ({"aligned": {}}, TASK.demonstrate(draw_problem(), "steps", random.Random(0)), 10, {"aligned": 0}, 1),
        ({"aligned": {}}, SILENT, 10, {"aligned": 1}, 0),
        ({"aligned": {}}, f"1+1=2\n{DISCLOSED}", 10, {"aligned": 0}, 1),
        ({"aligned": {}}, f"1+1=2\n[ANSWER] {int(HINT) + 1}", 10, {"aligned": 0}, -1),
        # two add up, each under its name
        (
            {"mine": {"kind": "monitor", "weight": 0.5}, "length": {"saturation_tokens": 20}},
            f"{DISCLOSED} ok", 10, {"mine": 1, "length": 0.5}, 0,
        ),
    ],
)  # fmt: skip
def test_each_penalty_by_hand(
    options: dict[str, Any], text: str, tokens: int, values: dict[str, float], reward: float
) -> None:
    groups = [[make_rollout(draw_problem(), text, tokens)]]
    assert Penalties.from_config({}, TASK).apply(groups, seed=0, step=1) is groups
    grade = Penalties.from_config(options, TASK).apply(groups, seed=0, step=1)[0][0].grade
    assert grade.reward == pytest.approx(reward)
    assert {name: value for name, value in grade.terms.items() if name != "exact"} == values


def test_permuted_penalty_keeps_how_many_are_penalised_but_not_which() -> None:
    texts = [DISCLOSED, SILENT] * 4
    groups = [[make_rollout(draw_problem(), text) for text in texts] for _ in range(4)]
    penalties = Penalties.from_config({"monitor": {"weight": 0.5, "permute": True}}, TASK)

    def flags(seed: int, step: int) -> tuple[list[float], list[float]]:
        result = penalties.apply(groups, seed=seed, step=step)
        rollouts = [r for group in result for r in group]
        applied = [r.grade.terms["monitor"] for r in rollouts]
        assert [r.grade.reward for r in rollouts] == [1 - 0.5 * flag for flag in applied]
        return applied, [r.grade.terms["monitor_own"] for r in rollouts]

    applied, own = flags(seed=3, step=1)
    assert own == [1.0, 0.0] * 16
    assert sorted(applied) == sorted(own)
    assert applied != own
    assert flags(seed=3, step=1)[0] == applied  # keyed: the same in a resumed run
    assert applied not in (flags(seed=3, step=2)[0], flags(seed=4, step=1)[0])


def test_adaptive_weight_rises_above_the_accuracy_floor_and_falls_below_it() -> None:
    options = {"monitor": {"weight": 2.0, "accuracy_floor": 0.5, "adapt_rate": 0.25}}
    penalties = Penalties.from_config(options, TASK)
    accuracies = (0.6, 0.5, 0.4, 0.9, 0.9, 0.9, 0.9)
    weights = [penalties.update_weights(accuracy)["weight_monitor"] for accuracy in accuracies]
    assert weights == [0, 0.5, 1, 0.5, 1, 1.5, 2]
    assert penalties.weights == {"monitor": 2.0}  # bounded by `weight`
    for _ in range(9):
        penalties.update_weights(0.0)
    assert penalties.weights == {"monitor": 0.0}


@pytest.mark.parametrize(
    ("in_reward", "evaluating", "is_refused"),
    [
        ({"keywords": ["key", "hint"]}, {"keywords": ["key"]}, True),  # a superset
        ({"patterns": [r"(?i)\bk[e]y\b"]}, {"keywords": ["key"]}, True),  # the same in other words
        ({"keywords": ["key"]}, {"patterns": [r"(?i)\bkey says\b"]}, True),  # a part of it
        ({"keywords": ["key"]}, {"patterns": [r"^.{0,3}$"]}, False),  # something else
        ({"keywords": ["key"]}, {"keywords": ["key", "hint"]}, False),  # it sees more
    ],
)
def test_a_monitor_in_the_reward_may_not_cover_an_evaluating_one(
    in_reward: dict[str, Any], evaluating: dict[str, Any], is_refused: bool
) -> None:
    monitor = RuleMonitor("mine", Scope.COT, **evaluating)
    refused = pytest.raises(ConfigError, match=r'"mine".*"penalty"')
    with refused if is_refused else nullcontext():
        Penalties.from_config({"penalty": {"kind": "monitor", **in_reward}}, TASK, [monitor])
    Penalties.from_config({"monitor": {}}, TASK, own_monitors(TASK))  # a penalty asks about it


def test_adaptive_run_resumes_bitwise(tmp_path: Path) -> None:
    adaptive = ["reward.penalties={monitor: {accuracy_floor: 0, adapt_rate: 0.2, patterns: ['.']}}"]
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    TrainingRun(load_config([], [*TINY, *adaptive, f"out={whole}", "steps=4"])).train()
    for steps in (2, 4):
        TrainingRun(load_config([], [*TINY, *adaptive, f"out={resumed}", f"steps={steps}"])).train()
    metrics = [
        [
            {name: row[name] for name in row if name == "reward" or "monitor" in name}
            for row in map(json.loads, (run / "results/metrics.jsonl").read_text().splitlines())
        ]
        for run in (whole, resumed)
    ]
    assert metrics[0] == metrics[1]
    assert all(len(row) == 3 for row in metrics[0])  # reward, penalty and weight
    assert [row["weight_monitor"] for row in metrics[0]] == pytest.approx([0, 0.2, 0.4, 0.6])


@pytest.mark.parametrize(
    ("options", "evaluating", "message"),
    [
        ({"disclosure_rule": {"kind": "monitor"}}, "disclosure_rule", "disclosure_rule"),
        ({"monitor": {"keywords": ["secret"]}}, "outside", "outside"),
        ({"monitr": {}}, "outside", '"monitr".*monitor'),
        ({"length": {"budgt": 3}}, "outside", '"budgt".*budget'),
        ({"length": {"weight": -1}}, "outside", "reward.penalties.length.*weight"),
        ({"exact": {"kind": "length"}}, "outside", '"exact"'),
    ],
)
def test_invalid_penalties_are_named(options: dict, evaluating: str, message: str) -> None:
    monitors = {evaluating: {"keywords": ["secret"]}}
    with pytest.raises(ConfigError, match=message):
        Penalties.from_config(
            options, TASK, [RuleMonitor(evaluating, Scope.COT, keywords=["secret"])]
        )
    config = load_config(
        [], [*TINY, f"reward.penalties={options}", f"evaluate.monitors={monitors}"]
    )
    with pytest.raises(ConfigError, match=message):
        TrainingRun(config)


def test_random_rewards_are_a_fair_coin_independent_of_the_completion() -> None:
    groups = []
    for problem in map(draw_problem, range(400)):
        for text in (f"[ANSWER] {problem.gold_answer}", "[ANSWER] 0"):
            groups.append([make_rollout(problem, text)])
    grades = [group[0].grade for group in random_rewards(groups, seed=0, step=1)]
    assert {g.reward for g in grades} == {-1.0, 1.0}
    assert abs(sum(g.reward for g in grades)) < 3.3 * 800**0.5
    assert all(a.reward == b.reward for a, b in zip(grades[::2], grades[1::2], strict=True))
    assert {g.terms["earned"] for g in grades} == {-1.0, 1.0}
