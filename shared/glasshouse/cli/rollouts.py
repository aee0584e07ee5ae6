"""`glasshouse rollouts`: query the rollout log of a run."""

from __future__ import annotations

import argparse
import math
import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from glasshouse.cli.parser import RUN, command, print_damage
from glasshouse.errors import RunError
from glasshouse.terminal import (
    count_noun,
    format_bytes,
    shell_command,
    terminal_safe_json,
)

if TYPE_CHECKING:
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
        "--json": "print JSON lines, with all fields",
        "--prompt": "with --show: print the whole prompt",
    },
    "Options from --step to --limit select rollouts. Without --show or --json, prints a table "
    " of what the log holds. Exit code 1 if the log is damaged; the readable part is shown anyway.",
    examples=[
        "glasshouse rollouts runs/try",
        "glasshouse rollouts runs/try --step 60 --wrong --show",
        "glasshouse rollouts runs/try --correct --reward 0.3..1 --json",
    ],
    exclusive=(("--correct", "--wrong"), ("--show", "--json")),
)
def _rollouts(args: argparse.Namespace) -> int:
    from glasshouse.runs.rollout_log import RolloutReader
    from glasshouse.runs.rows import RolloutFilter, encode_rows
    from glasshouse.terminal import make_console
    from glasshouse.view.terminal_tables import overview_table, render_rollout, tally_by_step

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
    rows = islice(reader.iter_rows(query), args.limit or (3 if args.show else None))
    console, count = make_console(), 0
    if args.json or args.show:
        for row in rows:
            count += 1
            if args.json:
                sys.stdout.write(terminal_safe_json(encode_rows([row]).decode()))
            else:
                console.print(render_rollout(row, args.prompt))
    else:
        tallies = tally_by_step(rows)
        if count := sum(tally["rows"] for tally in tallies.values()):
            console.print(overview_table(tallies))
            _print_overview(args.run, reader.file, count, max(step for _, step in tallies))
    damaged = _print_damage(run, reader)
    if not count and not damaged:
        raise RunError(f"No rollouts of {run} match these filters.")
    return 1 if damaged else 0


def _print_overview(run: str, log: Path, count: int, last_step: int) -> None:
    """Print the size of the log, and further commands."""
    from glasshouse.runs.rollout_log import LogSize, scan_log

    total = LogSize.of(scan_log(log).frames)
    selected = "" if count == total.rows else f"{count:,} of "
    print(
        f"\n{selected}{count_noun(total.rows, 'rollout')} in {count_noun(total.frames, 'frame')}: {total} "
        f"({total.raw / max(1, total.bytes):.1f} to 1, "
        f"{format_bytes(total.bytes / max(1, total.rows))} per rollout)\nnext:"
    )
    for options in (["--step", str(last_step), "--wrong", "--show"], ["--json"]):
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
