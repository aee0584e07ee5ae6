"""`glasshouse tasks`: what can be asked, and exactly how it is asked."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from glasshouse.tasks import Task


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "tasks",
        help="list the tasks with an example each, or show one whole",
        description="Without a name: every task, its size, its options. With one: the prompts that are "
        "sent, with steps and without, and how each mode of answering looks.",
    )
    parser.add_argument("name", nargs="?", metavar="TASK", help="show the prompts of this one")
    parser.add_argument(
        "--validate",
        type=int,
        metavar="N",
        default=0,
        help="prove each task's grading on N problems",
    )
    parser.set_defaults(run=_tasks)


def _tasks(args: argparse.Namespace) -> None:
    from rich.console import Console

    from glasshouse import tasks
    from glasshouse.rewards.self_check import validate

    console = Console(highlight=False, markup=False)
    for name in [args.name] if args.name else [*tasks.TASKS, *tasks.ORGANISMS]:
        # an organism's honest steps are right only where every digit can be read
        task = tasks.make(name, {"smudged": 0, "keyed": 1} if name == "leaked_hint" else {})
        _describe(console, task)
        if args.name:
            _prompts(console, task)
        if args.validate:
            console.print(f"    {validate(task, args.validate)}")
    if not args.name:
        console.print(
            "gym.<name>: any procedural task of reasoning-gym (pip install 'glasshouse[gym]')"
        )


def _describe(console: Console, task: Task[Any]) -> None:
    """A task in a few lines: what it is, how large, an example, its options."""
    from glasshouse import randomness

    problem = task.draw(randomness.stream("example", task.name))
    size = task.size()
    console.print(f"{task.name}: {task.about}; {f'{size:,}' if size else 'uncounted'} problems")
    console.print(f"    {problem.question}  →  {problem.answer}")
    for option, field in task.Options.model_fields.items():
        console.print(
            f"    {option} = {field.default}: {' '.join((field.description or '').split())}"
        )


def _prompts(console: Console, task: Task[Any]) -> None:
    """The chats that are sent, word for word, and a demonstration in every mode."""
    from glasshouse import randomness
    from glasshouse.types import Style

    problem = task.draw(randomness.stream("example", task.name))
    for style in Style:
        console.rule(f"task.style={style.value}", align="left")
        for message in task.messages(problem, style):
            console.print(f"{message['role']}: {message['content']}")
    for mode, meant in task.modes.items():
        console.rule(f"{mode}: {meant.about}", align="left")
        console.print(task.demonstrate(problem, mode, randomness.stream("shown", task.name, mode)))
