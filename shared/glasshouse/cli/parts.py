"""The parts of a run by name: tasks, reward terms, penalties and monitors, built in or your own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glasshouse import randomness
from glasshouse.config.imports import import_modules
from glasshouse.monitors import factory
from glasshouse.monitors.factory import load_monitor
from glasshouse.rollout.self_check import SelfCheckReport, check_task
from glasshouse.rollout.terms import Reward, reward
from glasshouse.tasks.base import MODE_STREAM_KEYS, Task
from glasshouse.tasks.catalogue import list_tasks, make_example_task, make_task
from glasshouse.types import Problem, Style

if TYPE_CHECKING:
    from glasshouse.monitors.base import Monitor
    from glasshouse.rollout.penalties import Penalty

__all__ = [
    "SelfCheckReport",
    "Task",
    "build_pocket_model",
    "check_task",
    "draw_example",
    "import_modules",
    "list_tasks",
    "make_example_task",
    "make_monitor",
    "make_penalty",
    "make_reward",
    "make_task",
    "read_pocket_card",
    "render_example_prompts",
]


def draw_example(task: Task[Any]) -> Problem:
    """The problem with which `glasshouse tasks` shows a task."""
    return task.draw(randomness.stream("example", task.name))


def render_example_prompts(task: Task[Any], model: str) -> Iterator[tuple[str, str]]:
    """Headings and texts: the messages of each style, the model's prompt for them, and a demonstration
    of each mode."""
    from glasshouse.models.chat_template import drops_system_messages, render_prompt
    from glasshouse.models.policy import load_tokenizer

    problem, tokenizer = draw_example(task), load_tokenizer(model)
    for style in Style:
        messages = task.messages(problem, style)
        chat = "\n".join(f"{message['role']}: {message['content']}" for message in messages)
        yield f"task.style={style.value}: messages of the task", chat
        note = "(its chat template drops the system message)\n" * drops_system_messages(tokenizer)
        prompt = note + render_prompt(tokenizer, messages, model)
        yield f"task.style={style.value}: prompt of the model {model}", prompt
    for name, mode in task.modes.items():
        stream_key = MODE_STREAM_KEYS.get(name, name)
        rng = randomness.stream("shown", task.name, stream_key)
        yield f"{name}: {mode.description}", task.demonstrate(problem, name, rng)


def build_pocket_model(recipe: str, out: Path, steps: int | None = None) -> None:
    """Train an embedded model from its recipe."""
    from glasshouse.training.pocket_command import build_pocket_model as build

    build(recipe, out, steps)


def read_pocket_card() -> str:
    """The model card of the embedded model."""
    from glasshouse.models.policy import POCKET_FOLDER

    return (POCKET_FOLDER / "README.md").read_text()


def make_reward(name: str) -> Reward:
    """A reward term: a function of `RewardInputs`.

    Example: `make_reward("closeness")`
    """
    return reward.get(name)


def make_penalty(name: str, task: Task[Any] | str, **options: Any) -> Penalty:
    """A penalty, as `reward.penalties` would build it.

    Example: `make_penalty("length", "sum_digits", budget=20)`
    """
    from glasshouse.rollout.penalties import Penalties

    built = make_task(task) if isinstance(task, str) else task
    return Penalties.from_config({name: options}, built).penalties[0]


def make_monitor(name: str, settings: Mapping[str, Any] | str | Path | None = None) -> Monitor:
    """A monitor from its settings, as in `evaluate.monitors`, or a fitted one from its folder.

    Example: `factory.make_monitor("hint", {"kind": "rule", "keywords": ["hint", "key"]})`
    """
    if isinstance(settings, str | Path):
        return load_monitor(Path(settings))
    return factory.make_monitor(name, settings or {})
