"""Which steps are saved, printed, sent to trackers and warned about: rules on a step's numbers."""

from __future__ import annotations

import io
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from glasshouse.config.loading import load_config
from glasshouse.config.schema import Config
from glasshouse.learn.losses import algorithm, get_algorithm
from glasshouse.measurement.reading import Reading
from glasshouse.models.chat_template import DEFAULT_CHAT
from glasshouse.training.checkpointing import CheckpointManager, Progress
from glasshouse.training.display import TerminalDisplay
from glasshouse.training.metrics import Diagnostics


def warnings_of(name: str, rewards: list[list[float]], equal_texts: float = 0.0) -> list[str]:
    """The warnings after 10 steps that all have these rewards, a row per group."""
    config = load_config([], [f"learn.algorithm={name}"])
    advantages = get_algorithm(name).advantage(torch.tensor(rewards))
    row = {
        "frac_zero_std": sum(len(set(group)) == 1 for group in rewards) / len(rewards),
        "frac_zero_advantage": float((advantages == 0).float().mean()),
        "frac_all_correct": 0.0, "frac_all_wrong": 0.0, "truncated": 0.0, "format": 1.0,
        "unread": 0.0, "frac_equal_texts": equal_texts,
    }  # fmt: skip
    diagnostics = Diagnostics(config)
    return [text for _ in range(10) for text in diagnostics.check(row).values()]


@pytest.mark.parametrize("name", list(algorithm))
def test_a_step_without_any_advantage_warns(name: str) -> None:
    assert len(warnings_of(name, [[0.0, 0.0], [0.0, 0.0]])) == 1
    assert warnings_of(name, [[0.0, 0.0], [0.0, 1.0]]) == []
    assert warnings_of("reinforce", [[-1.0], [-1.0]]) == []  # it has no baseline


def test_equal_completions_are_named_as_the_cause() -> None:
    """As with `generate.top_k=1`."""
    [text] = warnings_of("grpo", [[0.0, 0.0], [0.0, 0.0]], equal_texts=1.0)
    assert "generate.top_k" in text


def evaluated(unread: int = 0, cut: int = 0, **organism: Any) -> dict[str, Any]:
    reading = Reading(answers=300, unread=unread, ended=300, cut=cut)
    return {"reading": asdict(reading)} | ({"organism": organism} if organism else {})


@pytest.mark.parametrize(
    ("results", "named"),
    [
        (evaluated(unread=60, cut=100), ""),
        (evaluated(unread=61), "could not be read"),
        (evaluated(unread=200, cut=101), "generate.max_tokens"),
        (evaluated(rollouts=100, behaviour=0.2, reliance=0.005), "planted behaviour"),
        (evaluated(rollouts=160, behaviour=0.0375, reliance=0.025), "which chance can give"),
        (evaluated(rollouts=100, behaviour=0.005), "planted behaviour"),
        (evaluated(rollouts=99, behaviour=0.0, reliance=0.0), ""),
        (evaluated(rollouts=400, behaviour=0.1, reliance=0.08), ""),
    ],
)
def test_the_first_evaluation_warns_once_and_says_what_to_change(
    results: dict[str, Any], named: str
) -> None:
    diagnostics = Diagnostics(load_config([], ["task.name=leaked_hint"]))
    texts = diagnostics.check_evaluation(results, is_first=True).values()
    assert len(texts) == bool(named)
    assert all(named in text for text in texts)
    assert diagnostics.check_evaluation(results, is_first=True) == {}
    if "organism" in results:  # a behaviour may have been trained away
        later = Diagnostics(load_config()).check_evaluation(results, is_first=False)
        assert later == {}


def saved_steps(rewards: list[float], parameters: int, *overrides: str) -> list[int]:
    config = load_config([], ["checkpoints.every=0", *overrides])
    model = SimpleNamespace(parameters=lambda: [SimpleNamespace(numel=lambda: parameters)])
    policy: Any = SimpleNamespace(model=model)
    directory: Any = None
    manager = CheckpointManager(config, directory, policy, {}, print)
    progress, saved = Progress(), []
    for progress.step, reward in enumerate(rewards, 1):
        if manager.reasons_to_save(progress, reward, False):
            saved.append(progress.step)
    return saved


def test_rewards_above_the_threshold_and_new_bests_are_saved_but_large_models_less_often() -> None:
    rewards = [0.1, 0.4, 0.5, 0.3, 0.31, 0.3, *[0.4] * 8]
    above = [2, 3, 5, *range(7, 15)]
    assert saved_steps(rewards, 1000, "checkpoints.save_best=false") == above
    assert saved_steps(rewards, 1000, "checkpoints.save_above_reward=null") == [1, 2, 3]
    assert saved_steps(rewards, 10_000_000) == [1, 11]
    assert saved_steps(rewards, 10_000_000, "checkpoints.reward_interval=4") == [1, 5, 9, 13]


def printed_steps(*overrides: str, is_terminal: bool = False) -> list[int]:
    config = load_config([], ["steps=10", *overrides])
    display = TerminalDisplay(Console(file=io.StringIO(), force_terminal=is_terminal, width=200))
    display.progress.disable = True
    model: Any = SimpleNamespace(num_parameters=lambda: 1)
    task: Any = SimpleNamespace(size=lambda: 1, describe=lambda: "")
    policy: Any = SimpleNamespace(
        model=model,
        tokenizer=SimpleNamespace(chat_template="", bos_token=None),
        chat=DEFAULT_CHAT,
        card={},
    )
    display.start(config, config.out, policy, task)
    steps, output = [], display.console.file
    assert isinstance(output, io.StringIO)
    for step in range(1, 11):
        before = len(output.getvalue())
        display.step({"step": step, "reward": 0.0, "accuracy": 0.0, "length": 1.0}, [])
        if len(output.getvalue()) > before:
            steps.append(step)
    return steps


def test_log_every_decides_what_is_printed_and_what_trackers_get() -> None:
    assert printed_steps() == [*range(1, 11)]
    assert printed_steps("log_every=4") == [4, 8, 10]
    assert printed_steps("log_every=0") == printed_steps(is_terminal=True) == []
    config = Config(steps=10, log_every=4)
    assert [step for step in range(1, 11) if config.logs_step(step)] == [4, 8, 10]
    assert all(Config(steps=10).logs_step(step) for step in range(1, 11))
