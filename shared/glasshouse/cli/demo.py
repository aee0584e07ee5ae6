"""`glasshouse demo`: the project's question, answered by two short runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from glasshouse.cli.parser import add_command


def add_commands(commands: Any) -> None:
    parser = add_command(
        commands,
        "demo",
        _demo,
        "compare the outcome reward with a monitor in the reward, in a few minutes",
        "Trains the organism leaked_hint twice at the same time, in two processes: with the outcome reward, "
        "and with a monitor in the reward. Ends with a picture, the rates and their intervals, and one problem "
        "before and after. If it is interrupted, the same command resumes; if it is finished, the same command "
        "only shows the result again.",
        ["glasshouse demo", "glasshouse demo --out runs/short steps=20"],
    )
    parser.add_argument("--out", default="runs/demo", help="output folder (default runs/demo)")
    parser.add_overrides("override the configuration of both runs, e.g. steps=20")


def _demo(args: argparse.Namespace) -> int:
    from rich.console import Console

    from glasshouse.study.demo import run_demo
    from glasshouse.terminal import shell_command

    console = Console(highlight=False, emoji=False)
    try:
        run_demo(Path(args.out), args.overrides, console)
    except KeyboardInterrupt:
        command = shell_command(["glasshouse", "demo", "--out", args.out, *args.overrides])
        console.print(
            f"Interrupted; both runs are saved. Resume with: {command}",
            markup=False,
            soft_wrap=True,
        )
        return 130
    return 0
