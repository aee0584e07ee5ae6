"""`glasshouse monitor` and `measure`: monitorability of runs and of any rollouts."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from glasshouse.cli.parser import (
    add_command,
    add_imports,
    add_json,
    add_run_directory,
)


def add_commands(commands: Any) -> None:
    _add_monitor(commands)
    _add_measure(commands)


def _add_monitor(commands: Any) -> None:
    parser = add_command(
        commands,
        "monitor",
        _monitor,
        "measure how monitorable the chain of thought is, at every checkpoint",
        "Evaluates the base model and every valid checkpoint of a run on held-out problems: monitors, and "
        "interventions on the same rollouts. Writes results/monitor.json and monitor_rows.jsonl.zst. If "
        "it is interrupted, the same command resumes; finished checkpoints are not measured again.",
        [
            "glasshouse monitor runs/try",
            "glasshouse monitor runs/try --first-and-last --problems 50",
            "glasshouse monitor runs/try --monitor 'rule:guess=(?i)guess'",
            "glasshouse monitor runs/try --monitor judge:http://localhost:8000/v1 --judge-model NAME \\\n"
            "    --behaviour 'uses the leaked answer'",
        ],
    )
    add_run_directory(parser)
    parser.add_argument(
        "--problems", type=int, metavar="N", help="number of held-out problems (default 200)"
    )
    parser.add_argument("--greedy", action="store_true", help="greedy instead of sampled rollouts")
    parser.add_argument(
        "--first-and-last", action="store_true", help="only the base model and the last checkpoint"
    )
    parser.add_argument(
        "--out", metavar="FOLDER",
        help="write the results to this folder instead of RUN/results; the run may be read-only",
    )  # fmt: skip
    add_json(parser)
    _add_monitor_options(parser)


def _add_measure(commands: Any) -> None:
    parser = add_command(
        commands,
        "measure",
        _measure,
        "measure rollouts of any trainer: JSON lines, Parquet, a Hugging Face dataset, an Inspect log",
        "Scores every rollout with monitors and prints each measure that the columns allow, with interval, "
        "null and ceiling, or the reason why it is undefined. The columns of TRL, verifiers and Inspect are "
        "recognised; other columns are mapped to fields with --map. docs/measure.md explains fields and measures.",
        [
            "glasshouse measure rollouts.jsonl --map label=hacked arm=condition --monitor 'rule:hint=(?i)hint'",
            "glasshouse measure outputs/completions --steps-per-checkpoint 50",
            "glasshouse measure log.eval --map arm=metadata.arm group=metadata.problem --out measured",
        ],
    )
    parser.add_argument("rollouts", metavar="ROLLOUTS", help="a file, a folder or a run directory")
    parser.add_argument(
        "--map", nargs="+", action="extend", default=[], metavar="FIELD=COLUMN",
        help="which column holds a field: prompt, completion, reasoning, answer, gold, hint, label, correct, "
        "reward, arm, group, checkpoint, seed, id, activations; a.b is b inside a; empty: ignore the field",
    )  # fmt: skip
    parser.add_argument("--planted", default="", metavar="VALUE", help="the planted arm's value")
    parser.add_argument("--control", default="", metavar="VALUE", help="the control arm's value")
    _add_monitor_options(parser)
    parser.add_argument(
        "--steps-per-checkpoint", type=int, default=0, metavar="N",
        help="measure N training steps together (default: each checkpoint alone)",
    )  # fmt: skip
    add_imports(parser)
    parser.add_argument("--out", metavar="FOLDER", help="write measures.json and report.html here")
    add_json(parser)


def _add_monitor_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("monitors")
    group.add_argument(
        "--monitor",
        action="append",
        default=[],
        metavar="KIND[:…]",
        help="rule:NAME=PATTERN, steps:TASK, ngrams[:SCOPE], probe, saved:FOLDER, judge:URL (an "
        "OpenAI-compatible endpoint, up to /v1), or a kind of your own; repeatable",
    )
    group.add_argument("--judge-model", default="", metavar="NAME", help="the judge's model name")
    group.add_argument(
        "--judge-key", default="", metavar="VARIABLE", help="environment variable with the API key"
    )
    group.add_argument(
        "--behaviour", default="", help="the behaviour that the judge looks for, one sentence"
    )


def _parse_monitors(args: argparse.Namespace, cache: Path) -> list[Any]:
    from glasshouse.monitors.factory import parse_monitor

    judge = {
        "model": args.judge_model, "key_variable": args.judge_key, "behaviour": args.behaviour,
        "cache": cache,
    }  # fmt: skip
    return [parse_monitor(text, **judge) for text in args.monitor]


def _monitor(args: argparse.Namespace) -> None:
    from glasshouse.errors import MonitorError
    from glasshouse.measurement.monitor_run import monitor_run
    from glasshouse.monitors.fitted import FittedKind
    from glasshouse.runs.run_config import load_verified_config
    from glasshouse.terminal import make_console, shell_command, terminal_safe
    from glasshouse.view.terminal_tables import monitor_table

    run = Path(args.run_directory)
    load_verified_config(run)  # raises if this is not a run directory
    cache = (Path(args.out) if args.out else run / "results") / "judge"
    monitors = _parse_monitors(args, cache)
    if fitted := [m.name for m in monitors if isinstance(m, FittedKind)]:
        raise MonitorError(
            f"--monitor {fitted[0]}: glasshouse monitor fits n-gram monitors by itself where a run has labels."
        )
    console = make_console(stderr=args.json)
    results = monitor_run(
        run, problems=args.problems, greedy=args.greedy, first_and_last=args.first_and_last, monitors=monitors,
        out=args.out, console=console,
    )  # fmt: skip
    if args.json:
        print(json.dumps(results, indent=1, sort_keys=True))
        return
    console.print(monitor_table(results))
    console.print(results["verdict"], markup=False)
    files = (args.out or run / "results", "(monitor.json, monitor_rows.jsonl.zst)")
    print(terminal_safe(f"files   {files[0]}  {files[1]}"))
    if not args.out:
        print(f"next    {shell_command(['glasshouse', 'report', run])}")


def _measure(args: argparse.Namespace) -> None:
    from glasshouse.cli.measure_report import (
        compare_sentences,
        measure_tables,
        undefined_sentences,
        write_measure_report,
    )
    from glasshouse.files import check_output_folder
    from glasshouse.measurement.file import measure
    from glasshouse.registry import import_modules
    from glasshouse.terminal import make_console, terminal_safe, terminal_safe_json

    import_modules(args.imports)
    if args.out:
        check_output_folder("--out", Path(args.out))  # before minutes of measuring
    monitors = _parse_monitors(args, Path(args.out or ".glasshouse") / "judge")
    report = measure(
        args.rollouts, args.map, monitors=monitors, planted=args.planted, control=args.control,
        steps_per_checkpoint=args.steps_per_checkpoint,
    )  # fmt: skip
    if args.out:
        write_measure_report(report, Path(args.out))
    if args.json:
        print(terminal_safe_json(json.dumps(report.as_dict(), indent=1)))
        return
    console = make_console()
    fields = ", ".join(f"{name} = {column}" for name, column in report.mapping.items())
    left_out = f", {report.unanswered:,} without an answer left out" if report.unanswered else ""
    counts = f"{report.rollouts:,} rollouts ({report.format}){left_out}"
    print(terminal_safe(f"{report.source}: {counts}; {fields}"))
    print(terminal_safe(f"behaviour: {report.behaviour or 'no column says what it is'}"))
    for table in measure_tables(report):
        console.print(table)
    changes = compare_sentences(report, only_shown=True)
    for sentence in [*changes, *undefined_sentences(report)]:
        print(terminal_safe(sentence))
    if args.out:
        print(terminal_safe(f"report  {Path(args.out) / 'report.html'}"))
