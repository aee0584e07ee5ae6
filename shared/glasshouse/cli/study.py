"""`glasshouse study`: arms × seeds, a table, and a verdict for each question."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from glasshouse.study.spec import Study


def add(commands: Any) -> None:
    """Hang the command into the command line."""
    parser = commands.add_parser(
        "study",
        help="a question, arms that differ in one thing, paired seeds, a verdict",
        description="Train every arm of a study file with every seed, several runs at a time, and answer "
        "its questions. Killed at any moment, the same command goes on; finished runs are not run again, "
        "and more seeds or arms may be added later. Of a finished run about 0.1 MB stays: its "
        "configuration, summary, metrics, events and rows.",
        epilog="docs/studies.md walks through a study file.",
    )
    parser.add_argument("study", metavar="STUDY.yaml", help="the study file")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="laid over the study's config, under what its arms set, e.g. steps=4",
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="so many seeds (the study's own)")
    parser.add_argument("--arms", metavar="A,B", help="only these arms")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (default 2)")
    parser.add_argument("--out", help="where it goes (default runs/studies/<its name>)")
    parser.add_argument(
        "--check",
        metavar="FILE",
        help="compare the table bytewise with this one; exit code 1 if it differs. With --arms or "
        "--seeds, only the file's rows of these runs",
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep checkpoints and rollouts of finished runs"
    )
    parser.add_argument(
        "--table",
        metavar="FILE",
        help="train nothing: answer the questions from this table (.jsonl or .jsonl.zst)",
    )
    parser.add_argument(
        "--publish",
        metavar="FOLDER",
        help="at the end put the table (compressed), the analysis and the figures there, to be kept",
    )
    parser.add_argument("--dry-run", action="store_true", help="list the runs and stop")
    parser.set_defaults(run=_study)


def _study(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.markup import escape

    from glasshouse.study import spec
    from glasshouse.study.display import Terminal
    from glasshouse.study.runner import carry_out
    from glasshouse.study.table import Table
    from glasshouse.study.table_check import compare, read

    file = Path(args.study)
    arms = [arm.strip() for arm in args.arms.split(",")] if args.arms is not None else None
    study = spec.load(file, args.overrides).part(arms, args.seeds)
    out = Path(args.out) if args.out else Path("runs") / "studies" / spec.name(file)
    console = Console(highlight=False)
    # read before anything is written: it may be the very file that this study writes
    committed = read(Path(args.check)) if args.check else None
    if args.dry_run:
        _list(study, out, console)
        return 0
    console.print(
        f"[bold]{escape(study.title)}[/]: {_extent(study)} → {escape(str(out))}", soft_wrap=True
    )
    if args.table:
        table = Table.read(Path(args.table)).part(study.arms, study.seeds)
    else:
        try:
            with Terminal(study, console) as seen:
                table = carry_out(study, out, jobs=args.jobs, keep=args.keep, watcher=seen)
        except KeyboardInterrupt:
            console.print(
                "Stopped; what was under way is saved. The same command goes on from there.",
                soft_wrap=True,
            )
            return 130
        where = out / "results" / "table.jsonl"
        console.print(f"table   {where}  ({len(table):,} rows)", soft_wrap=True)
    from glasshouse.report.study_output import (  # brings torch and matplotlib with it
        present,
        publish,
    )
    from glasshouse.train.checkpointing import versions

    analysis = present(study, table, out / "results", versions(), console)
    if args.publish:
        command = f"glasshouse study {args.study} --publish {args.publish}"
        publish(analysis, table, out / "results", Path(args.publish), command)
    if committed is not None:
        same, sentence = compare(table, committed, args.check, part=bool(arms or args.seeds))
        console.print(sentence, markup=False, soft_wrap=True)
        return 0 if same else 1
    return 0


def _extent(study: Study) -> str:
    arms, seeds, bases = len(study.arms), study.seeds, len(set(study.bases[: study.seeds]))
    return (
        f"{arms} arm{'s' * (arms > 1)} × {seeds} seed{'s' * (seeds > 1)} = {arms * seeds} runs, "
        f"{bases} base{'s' * (bases > 1)}"
    )


def _list(study: Study, out: Path, console: Console) -> None:
    """What would be run. How long it takes depends on the machine, and is not known before."""
    from glasshouse.study.runner import plan

    runs = plan(study, out)
    for run in runs:
        state = "finished" if run.finished else "to do"
        console.print(
            f"{run.arm} seed {run.seed} ({run.base}, {run.config.steps} steps): {state}",
            markup=False,
        )
    left = sum(not run.finished for run in runs)
    console.print(f"{_extent(study)}; {left} to do → {out}", soft_wrap=True)
