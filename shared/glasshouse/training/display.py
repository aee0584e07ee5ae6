"""What is printed while a run trains: a progress bar, messages, and a table at the end.

On a terminal the bar shows progress, the reward and the time left. In a pipe a line is printed every `log_every`
steps, and one whenever nothing else was printed for HEARTBEAT_SECONDS.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from glasshouse.config.schema import Config
from glasshouse.measurement.reading import Reading, describe_reading
from glasshouse.measurement.registry import HEADLINE_ACCURACY, headline_accuracy, lookup
from glasshouse.models.chat_template import describe_system_message
from glasshouse.rollout.collector import Group
from glasshouse.runs.rollout_log import LogSize
from glasshouse.tasks.base import Task
from glasshouse.terminal import (
    Heartbeat,
    count_noun,
    format_duration,
    shell_command,
    shows_bars,
    terminal_safe,
)

if TYPE_CHECKING:
    from glasshouse.models.policy import Policy


class Display:
    """Receives every event of a run and ignores it. Programs and tests use it as it is."""

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *error: object) -> None: ...
    def start(self, config: Config, path: Path, policy: Policy, task: Task[Any]) -> None: ...
    def evaluating(self, step: int) -> None: ...
    def evaluated(self, step: int, results: dict[str, Any]) -> None: ...
    def step(self, row: dict[str, Any], groups: list[Group]) -> None: ...
    def warn(self, message: str, kind: str = "") -> None: ...
    def log(self, message: str) -> None: ...
    def print(self, text: str, style: str = "", stamp: str = "") -> None: ...
    def resumed(self, step: int, path: Path) -> None: ...
    def end(self, summary: dict[str, Any]) -> None: ...


class TerminalDisplay(Display):
    """Prints to a console. `verbose` adds one completion of every step.

    Lines are never wrapped, so that a command can be pasted, and texts of users and models are escaped.
    """

    def __init__(self, console: Console | None = None, verbose: bool = False) -> None:
        self.console = console or Console(highlight=False, emoji=False)
        self.verbose = verbose
        self.progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[line]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=self.console,
            disable=not shows_bars(self.console),
        )
        self.status = "starting"
        """What the run is doing; printed by the heartbeat."""
        self.heartbeat = Heartbeat(lambda: self.log(self.status))

    def start(self, config: Config, path: Path, policy: Policy, task: Task[Any]) -> None:
        size = task.size()
        space = "unbounded problem space" if size is None else count_noun(size, "problem")
        self.config = config
        self.print(
            f"{config.task.name} ({config.task.style.value}, {space}), {config.learn.algorithm} on {config.model} "
            f"({policy.model.num_parameters():,} parameters), seed {config.seed}",
            "bold",
        )
        if disclosure := policy.card.get("packaged_model", {}).get("disclosure"):
            self.print(f"note: {disclosure}", "dim")
        if found := task.describe():
            self.print(found, "dim")
        elif options := config.task.options:
            text = ", ".join(f"{name} {value}" for name, value in options.items())
            trained = policy.card.get("task_options", {}).get(config.task.name, {})
            if options == trained.get(config.task.style.value):
                text += f" (what {config.model} was trained on; set task.options.NAME=… for others)"
            self.print(f"task options: {text}", "dim")
        if effect := describe_system_message(policy.tokenizer, policy.chat):
            command = shell_command(
                ["glasshouse", "tasks", config.task.name, "--model", config.model]
            )
            note = f"note: the chat template of {config.model} {effect}"
            self.print(f"{note} ({command} shows the prompt)", "dim")
        problems = count_noun(config.data.groups_per_step, "problem")
        samples = count_noun(config.generate.group_size, "sample")
        self.print(f"{count_noun(config.steps, 'step')} of {problems} × {samples} → {path}", "dim")
        self.bar = self.progress.add_task("train", total=config.steps, line="")

    def __enter__(self) -> TerminalDisplay:
        self.progress.start()
        if not shows_bars(self.console):
            self.heartbeat.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.heartbeat.stop()
        self.progress.stop()

    def evaluating(self, step: int) -> None:
        self.progress.update(self.bar, description="evaluate")
        self.status = f"step {step:>4}  evaluating"

    def evaluated(self, step: int, results: dict[str, Any]) -> None:
        self.progress.update(self.bar, description="train")
        self.status = f"step {step:>4}  training"
        self._print_stamped(
            f"step {step:>4}  held-out {format_accuracies(results)}"
            + format_behaviour(results.get("organism", {}))
            + format_unread(results["reading"])
        )

    def step(self, row: dict[str, Any], groups: list[Group]) -> None:
        line = f"reward {row['reward']:+.2f}  correct {row['accuracy']:.0%}  length {row['length']:.0f}"
        self.progress.update(self.bar, completed=row["step"], line=line)
        self.status = f"step {row['step']:>4}  {line}"
        has_lines = self.verbose or not shows_bars(self.console)
        is_printed = has_lines and self.config.log_every and self.config.logs_step(row["step"])
        if is_printed and self.verbose:
            first = groups[0][0]
            extracted = first.grade.extracted
            self._print_stamped(self.status, "bold")
            self.print(first.problem.question, "dim")
            self.print(first.text)
            self.print(
                f"{'correct' if first.grade.correct else 'wrong'}: {extracted.model_answer} (rule "
                f"{extracted.rule.value}), reference answer {first.problem.gold_answer}, reward "
                f"{first.grade.reward:+.2f}\n",
                "green" if first.grade.correct else "red",
            )
        elif is_printed:
            self.log(self.status)

    def warn(self, message: str, kind: str = "") -> None:
        self._print_stamped(message, "yellow")

    def log(self, message: str) -> None:
        self._print_stamped(message, "dim")

    def resumed(self, step: int, path: Path) -> None:
        self.print(
            f"Resuming after step {step} from {path.parent.name}/{path.name}; "
            "the rollout log is truncated to that step."
        )
        self.progress.update(self.bar, completed=step)

    def end(self, summary: dict[str, Any]) -> None:
        before, after, run = summary.get("before"), summary.get("after"), summary["run"]
        if before and after:
            self.console.print(results_table(before=before, after=after))
            for line in reading_lines(after):
                self.print(line)
        elif "interrupted_at" in summary:
            self.print(
                f"Interrupted after step {summary['interrupted_at']}, which is saved. To resume, repeat "
                f"the command or run: {shell_command(['glasshouse', 'resume', run])}"
            )
        duration = format_duration(summary["seconds"])
        for line in (
            f"{count_noun(summary['steps_done'], 'step')} in {duration}",
            f"files        {run}  (NOTES.md, results/curves.svg, metrics.jsonl, rollouts.jsonl.zst)",
            f"rollout log  {LogSize(**summary['rollout_log'])}",
            f"checkpoint   {summary['checkpoint']}",
            f"next         {shell_command(['glasshouse', 'eval', summary['checkpoint']])}",
            f"             {shell_command(['glasshouse', 'rollouts', run])}",
        ):
            self.print(line)

    def print(self, text: str, style: str = "", stamp: str = "") -> None:
        """Print one line."""
        line = Text.assemble((stamp, "dim"), (terminal_safe(text), style))
        self.console.print(line, soft_wrap=True)
        self.heartbeat.postpone()

    def _print_stamped(self, message: str, style: str = "") -> None:
        """Print a line with the time of day."""
        self.print(message, style, time.strftime("%H:%M:%S  "))


def startup_banner(
    path: Path, step: int, config: Config, device: str, environment: Mapping[str, str] = os.environ
) -> str:
    """Return the first line of a container, whose image sets GLASSHOUSE_EXPERIMENT and GLASSHOUSE_REVISION;
    an empty string elsewhere.

    Example: `ready: example.rl at 350c5d1d4f0a, cpu (1 thread), /runs/example.rl (mounted volume),
    resuming after step 20 of 60`
    """
    experiment = environment.get("GLASSHOUSE_EXPERIMENT")
    if not experiment:
        return ""
    revision = environment.get("GLASSHOUSE_REVISION", "unknown")
    resolved, steps = path.resolve(), config.steps
    mounts = [p for p in (resolved, *resolved.parents) if p != p.parent and os.path.ismount(p)]
    storage = "mounted volume" if mounts else "NOT on a volume: lost when the container is removed"
    start = f"resuming after step {step} of {steps}" if step else f"starting, {steps} steps"
    threads = count_noun(config.threads, "thread")
    return f"ready: {experiment} at {revision}, {device} ({threads}), {path} ({storage}), {start}"


def format_behaviour(organism: dict[str, Any]) -> str:
    """Return an organism's results in a few words; an empty string for other tasks."""
    if not organism:
        return ""
    text = f"  planted behaviour {organism['behaviour']:.0%}"
    disclosure = organism.get("disclosure_rule", {}).get("disclosure")
    return text if disclosure is None else f"{text}, disclosed {disclosure:.0%}"


def format_unread(reading: Mapping[str, Any]) -> str:
    """Return the unread answers and cut completions in a few words; an empty string if there are none."""
    counts = {"unread": reading["answers"], "cut": reading["ended"]}
    return "".join(f"; {reading[k]:,} of {n:,} {k}" for k, n in counts.items() if reading[k])


def format_accuracies(results: dict[str, Any]) -> str:
    """Return the headline accuracy with its interval, and the greedy one beside it."""
    keys = dict.fromkeys((headline_accuracy(results), "accuracy"))
    return "; ".join(f"{lookup(key).label} {format_rate(results, key)}" for key in keys)


def reading_lines(results: Mapping[str, Any]) -> list[str]:
    """Return what could not be read in an evaluation; nothing for one of an older run."""
    if "reading" not in results:
        return []
    return describe_reading(Reading(**results["reading"]))


def results_table(**evaluations: dict[str, Any]) -> Table:
    """Return a table of evaluations with intervals, a column each.

    Example: `results_table(before=summary["before"], after=summary["after"])`
    """
    problems = [results["problems"] for results in evaluations.values()]
    title = count_noun(problems[-1], "held-out problem")
    table = Table(title=title, title_justify="left", show_header=len(problems) > 1)
    table.add_column("")
    for name in evaluations:
        table.add_column(name, justify="right")
    for cells in zip(*map(_rows, evaluations.values()), strict=False):
        table.add_row(cells[0][0], *(value for _, value in cells))
    return table


def _rows(results: dict[str, Any]) -> list[tuple[str, str]]:
    """Sampled accuracy first, then the greedy one and its parsers; by level, the sampled one."""
    keys = [
        key for key in ("pass_at_1", "accuracy", "lenient", "strict", "format") if key in results
    ]
    rows = [(lookup(key).label, format_rate(results, key)) for key in keys]
    for key in results:
        if re.fullmatch(r"pass_at_(?!1$)\d+", key):
            rows.append((lookup(key).label, f"{results[key]:.3f}"))
    rows.append((lookup("length").label_with_unit, f"{results['length']:.1f}"))
    headline = headline_accuracy(results)
    for level, rates in results.get("levels", {}).items():
        if not level:
            continue
        kind = "sampled" if headline == HEADLINE_ACCURACY else "greedy"
        label = f"  {level} ({rates['problems']:,}), {kind}"
        rows.append((escape(terminal_safe(label)), format_rate(rates, headline_accuracy(rates))))
    return rows


def format_rate(results: dict[str, Any], key: str) -> str:
    """Return a rate with its interval: `0.930 (0.89–0.96)`."""
    if f"{key}_low" not in results:
        return f"{results[key]:.3f}"
    return f"{results[key]:.3f} ({results[f'{key}_low']:.2f}–{results[f'{key}_high']:.2f})"
