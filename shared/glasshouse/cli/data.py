"""`glasshouse data …`: generate, audit, scaling. Part of the command line: like `cli`, it parses
arguments and calls rooms, which it imports only when a command runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Hang the `data` commands into the command line."""
    parser = commands.add_parser("data", help="make problem files, audit runs, find the right size")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _generate(actions)
    _audit(actions)
    _scaling(actions)


def _generate(actions: Any) -> None:
    parser = actions.add_parser(
        "generate",
        help="write a problem file with its provenance",
        description="Draw count × oversize problems of one split, each once, and write them with a "
        "provenance file and a checksum. Nothing is overwritten.",
    )
    parser.add_argument("--task", required=True, help="see glasshouse tasks")
    parser.add_argument(
        "--split", choices=["train", "validation", "test"], default="validation",
        help="default: validation",
    )  # fmt: skip
    parser.add_argument("--count", type=int, default=1000, help="problems wanted (default 1000)")
    parser.add_argument(
        "--oversize", type=float, default=1.0,
        help="write so many times more, e.g. 1.5, so that enough remain after an audit (default 1)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="which ones (default 0)")
    parser.add_argument(
        "--options", nargs="*", default=[], metavar="key=value",
        help="the task's difficulty, e.g. left_digits=3 count=[2,2]",
    )  # fmt: skip
    parser.add_argument("--out", required=True, help="the file to write, .jsonl or .parquet")
    parser.set_defaults(run=_run_generate)


def _run_generate(args: argparse.Namespace) -> None:
    from glasshouse.config import load
    from glasshouse.data.create_file import generate, sentence
    from glasshouse.data.splits import Split

    given = load([], [f"task.options.{option}" for option in args.options])
    out = Path(args.out)
    about = generate(
        args.task, given.task.options, Split(args.split), args.count, args.oversize, args.seed, out
    )
    print(sentence(about, out))


def _audit(actions: Any) -> None:
    parser = actions.add_parser(
        "audit",
        help="was a run evaluated on problems that it was trained on?",
        description="Compares problems with what the run's record says it was trained on. Exit code 1 "
        "if any was. Problems are matched by canonical key, by their question's words, and, where a "
        "file gives no keys, by the same words and numbers in another order with the same answer.",
    )
    parser.add_argument("run_directory", metavar="RUN", help="a run directory")
    parser.add_argument(
        "--file", help="check this problem file (.jsonl or .parquet) instead of the run's own"
    )
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    parser.set_defaults(run=_run_audit)


def _run_audit(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from glasshouse.evaluation.contamination import audit_run

    report = audit_run(Path(args.run_directory), Path(args.file) if args.file else None)
    if args.json:
        import json

        print(json.dumps(asdict(report), indent=2, ensure_ascii=False))
        return 1 if report.leaks else 0
    what = f"{report.checked:,} problems of {args.file or 'its evaluations'}"
    asked = f"{report.trained:,} problems that {args.run_directory} was trained on"
    if not report.leaks:
        print(f"No leak: none of the {what} is among the {asked}.")
        return 0
    for leak in report.leaks[:20]:
        print(f"leak at step {leak.step} ({leak.how}): {leak.problem.question!r} was trained on as "
              f"{leak.seen_as!r}")  # fmt: skip
    if len(report.leaks) > 20:
        print(f"… and {len(report.leaks) - 20:,} more")
    print(f"{len(report.leaks):,} of the {what} are among the {asked}.")
    return 1


def _scaling(actions: Any) -> None:
    parser = actions.add_parser(
        "scaling",
        help="how large should a fixed training set be?",
        description="Fixed sets of factor × base problems, and fresh problems, at equal steps over "
        "several seeds: held-out and training accuracy, the gap between them, and the cost. Runs that "
        "are finished are not run again.",
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="as for train")
    parser.add_argument(
        "--config", action="append", default=[], metavar="FILE", help="as for train"
    )
    parser.add_argument("--base", type=int, default=250, help="problems at factor 1 (default 250)")
    parser.add_argument("--factors", default="0.25,0.5,1,2,4,10", help="comma-separated")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each arm (default 3)")
    parser.add_argument(
        "--steps", type=int, help="steps of each run (default: the configuration's)"
    )
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (default 2)")
    parser.add_argument("--out", default="runs/scaling", help="default: runs/scaling")
    parser.set_defaults(run=_run_scaling)


def _run_scaling(args: argparse.Namespace) -> None:
    from glasshouse.errors import ConfigError
    from glasshouse.study.data_scaling import scaling

    try:
        factors = [float(part) for part in args.factors.split(",")]
    except ValueError:
        raise ConfigError(
            f'--factors is "{args.factors}"; write numbers with commas, as in 0.5,1,2.'
        ) from None
    overrides = [*args.overrides, *([f"steps={args.steps}"] if args.steps is not None else [])]
    scaling(args.config, overrides, args.base, factors, args.seeds, args.jobs, Path(args.out))
