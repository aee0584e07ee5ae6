"""`glasshouse rollouts`: what a run asked and what it was answered. Part of the command line: it
parses arguments and calls rooms."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from glasshouse.errors import RunError
from glasshouse.types import Rule

KINDS = ["train", "validation", "replaced"]


def add(commands: Any) -> None:
    """Hang the `rollouts` command into the command line."""
    parser = commands.add_parser(
        "rollouts",
        help="read a run's record: every prompt sent, every completion received",
        description="Without a way to show them: a table of what the record holds. Exit code 1 if the "
        "record is damaged; what can be read of it is shown all the same.",
    )
    parser.add_argument("run_directory", metavar="RUN", help="a run directory")
    which = parser.add_argument_group("which rollouts")
    which.add_argument("--step", default="", metavar="N or A..B", help="a step, or 10..20, or 10..")
    which.add_argument("--kind", choices=KINDS, help="train, validation, or replaced (dapo's)")
    which.add_argument("--split", default="", help="train, validation/greedy or validation/sampled")
    which.add_argument("--task", default="", help="the task's name")
    which.add_argument("--key", default="", help="the problem's canonical key")
    verdict = which.add_mutually_exclusive_group()
    verdict.add_argument("--correct", action="store_const", const=True, help="only right ones")
    verdict.add_argument(
        "--wrong", dest="correct", action="store_const", const=False, help="only wrong ones"
    )
    which.add_argument(
        "--rule", default="", choices=[r.value for r in Rule], help="which rule read it"
    )
    which.add_argument(
        "--reward",
        default="",
        metavar="A..B",
        help="between two rewards (--reward=-1..0 if negative)",
    )
    which.add_argument("--text", default="", help="in the question or completion, in any case")
    which.add_argument("--regex", default="", help="found in the question or completion")
    which.add_argument("--limit", type=int, metavar="N", help="at most so many (--show: 3)")
    how = parser.add_argument_group("how to show them").add_mutually_exclusive_group()
    how.add_argument("--show", action="store_true", help="one after another, in full")
    how.add_argument("--group", metavar="STEP:GROUP", help="one group, side by side")
    how.add_argument("--sql", metavar="QUERY", help="a query over the table rollouts (DuckDB)")
    how.add_argument("--export", metavar="FILE", help="a new .parquet, .jsonl or .csv file")
    parser.add_argument(
        "--json", action="store_true", help="JSON lines, for programs; of --sql's answer too"
    )
    parser.add_argument("--prompt", action="store_true", help="with --show: the whole prompt")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from glasshouse.store import Query, Reader

    folder = record_of(Path(args.run_directory))
    if args.group:
        args.step, group = grouped(args.group)
        args.kind = args.kind or "train"
    first, last = between(args.step, "--step", 0)
    lowest, highest = between(args.reward, "--reward", -math.inf)
    query = Query(
        kinds=(args.kind,) if args.kind else (),
        first=math.ceil(first),
        last=last,
        split=args.split,
        task=args.task,
        key=args.key,
        group=group if args.group else None,
        correct=args.correct,
        rule=args.rule,
        lowest=lowest,
        highest=highest,
        text=args.text,
        pattern=pattern(args.regex) if args.regex else None,
    )
    if args.limit is not None and args.limit < 1:
        raise RunError(f"--limit is {args.limit}; it must be at least 1.")
    reader = Reader(folder)
    limit = args.limit or (3 if args.show else None)
    count = _show(args, islice(reader.rows(query), limit))
    damaged = _say_damage(Path(args.run_directory), reader)
    if not count and not damaged:
        raise RunError(f"No rollout of {args.run_directory} is like that. {held(folder)}")
    return 1 if damaged else 0


def _show(args: argparse.Namespace, rows: Iterator[dict[str, Any]]) -> int:
    """Show rows as asked; returns how many there were."""
    from rich.console import Console

    from glasshouse.report import rollout_text as view
    from glasshouse.store import export
    from glasshouse.store.rollout_rows import encode

    console, count = Console(highlight=False), 0
    if args.export:
        if count := export.export(rows, Path(args.export)):
            print(f"{count:,} rollouts written to {args.export}.")
        return count
    if args.sql:
        counted = Counted(rows)
        names, answers = export.sql(counted, args.sql)
        if counted.count:
            _print_answers(console, names, answers, not args.json)
        return counted.count
    if args.group:
        listed = list(rows)
        for split in dict.fromkeys(row["split"] for row in listed):
            some = [row for row in listed if row["split"] == split]
            console.print(view.side_by_side(some, console.width))
        return len(listed)
    if args.json or args.show:
        for row in rows:
            count += 1
            if args.json:
                sys.stdout.write(encode([row]).decode())
            else:
                console.print(view.single(row, args.prompt))
        return count
    return _overview(console, args.run_directory, rows)


def _overview(console: Any, run: str, rows: Iterator[dict[str, Any]]) -> int:
    from glasshouse.report import rollout_text as view
    from glasshouse.store import storage
    from glasshouse.store.manifest import read_manifest, size

    folder = record_of(Path(run))
    found = view.tally(rows)
    if not found:
        return 0
    entries = [line.entry for line in read_manifest(folder) if line.entry]
    total = storage(folder)
    console.print(view.overview(found, entries))
    shown = sum(t.rows for t in found.values())
    these = "" if shown == total.rows else f"These are {shown:,} of "
    console.print(
        f"\n{these}{total.rows:,} rollouts in {total.frames} frames: {total} "
        f"({total.raw / max(1, total.bytes):.1f} to 1, {size(total.bytes / max(1, total.rows))} a rollout)"
    )
    last = max(step for _, step in found)
    console.print("[dim]Go on with:[/]")
    for more in (f"--step {last} --wrong --show", f"--group {last}:0", "--correct --reward 0.3..1 --json",
                 "--sql \"select rule, count(*), avg(reward) from rollouts group by rule\"",
                 "--export rollouts.parquet"):  # fmt: skip
        console.print(f"  glasshouse rollouts {run} {more}", markup=False, soft_wrap=True)
    return shown


def _print_answers(
    console: Any, names: list[str], answers: list[tuple[Any, ...]], pretty: bool
) -> None:
    """What a query gave: a table, or JSON lines."""
    from rich.table import Table
    from rich.text import Text

    from glasshouse.report.rollout_text import printable

    if not pretty:
        for answer in answers:
            print(
                json.dumps(dict(zip(names, answer, strict=True)), ensure_ascii=False, default=str)
            )
        return
    table = Table(*names)
    for answer in answers:
        shown = (f"{v:.6g}" if isinstance(v, float) else printable(str(v)) for v in answer)
        table.add_row(*map(Text, shown))
    console.print(table)


class Counted:
    """An iterator that knows how many it gave."""

    def __init__(self, rows: Iterator[dict[str, Any]]) -> None:
        self.rows, self.count = rows, 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in self.rows:
            self.count += 1
            yield row


def _say_damage(run: Path, reader: Any) -> bool:
    from glasshouse.store.rollout_reader import lost_steps

    found = [*reader.damage, *lost_steps(run, reader)]
    for damage in found[:20]:
        print(f"damage: {damage}", file=sys.stderr)
    if len(found) > 20:
        print(f"damage: … and {len(found) - 20:,} more", file=sys.stderr)
    for what in reader.unfinished:
        print(f"note: {what}: a step being written, or the tail of a crash.", file=sys.stderr)
    return bool(found)


def record_of(run: Path) -> Path:
    """A run's record, or a sentence that says why there is none."""
    folder = run / "results" / "rollouts"
    if not run.exists():
        raise RunError(f"{run} does not exist.")
    if not folder.is_dir():
        raise RunError(f"{run} is not a run directory: it has no results/rollouts.")
    return folder


def held(folder: Path) -> str:
    """What there is instead, for a filter that matches nothing."""
    from glasshouse.store.manifest import read_manifest

    steps: dict[str, list[int]] = {}
    for line in read_manifest(folder):
        if line.entry:
            steps.setdefault(line.entry.kind, []).append(line.entry.step)
    if not steps:
        return "Its record is empty."
    spans = (f"{kind} at steps {min(some)} to {max(some)}" for kind, some in steps.items())
    return f"The record holds {', '.join(spans)}."


def between(text: str, option: str, least: float) -> tuple[float, float]:
    """`3`, `10..20`, `10..` or `..20` as a lowest and a highest."""
    low, dots, high = text.partition("..")
    try:
        lowest = float(low) if low else least
        highest = float(high) if high else math.inf
        if not dots and low:
            highest = lowest
        if math.isnan(lowest) or math.isnan(highest) or lowest > highest or text == "..":
            raise ValueError
    except ValueError:
        raise RunError(
            f'{option} is "{text}"; write one number, or a range as in 10..20.'
        ) from None
    return lowest, highest


def grouped(text: str) -> tuple[str, int]:
    """`3:5` as a step and a group."""
    step, colon, group = text.partition(":")
    if not (colon and step.isascii() and step.isdigit() and group.isascii() and group.isdigit()):
        raise RunError(f'--group is "{text}"; write step and group, as in 12:0.')
    return step, int(group)


def pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise RunError(f'--regex "{text}" is no regular expression: {error}.') from None
