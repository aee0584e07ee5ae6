"""`glasshouse resume` and `glasshouse checkpoints`: what lasts of a run, and going on from it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    resume = commands.add_parser(
        "resume",
        help="go on with a run that was interrupted",
        description="Go on from the newest valid checkpoint, with the record cut back to it: weights, "
        "metrics and rollouts come out bit for bit as without the interruption. Running the same train "
        "command again does the same.",
        epilog="Exit codes: 0 came to its end; 2 a mistake to mend; 130 interrupted, every whole step is "
        "saved; 131 stopped at once, the last checkpoint stands.",
    )
    resume.add_argument("directory", metavar="RUN", help="the run's directory")
    resume.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="steps=… to train longer; keys that change the numbers need --fork",
    )
    resume.add_argument(
        "--fork", metavar="NEW", help="branch off into a new run, where any key may be changed"
    )
    resume.add_argument("--verbose", action="store_true", help="show a completion of every step")
    resume.add_argument("--quiet", action="store_true", help="print nothing but errors")
    resume.set_defaults(run=_resume)

    listed = commands.add_parser(
        "checkpoints",
        help="list a run's checkpoints: step, reward, why saved, size, valid or not",
        description="Every byte of every checkpoint is read and compared with its checksum.",
    )
    listed.add_argument("directory", metavar="RUN", help="the run's directory")
    listed.add_argument("--json", action="store_true", help="print JSON for programs")
    listed.set_defaults(run=_checkpoints)


def _resume(args: argparse.Namespace) -> int:
    from glasshouse import config
    from glasshouse.cli.app import finish
    from glasshouse.store.run_directory import CONFIG, config_of
    from glasshouse.train import resume

    path = Path(args.directory)
    config_of(path)  # a sentence if it is no run
    place = Path(args.fork or path)
    resolved = config.load([path / CONFIG], [*args.overrides, f"out={place}"])
    if args.fork:
        resume.fork(path, place, resolved)
    return finish(resolved, args)


def _checkpoints(args: argparse.Namespace) -> int:
    import json

    from rich.console import Console
    from rich.table import Table

    from glasshouse.store import checkpoints
    from glasshouse.store.run_directory import config_of

    path = Path(args.directory)
    config_of(path)
    found = checkpoints.listed(path / "checkpoints")
    parts = checkpoints.roles([c for c in found if not c.faults])
    roles = {c.path: [r for r, paths in parts.items() if c.path in paths] for c in found}
    if args.json:
        rows = [
            {"step": c.step, "reward": c.reward, "why": c.why, "bytes": c.bytes, "path": str(c.path),
             "valid": not c.faults, "faults": list(c.faults), "kept_as": roles[c.path]}
            for c in found
        ]  # fmt: skip
        print(json.dumps(rows, indent=2))
    elif not found:
        print(f"{path} has no checkpoints yet.")
    else:
        table = Table("step", "reward", "size", "kept as", "valid", "saved because")
        for c in found:
            reward = "" if c.reward is None else f"{c.reward:+.3f}"
            valid = "yes" if not c.faults else f"[red]no[/]: {c.faults[0]}"
            kept = ", ".join(roles[c.path])
            table.add_row(str(c.step), reward, f"{c.bytes / 1e6:.1f} MB", kept, valid, c.why)
        console = Console(highlight=False)
        console.print(table)
        whole = [c for c in found if not c.faults]
        if whole:
            console.print(f"next    glasshouse eval {whole[-1].path}, glasshouse resume {path}")
    return 1 if any(c.faults for c in found) else 0
