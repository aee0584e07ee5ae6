"""`glasshouse rollouts`: query the rollout log of a run."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glasshouse.cli.parser import RUN, command, print_damage, print_safe
from glasshouse.errors import RunError
from glasshouse.terminal import (
    count_noun,
    format_bytes,
    shell_command,
    terminal_safe_json,
)

if TYPE_CHECKING:
    from rich.console import Console

    from glasshouse.runs.rollout_log import RolloutReader


@command(
    "rollouts",
    "query the rollout log: every prompt and completion of a run",
    {
        **RUN,
        "--step N..M": "for example 5, 10..20, 10..",
        "--split NAME": "train, validation (or a part of it, as validation/greedy), discarded (resampled by DAPO)",
        "--correct": {"action": "store_const", "const": True, "help": "only correct answers"},
        "--wrong": {
            "dest": "correct",
            "action": "store_const",
            "const": False,
            "help": "only wrong answers",
        },
        "--reward A..B": "reward in this range (negative: --reward=-1..0)",
        "--text TEXT": "contained in the question or completion, ignoring case",
        "--limit N": "at most N (default 3 with --show)",
        "--show": "print each rollout in full",
        "--export FILE": "write a .parquet or .jsonl file",
        "--json": "print JSON lines",
        "--prompt": "with --show: print the whole prompt",
    },
    "Options from --step to --limit select rollouts. Without --show, --export or --json, prints a "
    "table of what the log holds. Exit code 1 if the log is damaged; the readable part is shown anyway.",
    examples=[
        "glasshouse rollouts runs/try",
        "glasshouse rollouts runs/try --step 60 --wrong --show",
        "glasshouse rollouts runs/try --correct --reward 0.3..1 --json",
        "glasshouse rollouts runs/try --export rollouts.parquet",
    ],
    exclusive=(("--correct", "--wrong"), ("--show", "--export")),
)
def _rollouts(args: argparse.Namespace) -> int:
    from glasshouse.runs.rollout_log import RolloutReader
    from glasshouse.runs.rows import RolloutFilter

    run = Path(args.run)
    reader = RolloutReader(run)
    first, last = _parse_range(args.step, "--step", 0)
    lowest, highest = _parse_range(args.reward, "--reward", -math.inf)
    query = RolloutFilter(
        splits=(args.split,) if args.split else (),
        first_step=math.ceil(first),
        last_step=last,
        correct=args.correct,
        min_reward=lowest,
        max_reward=highest,
        text=args.text,
    )
    if args.limit is not None and args.limit < 1:
        raise RunError(f"--limit is {args.limit}; it must be at least 1.")
    rows = CountedRows(islice(reader.iter_rows(query), args.limit or (3 if args.show else None)))
    _display(args, reader.file, rows)
    damaged = _print_damage(run, reader)
    if not rows.count and not damaged:
        raise RunError(f"No rollouts of {run} match these filters.")
    return 1 if damaged else 0


class CountedRows:
    """Iterates over rollout rows and counts them."""

    def __init__(self, rows: Iterator[dict[str, Any]]) -> None:
        self.rows, self.count = rows, 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in self.rows:
            self.count += 1
            yield row


def _display(args: argparse.Namespace, log: Path, rows: CountedRows) -> None:
    """Print or export the rows as the display options say."""
    from glasshouse.runs.export import export_rows
    from glasshouse.runs.rows import encode_rows
    from glasshouse.terminal import make_console
    from glasshouse.view.terminal_tables import render_rollout

    console = make_console()
    if args.export:
        if count := export_rows(rows, Path(args.export)):
            print_safe(f"{count_noun(count, 'rollout')} written to {args.export}.")
    elif args.json:
        for row in rows:
            sys.stdout.write(terminal_safe_json(encode_rows([row]).decode()))
    elif args.show:
        for row in rows:
            console.print(render_rollout(row, args.prompt))
    else:
        _print_overview(console, args.run, log, rows)


def _print_overview(console: Console, run: str, log: Path, rows: CountedRows) -> None:
    """Print one line per split and step, the size of the log, and further commands."""
    from glasshouse.runs.rollout_log import LogSize, scan_log
    from glasshouse.view.terminal_tables import overview_table, tally_by_step

    tallies = tally_by_step(rows)
    if not tallies:
        return
    total = LogSize.of(scan_log(log).frames)
    console.print(overview_table(tallies))
    selected = "" if rows.count == total.rows else f"{rows.count:,} of "
    console.print(
        f"\n{selected}{count_noun(total.rows, 'rollout')} in {count_noun(total.frames, 'frame')}: {total} "
        f"({total.raw / max(1, total.bytes):.1f} to 1, "
        f"{format_bytes(total.bytes / max(1, total.rows))} per rollout)"
    )
    last = max(step for _, step in tallies)
    console.print("[dim]next:[/]")
    for options in (
        ["--step", str(last), "--wrong", "--show"],
        ["--export", "rollouts.parquet"],
    ):
        print(f"  {shell_command(['glasshouse', 'rollouts', run, *options])}")


def _print_damage(run: Path, reader: RolloutReader) -> bool:
    """Print what is damaged or missing to stderr; returns whether anything is."""
    from glasshouse.runs.checkpoints import read_newest_state
    from glasshouse.runs.verify import find_lost_rollouts

    state = read_newest_state(run / "checkpoints")
    messages = [*reader.damage, *find_lost_rollouts(run, state)]
    for message in messages:
        print_damage(message)
    if reader.unfinished:
        print(f"note: {reader.unfinished}: being written, or cut off by a crash.", file=sys.stderr)
    return bool(messages)


def _parse_range(text: str, option: str, least: float) -> tuple[float, float]:
    """The bounds of `3`, `10..20`, `10..` or `..20`, both inclusive."""
    low, dots, high = text.partition("..")
    try:
        lowest = float(low) if low else least
        highest = float(high) if high else math.inf
        if not dots and low:
            highest = lowest
        if math.isnan(lowest) or math.isnan(highest) or lowest > highest or text == "..":
            raise ValueError
    except ValueError:
        raise RunError(f'{option} is "{text}"; write a number, or a range as in 10..20.') from None
    return lowest, highest
