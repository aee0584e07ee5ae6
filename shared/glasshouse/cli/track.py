"""`glasshouse track`: copy a finished or interrupted run to an experiment tracker."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from glasshouse.cli.parser import add_command, add_run_directory


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
    from glasshouse import track
    from glasshouse.errors import TrackError
    from glasshouse.store.run_directory import config_of, locked, summary_of

    path, failures = Path(args.run_directory), list[str]()
    config = config_of(path)
    track.check(args.to)
    with locked(path):
        mirrors = track.start(args.to, path, config, lambda kind, text, **_: failures.append(text))
        looks, summary = mirrors.looks, summary_of(path) or {}
        ending: track.Ending = "finished" if "after" in summary else "interrupted"
        mirrors.end(summary, ending, patience=None)
    if failures:
        raise TrackError("\n".join(failures))
    for name, look in looks.items():
        print(f"{path} is uploaded to {name}: {look}")
