"""`glasshouse monitor`, `control` and `grade`: monitorability, a check of the pipeline, the parser."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glasshouse.cli.parser import add_command, add_config_files, add_json, add_run_directory

if TYPE_CHECKING:
    from glasshouse.monitors import Monitor


def add_commands(commands: Any) -> None:
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
    more.add_argument("--judge", metavar="URL", help="an OpenAI-compatible endpoint, up to /v1")
    more.add_argument("--judge-model", default="", metavar="NAME", help="the judge's model name")
    more.add_argument(
        "--judge-key", default="", metavar="VARIABLE", help="environment variable with the API key"
    )
    more.add_argument(
        "--behaviour", default="", help="the behaviour that the judge looks for, one sentence"
    )

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


def _monitor(args: argparse.Namespace) -> None:
    from rich.console import Console

    from glasshouse.evaluation.monitor_progress import MonitorProgressBar
    from glasshouse.evaluation.monitor_run import monitor_run
    from glasshouse.report.monitor_table import gmean_lines, monitor_table
    from glasshouse.store.verify import load_verified_config
    from glasshouse.text import shell_command, terminal_safe

    run = Path(args.run_directory)
    load_verified_config(run)  # raises if this is not a run directory
    monitors = _make_monitors(args, run)
    console = Console(highlight=False, emoji=False, stderr=args.json)
    with MonitorProgressBar(console) as bar:
        results = monitor_run(
            run,
            problems=args.problems,
            greedy=args.greedy,
            monitors=monitors,
            only_ends=args.ends,
            progress=bar,
            out=Path(args.out) if args.out else None,
        )
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


def _make_monitors(args: argparse.Namespace, run: Path) -> list[Monitor]:
    """The monitors of --rule, --saved and --judge."""
    from glasshouse.errors import MonitorError
    from glasshouse.monitors import Endpoint, JudgeMonitor, RuleMonitor, Scope, load_monitor

    monitors: list[Monitor] = []
    for rule in args.rule:
        name, equals, pattern = rule.partition("=")
        if not (name and equals and pattern):
            raise MonitorError(f'--rule takes NAME=PATTERN, as in guess="(?i)guess"; got {rule!r}.')
        monitors.append(RuleMonitor(name, Scope.COT, patterns=[pattern]))
    monitors += [load_monitor(Path(folder)) for folder in args.saved]
    if args.judge:
        endpoint = Endpoint(url=args.judge, model=args.judge_model, key_variable=args.judge_key)
        cache = (Path(args.out) if args.out else run / "results") / "judge"
        monitors.append(
            JudgeMonitor("judge", Scope.COT_ANSWER, endpoint, behaviour=args.behaviour, cache=cache)
        )
    return monitors


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
    from glasshouse import tasks
    from glasshouse.rewards import explain_grade
    from glasshouse.text import terminal_safe
    from glasshouse.types import Problem

    text = args.text if args.text is not None else sys.stdin.read()
    problem = Problem(
        task=args.task, key="given", question="", answer=args.answer,
        kind=tasks.make_task(args.task).kind, decimals=args.decimals,
    )  # fmt: skip
    print(terminal_safe(explain_grade(problem, text)))
