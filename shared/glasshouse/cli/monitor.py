"""`glasshouse monitor` and `glasshouse report`: can it still be read, and a page that shows it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glasshouse.monitors import Monitor


def add(commands: Any) -> None:
    """Hang both commands into the command line."""
    monitor = commands.add_parser(
        "monitor",
        help="how readable is the chain of thought, from the base to the last checkpoint?",
        description="The base and every valid checkpoint of a run: interventions on the same rollouts and "
        "monitors, on held-out problems. Writes results/monitor.json and monitor_rows.jsonl.zst. Killed, "
        "the same command goes on; what is measured already is not measured again.",
    )
    monitor.add_argument("directory", metavar="RUN", help="the run's directory")
    monitor.add_argument("--problems", type=int, metavar="N", help="held-out problems (200)")
    monitor.add_argument(
        "--greedy", action="store_true", help="measure greedy rollouts, not sampled ones"
    )
    monitor.add_argument(
        "--ends", action="store_true", help="only the base and the last checkpoint"
    )
    monitor.add_argument("--json", action="store_true", help="print JSON for programs")
    more = monitor.add_argument_group("more monitors, beside those that fit the task")
    more.add_argument(
        "--rule",
        action="append",
        default=[],
        metavar="NAME=PATTERN",
        help="flags what the CoT says",
    )
    more.add_argument(
        "--saved",
        action="append",
        default=[],
        metavar="FOLDER",
        help="a saved n-gram monitor or probe",
    )
    more.add_argument("--judge", metavar="URL", help="an OpenAI-compatible endpoint, up to /v1")
    more.add_argument("--judge-model", default="", metavar="NAME")
    more.add_argument(
        "--judge-key", default="", metavar="VARIABLE", help="the environment variable with its key"
    )
    more.add_argument("--behaviour", default="", help="what the judge is to look for, a sentence")
    monitor.set_defaults(run=_monitor)

    report = commands.add_parser(
        "report",
        help="one self-contained HTML page about a run, or several side by side",
        description="Verdict, before and after, curves, readability, examples, configuration, how to "
        "reproduce. Several runs: arms and seeds side by side, the mean with a band over seeds.",
    )
    report.add_argument("runs", nargs="+", metavar="RUN", help="run directories")
    report.add_argument("--out", help="the file to write (RUN/results/report.html)")
    report.set_defaults(run=_report)


def _monitor(args: argparse.Namespace) -> int:
    from rich.console import Console

    from glasshouse.evaluation.monitor_progress import Bar
    from glasshouse.evaluation.monitor_run import monitor
    from glasshouse.report.monitor_table import gmeans, table
    from glasshouse.store.run_directory import config_of

    run = Path(args.directory)
    config_of(run)  # a folder that is no run is said first
    more = _more(args, run)
    console = Console(highlight=False, stderr=args.json)
    with Bar(console) as bar:
        found = monitor(
            run,
            problems=args.problems,
            greedy=args.greedy,
            monitors=more,
            ends=args.ends,
            watcher=bar,
        )
    if args.json:
        print(json.dumps(found, indent=1, sort_keys=True))
        return 0
    console.print(table(found))
    for line in gmeans(found):
        console.print(line, markup=False)
    console.print(found["verdict"])
    console.print(f"files   {run / 'results'}  (monitor.json, monitor_rows.jsonl.zst)")
    console.print(f"next    glasshouse report {run}")
    return 0


def _more(args: argparse.Namespace, run: Path) -> list[Monitor]:
    """The monitors that were asked for by option."""
    from glasshouse.errors import MonitorError
    from glasshouse.monitors import Endpoint, JudgeMonitor, RuleMonitor, Scope, saved

    found: list[Monitor] = []
    for rule in args.rule:
        name, equals, pattern = rule.partition("=")
        if not (name and equals and pattern):
            raise MonitorError(f'--rule takes NAME=PATTERN, as in guess="(?i)guess"; got {rule!r}.')
        found.append(RuleMonitor(name, Scope.COT, patterns=[pattern]))
    found += [saved(Path(folder)) for folder in args.saved]
    if args.judge:
        endpoint = Endpoint(url=args.judge, model=args.judge_model, key_env=args.judge_key)
        cache = run / "results" / "judge"
        found.append(
            JudgeMonitor("judge", Scope.COT_ANSWER, endpoint, behaviour=args.behaviour, cache=cache)
        )
    return found


def _report(args: argparse.Namespace) -> int:
    from glasshouse.report.run_page import write

    print(write([Path(run) for run in args.runs], Path(args.out) if args.out else None))
    return 0
