"""`glasshouse track`: copy a finished or interrupted run to an experiment tracker."""

from __future__ import annotations

import argparse
from typing import Any

from glasshouse.cli.parser import add_command, add_run_directory, print_damage
from glasshouse.terminal import terminal_safe


def add_commands(commands: Any) -> None:
    parser = add_command(
        commands,
        "track",
        _track,
        "upload a run to wandb, trackio, tensorboard or mlflow",
        "Sends what the tracker does not have yet: a run that was trained without it, or whose tracker "
        "failed. To log live during training, set trackers=[NAME].",
        ["glasshouse track runs/try --to tensorboard"],
    )
    add_run_directory(parser)
    parser.add_argument(
        "--to",
        action="append",
        required=True,
        metavar="NAME",
        help="mlflow, tensorboard, trackio or wandb; repeatable",
    )


def _track(args: argparse.Namespace) -> None:
    from glasshouse.track.upload import upload_run

    run = args.run_directory
    for name, url in upload_run(run, args.to, warn=print_damage).items():
        print(terminal_safe(f"{run} is uploaded to {name}: {url}"))
