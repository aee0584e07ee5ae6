"""`glasshouse track`: a run directory mirrored to a tracker after the fact."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "track",
        help="mirror a run to wandb, trackio, tensorboard or mlflow",
        description="Bring a tracker up to what the run directory holds: a run that was trained without "
        "it, or whose tracker failed. What it has already is not sent again. While a run trains, "
        "trackers=[NAME] does it live.",
    )
    parser.add_argument("directory", metavar="RUN", help="the run's directory")
    parser.add_argument(
        "--to",
        action="append",
        required=True,
        metavar="NAME",
        help="mlflow, tensorboard, trackio or wandb; may be repeated",
    )
    parser.set_defaults(run=_track)


def _track(args: argparse.Namespace) -> None:
    from glasshouse import track
    from glasshouse.errors import TrackError
    from glasshouse.store.run_directory import config_of, locked, summary_of

    path, failed = Path(args.directory), list[str]()
    config = config_of(path)
    track.check(args.to)
    with locked(path):
        mirrors = track.start(args.to, path, config, lambda kind, text, **_: failed.append(text))
        looks, summary = mirrors.looks, summary_of(path) or {}
        ending: track.Ending = "finished" if "after" in summary else "interrupted"
        mirrors.end(summary, ending, patience=None)
    if failed:
        raise TrackError("\n".join(failed))
    for name, look in looks.items():
        print(f"{path} is mirrored to {name}: {look}")
