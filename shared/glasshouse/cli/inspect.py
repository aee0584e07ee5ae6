"""`glasshouse check`, `checkpoints`, `report` and `figure`: what a run directory holds."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from glasshouse.cli.parser import add_command, add_json, add_run_directory, print_damage


def add_commands(commands: Any) -> None:
    parser = add_command(
        commands,
        "check",
        _check,
        "verify every file of a run and list what is damaged",
        "Compares the configuration, the checkpoints, the rollout log, metrics, events, summary and monitor "
        "results with their checksums, and prints for each damage what is lost, what still works and what to do. "
        "Changes nothing. Exit code 0 if the run is intact, 1 if a part is damaged, 2 if it is not a run.",
        ["glasshouse check runs/try", "glasshouse check runs/try --json"],
    )
    add_run_directory(parser)
    add_json(parser)

    parser = add_command(
        commands,
        "checkpoints",
        _checkpoints,
        "list and verify the checkpoints of a run",
        "Shows step, reward, size, the retention rule that keeps each checkpoint, and why it was saved. "
        "Reads every file and compares it with its checksum; exit code 1 if one is damaged.",
        ["glasshouse checkpoints runs/try", "glasshouse checkpoints runs/try --json"],
    )
    add_run_directory(parser)
    add_json(parser)

    parser = add_command(
        commands,
        "report",
        _report,
        "write an HTML page about one or more runs",
        "One self-contained file: verdict, accuracy before and after, curves, monitorability, examples, "
        "configuration, and how to reproduce it. Several runs are grouped into arms and seeds, with "
        "the mean and a band over seeds.",
        [
            "glasshouse report runs/try",
            "glasshouse report runs/control/* --out control.html",
        ],
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run directories")
    parser.add_argument("--out", help="the file to write (default RUN/results/report.html)")

    parser = add_command(
        commands,
        "figure",
        _figure,
        "plot the learning curves of runs",
        examples=["glasshouse figure runs/try --out curves.png"],
    )
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="run directories; several are averaged"
    )
    parser.add_argument("--out", required=True, help="the image to write, .png or .svg")
    parser.add_argument("--title", default="", help="the title of the figure")


def _check(args: argparse.Namespace) -> int:
    import json

    from glasshouse.runs.run import verify_run
    from glasshouse.terminal import terminal_safe

    result = verify_run(args.run_directory)
    if args.json:
        print(json.dumps(result.as_dict(), indent=2))
        return 0 if result.is_sound else 1
    count = len(result.damage)
    verdict = "sound" if result.is_sound else f"damaged, {count} problem{'s' * (count > 1)}"
    lines = [f"{result.run}: {verdict}"]
    lines += [f"  {part:<14} {content}" for part, content in result.contents.items()]
    lines += [f"damage: {item}" for item in result.damage]
    for line in lines:
        print(terminal_safe(line))
    return 0 if result.is_sound else 1


def _checkpoints(args: argparse.Namespace) -> int:
    import json

    from rich.table import Table
    from rich.text import Text

    from glasshouse.console import make_console
    from glasshouse.runs.run import Run, load_config_of_run
    from glasshouse.terminal import shell_command, terminal_safe

    path = Path(args.run_directory)
    _, damage = load_config_of_run(path)  # raises if this is not a run directory
    for item in damage:
        print_damage(str(item))
    run = Run(path)
    entries = run.checkpoints()
    roles = run.checkpoint_roles(entries)
    valid = [entry for entry in entries if not entry.problems]
    if args.json:
        rows = [
            {"step": c.step, "reward": c.reward, "reason": c.reason, "bytes": c.bytes, "path": str(c.path),
             "valid": not c.problems, "problems": list(c.problems), "kept_as": roles[c.path]}
            for c in entries
        ]  # fmt: skip
        print(json.dumps(rows, indent=2))
    elif not entries:
        print(terminal_safe(f"{path} has no checkpoints yet."))
    else:
        table = Table("step", "reward", "size", "kept as", "valid", "saved because")
        for c in entries:
            reward = "" if c.reward is None else f"{c.reward:+.3f}"
            problem = terminal_safe(c.problems[0]) if c.problems else ""
            validity = Text("yes") if not problem else Text.assemble(("no", "red"), f": {problem}")
            size = f"{c.bytes / 1e6:.1f} MB"
            reason = Text(terminal_safe(c.reason))
            table.add_row(str(c.step), reward, size, ", ".join(roles[c.path]), validity, reason)
        make_console().print(table)
        if valid:
            print(f"next    {shell_command(['glasshouse', 'eval', valid[-1].path])}")
            print(f"        {shell_command(['glasshouse', 'resume', path])}")
    return 0 if len(valid) == len(entries) else 1


def _report(args: argparse.Namespace) -> None:
    from glasshouse.cli.figures import write_report
    from glasshouse.terminal import terminal_safe

    print(terminal_safe(str(write_report(*args.runs, out=args.out, warn=print_damage))))


def _figure(args: argparse.Namespace) -> None:
    from glasshouse.cli.figures import plot_learning_curves

    plot_learning_curves(*args.runs, title=args.title, out=args.out, warn=print_damage)
