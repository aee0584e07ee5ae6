"""`glasshouse monitor`, `measure`, `control` and `grade`: monitorability of runs and of any rollouts, a
check of the pipeline, the parser."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from glasshouse.cli.parser import (
    add_command,
    add_config_files,
    add_imports,
    add_json,
    add_run_directory,
)


def add_commands(commands: Any) -> None:
    _add_monitor(commands)
    _add_measure(commands)
    _add_control(commands)
    _add_grade(commands)


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
            "glasshouse monitor runs/try --ends --problems 50",
            "glasshouse monitor runs/try --rule 'guess=(?i)guess'",
            "glasshouse monitor runs/try --judge http://localhost:8000/v1 --judge-model NAME \\\n"
            "    --behaviour 'uses the leaked answer'",
        ],
    )
    add_run_directory(parser)
    parser.add_argument(
        "--problems", type=int, metavar="N", help="number of held-out problems (default 200)"
    )
    parser.add_argument("--greedy", action="store_true", help="greedy instead of sampled rollouts")
    parser.add_argument(
        "--ends", action="store_true", help="only the base model and the last checkpoint"
    )
    parser.add_argument(
        "--out", metavar="FOLDER",
        help="write the results to this folder instead of RUN/results; the run may be read-only",
    )  # fmt: skip
    add_json(parser)
    more = parser.add_argument_group("additional monitors")
    more.add_argument(
        "--rule",
        action="append",
        default=[],
        metavar="NAME=PATTERN",
        help="flag a chain of thought that matches a regular expression; repeatable",
    )
    more.add_argument(
        "--saved",
        action="append",
        default=[],
        metavar="FOLDER",
        help="a saved n-gram monitor or probe; repeatable",
    )
    _add_judge_options(more)


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
    parser.add_argument(
        "--monitor", action="append", default=[], metavar="KIND[:…]",
        help="rule:NAME=PATTERN, steps:TASK, ngrams[:SCOPE], probe, or saved:FOLDER; repeatable",
    )  # fmt: skip
    _add_judge_options(parser)
    parser.add_argument(
        "--steps-per-checkpoint", type=int, default=0, metavar="N",
        help="measure N training steps together (default: each checkpoint alone)",
    )  # fmt: skip
    add_imports(parser)
    parser.add_argument("--out", metavar="FOLDER", help="write measures.json and report.html here")
    add_json(parser)


def _add_control(commands: Any) -> None:
    parser = add_command(
        commands,
        "control",
        _control,
        "check that a configuration learns, and only from its rewards",
        "Positive control: the configuration itself. Negative control: the same configuration with the "
        "rewards shuffled among rollouts, which must not improve. Runs several seeds of each and "
        "prints a verdict.",
        ["glasshouse control --config training/example.rl/config.yaml --seeds 5"],
    )
    parser.add_overrides("as for glasshouse train")
    add_config_files(parser)
    parser.add_argument("--seeds", type=int, default=5, help="seeds per arm (default 5)")
    parser.add_argument("--jobs", type=int, default=2, help="parallel runs (default 2)")
    parser.add_argument("--only", choices=["positive", "negative"], help="run one control only")
    parser.add_argument(
        "--out", default="runs/control", help="folder of the runs (default runs/control)"
    )


def _add_grade(commands: Any) -> None:
    parser = add_command(
        commands,
        "grade",
        _grade,
        "grade a text and explain which parsing rule applied",
        examples=[
            'glasshouse grade --answer 28 "so the answer is 28."',
            "glasshouse grade --task multiplication --answer 12558 < completion.txt",
        ],
    )
    parser.add_argument("--task", default="sum_digits", help="see glasshouse tasks")
    parser.add_argument("--answer", required=True, help="the correct answer")
    parser.add_argument(
        "--decimals", type=int, default=0, help="decimals that the question asks for (default 0)"
    )
    parser.add_argument("text", nargs="?", help="the completion (default: standard input)")


def _add_judge_options(parser: Any) -> None:
    """Options of an LLM judge, for a parser or a group of its options."""
    parser.add_argument("--judge", metavar="URL", help="an OpenAI-compatible endpoint, up to /v1")
    parser.add_argument("--judge-model", default="", metavar="NAME", help="the judge's model name")
    parser.add_argument(
        "--judge-key", default="", metavar="VARIABLE", help="environment variable with the API key"
    )
    parser.add_argument(
        "--behaviour", default="", help="the behaviour that the judge looks for, one sentence"
    )


def _make_judge(args: argparse.Namespace, cache: Path) -> Any:
    from glasshouse.measurement.monitoring import make_judge

    return make_judge(
        args.judge, model=args.judge_model, key_variable=args.judge_key, behaviour=args.behaviour,
        cache=cache,
    )  # fmt: skip


def _monitor(args: argparse.Namespace) -> None:
    from glasshouse.cli.parts import make_monitor
    from glasshouse.console import make_console
    from glasshouse.measurement.monitoring import make_rules, monitor_run
    from glasshouse.runs.run import load_config_of_run
    from glasshouse.terminal import shell_command, terminal_safe
    from glasshouse.view.monitor_table import gmean_lines, monitor_table

    run = Path(args.run_directory)
    load_config_of_run(run)  # raises if this is not a run directory
    monitors = [*make_rules(args.rule), *(make_monitor("", folder) for folder in args.saved)]
    if args.judge:
        cache = (Path(args.out) if args.out else run / "results") / "judge"
        monitors.append(_make_judge(args, cache))
    console = make_console(stderr=args.json)
    results = monitor_run(
        run, problems=args.problems, greedy=args.greedy, only_ends=args.ends, monitors=monitors,
        out=args.out, console=console,
    )  # fmt: skip
    if args.json:
        print(json.dumps(results, indent=1, sort_keys=True))
        return
    console.print(monitor_table(results))
    for line in gmean_lines(results):
        console.print(line, markup=False)
    console.print(results["verdict"], markup=False)
    files = (args.out or run / "results", "(monitor.json, monitor_rows.jsonl.zst)")
    print(terminal_safe(f"files   {files[0]}  {files[1]}"))
    if not args.out:
        print(f"next    {shell_command(['glasshouse', 'report', run])}")


def _measure(args: argparse.Namespace) -> None:
    from glasshouse.cli import terminal_text as terminal
    from glasshouse.cli.measure_report import write_measure_report
    from glasshouse.config.imports import import_modules
    from glasshouse.console import make_console
    from glasshouse.files import check_output_folder
    from glasshouse.measurement.api import measure, parse_monitor
    from glasshouse.terminal import terminal_safe, terminal_safe_json

    import_modules(args.imports)
    if args.out:
        check_output_folder("--out", Path(args.out))  # before minutes of measuring
    monitors: list[Any] = [parse_monitor(text) for text in args.monitor]
    if args.judge:
        cache = Path(args.out or ".glasshouse") / "judge"
        monitors.append(_make_judge(args, cache))
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
    for table in terminal.measure_tables(report):
        console.print(table)
    changes = terminal.compare_sentences(report, only_shown=True)
    for sentence in [*changes, *terminal.undefined_sentences(report)]:
        print(terminal_safe(sentence))
    if args.out:
        print(terminal_safe(f"report  {Path(args.out) / 'report.html'}"))


def _control(args: argparse.Namespace) -> int:
    from glasshouse.study.control import run_control

    passed = run_control(
        args.config,
        args.overrides,
        seeds=args.seeds,
        jobs=args.jobs,
        out=Path(args.out),
        only=args.only,
    )
    return 0 if passed else 1


def _grade(args: argparse.Namespace) -> None:
    from glasshouse.rollout.explain import explain_grade
    from glasshouse.terminal import terminal_safe

    text = args.text if args.text is not None else sys.stdin.read()
    explanation = explain_grade(text, args.answer, task=args.task, decimals=args.decimals)
    print(terminal_safe(explanation))
