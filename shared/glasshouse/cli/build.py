"""`glasshouse pocket`, `tasks` and `config`: the parts that a run is built from."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glasshouse.cli.parser import add_actions, add_command, add_imports
from glasshouse.extras import install_command
from glasshouse.text import terminal_safe

if TYPE_CHECKING:
    from rich.console import Console

    from glasshouse.tasks import Task


def add_commands(commands: Any) -> None:
    parser = add_command(
        commands,
        "config",
        _config,
        "explain every configuration key, with type and default",
        examples=["glasshouse config", "glasshouse config learn"],
    )
    parser.add_argument(
        "section", nargs="?", default="", help="only keys with this prefix, e.g. learn"
    )

    parser = add_command(
        commands,
        "tasks",
        _tasks,
        "list the tasks with an example each, or show one in full",
        "Without a name: every task with its size and options. With a name: also the messages of both "
        "styles, the prompt that a model gets of them, word for word, and a demonstration of each mode.",
        [
            "glasshouse tasks",
            "glasshouse tasks arithmetic",
            "glasshouse tasks arithmetic --model models/my-model",
            "glasshouse tasks --validate 100",
        ],
    )
    parser.add_argument("name", nargs="?", metavar="TASK", help="show this task in full")
    add_imports(parser)
    parser.add_argument(
        "--model",
        default="pocket",
        metavar="NAME",
        help="show the prompts that this model gets (default: pocket)",
    )
    parser.add_argument(
        "--validate",
        type=int,
        metavar="N",
        default=0,
        help="check the grading of each task on N problems",
    )

    parser = add_command(
        commands,
        "pocket",
        None,
        "build or describe the embedded model",
        examples=["glasshouse pocket card", "glasshouse pocket build --out build/pocket"],
    )
    actions = add_actions(parser)
    build = add_command(
        actions,
        "build",
        _build_pocket,
        "train an embedded model from its recipe",
        "Takes under an hour on one core.",
        ["glasshouse pocket build --out build/pocket"],
    )
    build.add_argument(
        "--recipe",
        default="pocket",
        help="pocket (default), mock, or an organism's base model such as leaked-hint-0",
    )
    build.add_argument("--out", required=True, help="the folder to write")
    build.add_argument("--steps", type=int, help="fewer steps than in the recipe, for a trial")
    add_command(
        actions,
        "card",
        _print_card,
        "print the model card of the embedded model",
        examples=["glasshouse pocket card"],
    )


def _config(args: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.padding import Padding
    from rich.text import Text

    from glasshouse import config
    from glasshouse.errors import ConfigError, did_you_mean

    described = config.describe_keys()
    rows = [row for row in described if row[0].startswith(args.section)]
    if not rows:
        sections = {row[0].split(".")[0] for row in described}
        raise ConfigError(
            f'No configuration key begins with "{args.section}".{did_you_mean(args.section, sections)}'
        )
    console = Console(highlight=False, emoji=False)
    for key, kind, default, about in rows:
        console.print(f"[bold]{key}[/] [dim]{escape(kind)}, default[/] {escape(default)}")
        console.print(Padding(Text(about), (0, 0, 0, 4)))


def _tasks(args: argparse.Namespace) -> None:
    from rich.console import Console

    from glasshouse import tasks
    from glasshouse.config import import_modules
    from glasshouse.rewards.self_check import check_task

    import_modules(args.imports)
    console = Console(highlight=False, emoji=False, markup=False)
    for name in [args.name] if args.name else [*tasks.TASKS, *tasks.ORGANISMS]:
        task = tasks.make_example_task(name)
        _print_task(console, task)
        if args.name:
            _print_prompts(console, task, args.model)
        if args.validate:
            console.print(f"    {check_task(task, args.validate)}")
    if not args.name:
        console.print(
            f"gym.<name>: any procedural task of reasoning-gym ({install_command('gym')})",
            soft_wrap=True,
        )


def _print_task(console: Console, task: Task[Any]) -> None:
    """Print what the task is, its number of problems, an example and its options."""
    from glasshouse import randomness

    problem = task.draw(randomness.stream("example", task.name))
    size = task.size()
    console.print(
        f"{task.name}: {task.description}; {f'{size:,}' if size else 'uncounted'} problems"
    )
    console.print(f"    {problem.question}  →  {problem.answer}")
    for option, field in task.Options.model_fields.items():
        default = (
            "required"
            if field.is_required()
            else f"= {field.get_default(call_default_factory=True)}"
        )
        console.print(f"    {option} {default}: {' '.join((field.description or '').split())}")


def _print_prompts(console: Console, task: Task[Any], model: str) -> None:
    """Print the chat of each style, the model's prompt for it, and a demonstration of each mode."""
    from glasshouse import randomness
    from glasshouse.models.chat_template import drops_system_messages, render_prompt
    from glasshouse.models.policy import load_tokenizer
    from glasshouse.tasks.base import MODE_STREAM_KEYS
    from glasshouse.types import Style

    problem = task.draw(randomness.stream("example", task.name))
    tokenizer = load_tokenizer(model)
    for style in Style:
        messages = task.messages(problem, style)
        console.rule(f"task.style={style.value}: messages of the task", align="left")
        for message in messages:
            console.print(f"{message['role']}: {message['content']}", soft_wrap=True)
        console.rule(
            f"task.style={style.value}: prompt of the model {terminal_safe(model)}", align="left"
        )
        if drops_system_messages(tokenizer):
            console.print("(its chat template drops the system message)")
        console.print(terminal_safe(render_prompt(tokenizer, messages, model)), soft_wrap=True)
    for name, mode in task.modes.items():
        console.rule(f"{name}: {mode.description}", align="left")
        stream_key = MODE_STREAM_KEYS.get(name, name)
        rng = randomness.stream("shown", task.name, stream_key)
        console.print(task.demonstrate(problem, name, rng))


def _build_pocket(args: argparse.Namespace) -> None:
    from glasshouse.pocket.build_command import build_pocket_model

    build_pocket_model(args.recipe, Path(args.out), args.steps)


def _print_card(args: argparse.Namespace) -> None:
    from glasshouse.models.policy import POCKET_FOLDER

    print((POCKET_FOLDER / "README.md").read_text(), end="")
