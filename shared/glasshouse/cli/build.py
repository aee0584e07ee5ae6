"""`glasshouse pocket`, `tasks` and `config`: the parts that a run is built from."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glasshouse.cli.parser import add_actions, add_command, add_imports
from glasshouse.extras import install_command
from glasshouse.terminal import terminal_safe

if TYPE_CHECKING:
    from rich.console import Console

    from glasshouse.tasks.base import Task


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
        "styles, the exact prompt that a model receives, and a demonstration of each mode.",
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

    from glasshouse.config.rendering import describe_keys
    from glasshouse.errors import ConfigError, did_you_mean

    described = describe_keys()
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


def _tasks(args: argparse.Namespace) -> int:
    from rich.markup import escape

    from glasshouse.cli import parts
    from glasshouse.console import make_console

    parts.import_modules(args.imports)
    console, passed = make_console(), True
    for name in [args.name] if args.name else parts.list_tasks():
        task = parts.make_example_task(name)
        _print_task(console, task)
        if args.name:
            for heading, text in parts.render_example_prompts(task, args.model):
                console.rule(escape(terminal_safe(heading)), align="left")
                console.print(terminal_safe(text), soft_wrap=True, markup=False)
        if args.validate:
            report = parts.check_task(task, args.validate)
            passed &= report.passed
            console.print(f"    {report}", markup=False)
    if not args.name:
        console.print(
            f"gym.<name>: any procedural task of reasoning-gym ({install_command('gym')})",
            soft_wrap=True,
            markup=False,
        )
    return 0 if passed else 1


def _print_task(console: Console, task: Task[Any]) -> None:
    """Print what the task is, its number of problems, an example and its options."""
    from glasshouse.cli.parts import draw_example

    problem, size = draw_example(task), task.size()
    counted = f"{size:,}" if size else "uncounted"
    lines = [f"{task.name}: {task.description}; {counted} problems"]
    lines.append(f"    {problem.question}  →  {problem.gold_answer}")
    for option, field in task.Options.model_fields.items():
        default = (
            "required"
            if field.is_required()
            else f"= {field.get_default(call_default_factory=True)}"
        )
        lines.append(f"    {option} {default}: {' '.join((field.description or '').split())}")
    for line in lines:
        console.print(line, markup=False)


def _build_pocket(args: argparse.Namespace) -> None:
    from glasshouse.cli.parts import build_pocket_model

    build_pocket_model(args.recipe, Path(args.out), args.steps)


def _print_card(args: argparse.Namespace) -> None:
    from glasshouse.cli.parts import read_pocket_card

    print(read_pocket_card(), end="")
