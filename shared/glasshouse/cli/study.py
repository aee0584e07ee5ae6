"""`glasshouse study`: train arms × seeds, write a table, answer each question."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glasshouse.cli.parser import add_command
from glasshouse.terminal import count_noun, shell_command, terminal_safe

if TYPE_CHECKING:
    from rich.console import Console

    from glasshouse.study.spec import Study


def add_commands(commands: Any) -> None:
    parser = add_command(
        commands,
        "study",
        _study,
        "compare arms over paired seeds and answer a study's questions",
        "Trains every arm of a study file with every seed, several runs in parallel, and answers its "
        "questions. If it is interrupted, the same command resumes. Finished runs are not repeated, so "
        "seeds and arms can be added later. Of a finished run only about 0.1 MB is kept: configuration, "
        "summary, metrics, events and table rows. docs/studies.md explains the study file.",
        [
            "glasshouse study training/digits.reinforce/study.yaml --dry-run",
            "glasshouse study training/digits.reinforce/study.yaml --seeds 3 --jobs 4",
            "glasshouse study freeze my-study.yaml",
            "glasshouse study my-study.yaml --publish results",
        ],
    )
    parser.add_argument(
        "action",
        nargs="?",
        metavar="freeze",
        choices=("freeze",),
        help="register the study before its runs: write the date, a hash and a copy of its bases, seeds, "
        "config, arms and questions into the file. Later changes are reported as amendments",
    )
    parser.add_argument("study", metavar="STUDY.yaml", help="the study file")
    parser.add_overrides("override the study's config, but not what its arms set, e.g. steps=4")
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="number of seeds (default: as in the study)"
    )
    parser.add_argument("--arms", metavar="A,B", help="only these arms")
    parser.add_argument("--jobs", type=int, default=2, help="parallel runs (default 2)")
    parser.add_argument("--out", help="output folder (default runs/studies/<name of the study>)")
    parser.add_argument(
        "--check",
        metavar="FILE",
        help="compare the table byte by byte with this file; exit code 1 if it differs. With --arms "
        "or --seeds, only the rows of these runs are compared",
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep checkpoints and rollouts of finished runs"
    )
    parser.add_argument(
        "--table",
        metavar="FILE",
        help="train nothing: analyse this table (.jsonl or .jsonl.zst)",
    )
    parser.add_argument(
        "--publish",
        metavar="FOLDER",
        help="write the compressed table, the analysis and the figures to this folder",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="list the runs, print the smallest effect that the study can show, and exit",
    )


def _study(args: argparse.Namespace) -> int:
    from rich.markup import escape

    from glasshouse.console import make_console
    from glasshouse.study import api as studies

    file = Path(args.study)
    if args.action == "freeze":
        print(terminal_safe(f"{file}: {studies.freeze_study(file)}"))
        return 0
    arms = [arm.strip() for arm in args.arms.split(",")] if args.arms is not None else None
    study = studies.load_study(file, args.overrides, arms=arms, seeds=args.seeds)
    out = Path(args.out) if args.out else studies.default_folder(file)
    console = make_console()
    # read it first: it may be the file that this study overwrites
    committed = studies.read_table_lines(Path(args.check)) if args.check else None
    is_whole = arms is None and args.seeds is None
    studies.check_study(study, file, is_whole=is_whole, trains=not args.table)
    if args.dry_run:
        _list_runs(study, out, console)
        return 0
    console.print(
        f"[bold]{escape(terminal_safe(study.title))}[/]: {_describe_size(study)} → {escape(terminal_safe(str(out)))}",
        soft_wrap=True,
    )
    if not args.table and (power := studies.describe_power(study)):
        console.print(power, markup=False, soft_wrap=True)
    if args.table:
        table = studies.load_table(study, args.table)
    else:
        try:
            table = studies.train_study(
                study, out, jobs=args.jobs, keep_rollouts=args.keep, console=console
            )
        except KeyboardInterrupt:
            console.print(
                "Interrupted; unfinished runs are saved. Repeat the command to resume.",
                soft_wrap=True,
            )
            return 130
        table_file = out / "results" / "table.jsonl"
        print(terminal_safe(f"table   {table_file}  ({count_noun(len(table), 'row')})"))
    result = studies.report_study(study, table, out, console=console)
    if args.publish:
        command = shell_command(["glasshouse", "study", args.study, "--publish", args.publish])
        studies.publish_study(result, args.publish, command)
    if committed is not None:
        same, sentence = studies.compare_tables(
            table, committed, args.check, only_these_runs=bool(arms or args.seeds)
        )
        console.print(sentence, markup=False, soft_wrap=True)
        return 0 if same else 1
    return 0


def _describe_size(study: Study) -> str:
    arms, seeds = len(study.arms), len(study.seeds)
    bases = len({study.base_of(seed) for seed in study.seeds})
    return (
        f"{count_noun(arms, 'arm')} × {count_noun(seeds, 'seed')} = {count_noun(arms * seeds, 'run')}, "
        f"{count_noun(bases, 'base')}"
    )


def _list_runs(study: Study, out: Path, console: Console) -> None:
    """Print the runs of the study and which of them are finished."""
    from glasshouse.study.power import describe_power
    from glasshouse.study.runner import plan_runs

    runs = plan_runs(study, out)
    for run in runs:
        state = "finished" if run.is_finished else "to do"
        console.print(
            f"{run.arm} seed {run.seed} ({run.base}, {run.config.steps} steps): {state}",
            markup=False,
        )
    remaining = sum(not run.is_finished for run in runs)
    print(terminal_safe(f"{_describe_size(study)}; {remaining} to do → {out}"))
    if power := describe_power(study):
        print(terminal_safe(power))
