"""`glasshouse data`: create problem files, audit runs for contamination, compare training set sizes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from glasshouse.cli.parser import (
    add_actions,
    add_command,
    add_config_files,
    add_imports,
    add_json,
    add_run_directory,
)
from glasshouse.terminal import count_noun, terminal_safe, terminal_safe_json

PRINTED_LEAKS = 20


def add_commands(commands: Any) -> None:
    parser = add_command(
        commands,
        "data",
        None,
        "create problem files, audit runs for contamination, compare set sizes",
        examples=["glasshouse data audit runs/try", "glasshouse data generate --help"],
    )
    actions = add_actions(parser)

    generate = add_command(
        actions,
        "generate",
        _generate,
        "write a problem file with its provenance",
        "Draws count × oversize distinct problems of one split and writes them with a provenance file "
        "and a checksum. Never overwrites a file.",
        ["glasshouse data generate --task multiplication --count 1000 --oversize 1.5 --out val.jsonl"],
    )  # fmt: skip
    generate.add_argument("--task", required=True, help="see glasshouse tasks")
    generate.add_argument(
        "--split", choices=["train", "validation", "test"], default="validation",
        help="default: validation",
    )  # fmt: skip
    generate.add_argument("--count", type=int, default=1000, help="problems (default 1000)")
    generate.add_argument(
        "--oversize", type=float, default=1.0,
        help="multiplies --count, so that enough problems remain after decontamination (default 1)",
    )  # fmt: skip
    generate.add_argument("--seed", type=int, default=0, help="seed of the draw (default 0)")
    generate.add_argument(
        "--options", nargs="*", default=[], metavar="key=value",
        help="task options, e.g. left_digits=3 count=[2,2]",
    )  # fmt: skip
    add_imports(generate)
    generate.add_argument("--out", required=True, help="the file to write, .jsonl or .parquet")

    audit = add_command(
        actions,
        "audit",
        _audit,
        "check whether a run was evaluated on problems it was trained on",
        "Compares problems with those in the run's rollout log of training; exit code 1 if any is there. "
        "Problems match by canonical key, by the words of the question, and, where a file has no keys, by "
        "the same words and numbers in another order with the same answer.",
        [
            "glasshouse data audit runs/try",
            "glasshouse data audit runs/try --file my-test-set.jsonl",
        ],
    )
    add_run_directory(audit)
    audit.add_argument(
        "--file", help="check this problem file (.jsonl or .parquet) instead of the run's own"
    )
    add_json(audit)

    scaling = add_command(
        actions,
        "scaling",
        _scaling,
        "measure how large a fixed training set must be",
        "Trains on fixed sets of factor × base problems and on fresh problems, with equal steps and "
        "several seeds. Reports held-out and training accuracy, the gap between them, and the cost. "
        "Finished runs are not repeated.",
        ["glasshouse data scaling --config training/example.rl/config.yaml --factors 0.5,1,2"],
    )
    scaling.add_overrides("as for glasshouse train")
    add_config_files(scaling)
    scaling.add_argument("--base", type=int, default=250, help="problems at factor 1 (default 250)")
    scaling.add_argument(
        "--factors", default="0.25,0.5,1,2,4,10", help="comma-separated (default %(default)s)"
    )
    scaling.add_argument("--seeds", type=int, default=3, help="seeds per arm (default 3)")
    scaling.add_argument("--steps", type=int, help="steps per run (default: as configured)")
    scaling.add_argument("--jobs", type=int, default=2, help="parallel runs (default 2)")
    scaling.add_argument("--out", default="runs/scaling", help="default: runs/scaling")


def _generate(args: argparse.Namespace) -> None:
    from glasshouse.cli.data_api import create_problem_file, summarize_provenance
    from glasshouse.config.imports import import_modules

    import_modules(args.imports)
    provenance = create_problem_file(
        args.task, args.out, options=args.options, split=args.split, count=args.count,
        oversize=args.oversize, seed=args.seed,
    )  # fmt: skip
    print(terminal_safe(summarize_provenance(provenance, Path(args.out))))


def _audit(args: argparse.Namespace) -> int:
    import json
    from dataclasses import asdict

    from glasshouse.cli.data_api import audit_run

    report = audit_run(args.run_directory, args.file)
    if args.json:
        print(terminal_safe_json(json.dumps(asdict(report), indent=2, ensure_ascii=False)))
        return 1 if report.leaks else 0
    checked, count = (count_noun(n, "problem") for n in (report.checked, report.trained))
    evaluated = terminal_safe(f"{checked} of {args.file or 'its evaluations'}")
    trained = terminal_safe(f"{count} that {args.run_directory} was trained on")
    if not report.leaks:
        print(f"No leak: none of the {evaluated} is among the {trained}.")
        return 0
    for leak in report.leaks[:PRINTED_LEAKS]:
        print(f"leak at step {leak.step} ({leak.match}): {leak.problem.question!r} was trained on as "
              f"{leak.training_question!r}")  # fmt: skip
    if len(report.leaks) > PRINTED_LEAKS:
        print(f"… and {len(report.leaks) - PRINTED_LEAKS:,} more")
    print(f"{len(report.leaks):,} of the {evaluated} are among the {trained}.")
    return 1


def _scaling(args: argparse.Namespace) -> None:
    from glasshouse.cli.data_api import run_scaling
    from glasshouse.errors import ConfigError

    try:
        factors = [float(part) for part in args.factors.split(",")]
    except ValueError:
        raise ConfigError(
            f'--factors is "{args.factors}"; write numbers separated by commas, as in 0.5,1,2.'
        ) from None
    overrides = [*args.overrides, *([f"steps={args.steps}"] if args.steps is not None else [])]
    out = Path(args.out)
    run_scaling(
        args.config,
        overrides,
        base=args.base,
        factors=factors,
        seeds=args.seeds,
        jobs=args.jobs,
        out=out,
    )
    print(terminal_safe(f"files   {out / 'results'}  (scaling.json, scaling.png)"))
