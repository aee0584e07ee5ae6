"""`glasshouse track`: copy a finished or interrupted run to an experiment tracker."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from glasshouse.cli.parser import add_command, add_run_directory
from glasshouse.text import terminal_safe


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
    from glasshouse.store import verify
    from glasshouse.store.run_directory import acquire_lock, load_summary

    path, failures = Path(args.run_directory), list[str]()
    config, damage = verify.load_verified_config(path)
    for item in [*damage, *verify.verify_derived_files(path, {})]:
        print(f"damage: {item}", file=sys.stderr)
    track.validate_trackers(args.to)
    with acquire_lock(path):
        trackers = track.start_trackers(
            args.to, path, config, lambda kind, text, **_: failures.append(text)
        )
        urls, summary = trackers.urls, load_summary(path) or {}
        outcome: track.RunOutcome = "finished" if "after" in summary else "interrupted"
        trackers.finish(summary, outcome, timeout=None)
    if failures:
        raise TrackError("\n".join(failures))
    for name, url in urls.items():
        print(terminal_safe(f"{path} is uploaded to {name}: {url}"))
