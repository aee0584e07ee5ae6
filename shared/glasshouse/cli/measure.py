"""`glasshouse monitor` and `measure`: monitorability of runs and of any rollouts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from glasshouse.cli.parser import (
    ACCEPT,
    IMPORTS,
    JSON,
    RUN,
    command,
    command_group,
    print_json,
    print_safe,
)
from glasshouse.terminal import shell_command

MONITORS = {
    "--monitor KIND[:…]...": "rule:NAME=PATTERN, steps:TASK, ngrams[:SCOPE], embedder:MODEL, probe[:LAYER], "
    "saved:FOLDER, judge:URL (an OpenAI-compatible endpoint, up to /v1), or a kind of your own; repeatable",
    "--judge-model NAME": "the judge's model name",
    "--judge-key VARIABLE": "environment variable with the API key",
    "--behaviour TEXT": "the behaviour that the judge looks for, one sentence",
}


def parse_monitors(args: argparse.Namespace, cache: Path) -> list[Any]:
    from glasshouse.monitors.factory import parse_monitor

    judge = {
        "model": args.judge_model,
        "key_variable": args.judge_key,
        "behaviour": args.behaviour,
        "cache": cache,
    }
    return [parse_monitor(text, **judge) for text in args.monitor]


command_group(
    "monitor",
    "measure how monitorable the chain of thought is, at every checkpoint; fit a monitor",
    examples=["glasshouse monitor runs/try", "glasshouse monitor fit runs/try --monitor probe"],
)


@command(
    "monitor measure",
    "measure how monitorable the chain of thought is, at every checkpoint",
    {
        **RUN,
        "--problems N": "number of held-out problems (default 200)",
        "--first-and-last": "only the base model and the last checkpoint",
        "--out FOLDER": "write the results to this folder instead of RUN/results; the run may be read-only",
        **ACCEPT,
        **JSON,
        **MONITORS,
    },
    "Evaluates the base model and every valid checkpoint of a run on held-out problems: monitors, and "
    "interventions on the same rollouts. Writes results/monitor.json and monitor_rows.jsonl.zst. If "
    "it is interrupted, the same command resumes; finished checkpoints are not measured again.",
    examples=[
        "glasshouse monitor runs/try",
        "glasshouse monitor runs/try --first-and-last --problems 50",
        "glasshouse monitor runs/try --monitor 'rule:guess=(?i)guess'",
        "glasshouse monitor runs/try --monitor judge:http://localhost:8000/v1 --judge-model NAME \\\n"
        "    --behaviour 'uses the leaked answer'",
    ],
)
def _monitor(args: argparse.Namespace) -> None:
    from glasshouse.errors import MonitorError
    from glasshouse.measurement.monitor_run import monitor_run
    from glasshouse.measurement.reading import Reading, describe_reading
    from glasshouse.monitors.base import describe_cost
    from glasshouse.monitors.fitted import FittedKind
    from glasshouse.runs.run_directory import load_verified_config
    from glasshouse.terminal import make_console
    from glasshouse.view.terminal_tables import measures_table

    run = Path(args.run)
    load_verified_config(run)  # raises if this is not a run directory
    out = Path(args.out) if args.out else run / "results"
    monitors = parse_monitors(args, out / "judge")
    if fitted := [m.name for m in monitors if isinstance(m, FittedKind)]:
        raise MonitorError(
            f"--monitor {fitted[0]}: glasshouse monitor fits n-gram monitors by itself where a run has labels; fit "
            "others with glasshouse monitor fit, and name saved:FOLDER."
        )
    console = make_console(stderr=args.json)
    results = monitor_run(
        run,
        problems=args.problems,
        first_and_last=args.first_and_last,
        monitors=monitors,
        out=args.out or None,
        accept_changes=args.accept_changes,
        console=console,
    )
    if args.json:
        print_json(results)
        return
    console.print(measures_table(results))
    console.print(results["verdict"], markup=False)
    reading = Reading()
    for entry in results["checkpoints"]:
        reading.merge(Reading(**entry.get("reading", {})))
    print_safe(*describe_reading(reading))
    for name, cost in results["checkpoints"][-1].get("costs", {}).items():
        print_safe(f"{name}: {describe_cost(cost)}")
    print_safe(f"files   {out}  (monitor.json, monitor_rows.jsonl.zst)")
    if not args.out:
        print(f"next    {shell_command(['glasshouse', 'report', run])}")


@command(
    "monitor fit",
    "fit a monitor on the model that a run starts from: a probe, an embedder, n-grams, a judge's threshold",
    {
        **RUN,
        **MONITORS,
        "--problems N": "number of problems to sample (default 150); more give a more reliable threshold",
        "--out FOLDER": "where to save the monitor (default: RUN/monitors/NAME)",
    },
    "Samples the base model of a run on problems that no run trains or evaluates on. Two fifths of them are to fit on, "
    "two for a threshold at 5 % false positives, one to measure the monitor. saved:FOLDER names it everywhere.",
    examples=[
        "glasshouse monitor fit runs/try --monitor probe:3",
        "glasshouse monitor fit runs/try --monitor embedder:models/all-MiniLM-L6-v2 --out monitors/embedder",
    ],
)
def _fit(args: argparse.Namespace) -> None:
    from glasshouse.errors import MonitorError
    from glasshouse.files import check_output_folder
    from glasshouse.measurement.fit_run import fit_on_run
    from glasshouse.monitors.base import describe_cost
    from glasshouse.view.terminal_tables import format_value

    folder = Path(args.out or Path(args.run) / "monitors")
    monitors = parse_monitors(args, folder / "judge")
    if len(monitors) != 1:
        raise MonitorError("Give one --monitor, as in --monitor probe.")
    out = folder if args.out else folder / monitors[0].name
    check_output_folder("--out", out)
    fitted = fit_on_run(args.run, monitors[0], out, problems=args.problems or 150)
    for name, found in fitted["measures"].items():
        print_safe(f"{name:<11}{format_value(found.as_dict(), True)} of {found.n:,} rollouts")
    left_out = f"failed on {fitted['failed']:,} rollouts, which are left out"
    said = [f"threshold  {fitted['threshold']:.3g}", fitted["warning"]]
    said += [describe_cost(fitted["cost"])] * bool(fitted["cost"]) + [left_out] * bool(
        fitted["failed"]
    )
    print_safe(*filter(None, said), f"next       --monitor saved:{out}")


ROLLOUTS: dict[str, Any] = {
    "--map FIELD=COLUMN...": {
        "nargs": "+",
        "action": "extend",
        "help": "which column holds a field: prompt, completion, reasoning, answer, gold, hint, label, correct, "
        "reward, arm, group, checkpoint, seed, id, activations, finish_reason; a.b is b inside a; empty: ignore "
        "the field",
    },
    "--planted VALUE": "the planted arm's value",
    "--control VALUE": "the control arm's value",
    **MONITORS,
    "--answer-kind number|sequence|choice|text|math": "the kind of the gold answers (default: detected)",
    "--allow-unread": "print accuracies although more than a fifth of the answers could not be read",
    "--steps-per-checkpoint N": "measure N training steps together (default: each checkpoint alone)",
    **IMPORTS,
}
"""How files of rollouts are read and scored: options of `measure` and `view`."""


def rollout_options(args: argparse.Namespace, cache: Path) -> dict[str, Any]:
    """Those options as arguments of `RolloutFile`; imports the user's modules."""

    names = ("map", "planted", "control", "answer_kind", "allow_unread")
    return {
        **{name: getattr(args, name) for name in names},
        "steps_per_checkpoint": args.steps_per_checkpoint or 0,
        "monitors": parse_monitors(args, cache),
    }


@command(
    "measure",
    "measure rollouts of any trainer: JSON lines, Parquet, a Hugging Face dataset, an Inspect log",
    {
        "ROLLOUTS": "a file, a folder or a run directory",
        **ROLLOUTS,
        "--report FILE": "write the page of `glasshouse view` about it as one HTML file",
        "--out FOLDER": "write measures.json here",
        **JSON,
    },
    "Scores every rollout with monitors and prints each measure that the columns allow, with interval, "
    "null and ceiling, or the reason why it is undefined. The columns of TRL, verl, verifiers and Inspect are "
    "recognised; other columns are mapped to fields with --map. Labels that were given in `glasshouse view` are the "
    "behaviour, unless the file says what it is. docs/measure.md explains fields and measures.",
    examples=[
        "glasshouse measure rollouts.jsonl --map label=hacked arm=condition --monitor 'rule:hint=(?i)hint'",
        "glasshouse measure outputs/completions --steps-per-checkpoint 50",
        "glasshouse measure log.eval --map arm=metadata.arm group=metadata.problem --report log.html",
    ],
)
def _measure(args: argparse.Namespace) -> None:
    from glasshouse.files import check_output_file, check_output_folder, write_json
    from glasshouse.measurement.file import RolloutFile, measure
    from glasshouse.terminal import make_console
    from glasshouse.view.measured import summarize_measures
    from glasshouse.view.report import write_report
    from glasshouse.view.terminal_tables import print_measures

    if args.out:
        check_output_folder("--out", Path(args.out))  # before minutes of measuring
    if args.report:
        check_output_file("--report", Path(args.report), [".html"])
    options = rollout_options(args, Path(args.out or ".glasshouse") / "judge")
    file = RolloutFile(args.rollouts, **options)
    report = measure(file)
    if args.out:
        write_json(Path(args.out) / "measures.json", report.as_dict())
    if args.report:
        write_report(file, out=args.report)
    if args.json:
        print_json(report.as_dict())
        return
    print_measures(make_console(), summarize_measures(report))
    if args.report:
        print_safe(f"report  {args.report}")
