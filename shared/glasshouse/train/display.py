"""What is printed while a run trains: a progress bar, messages, and a table at the end.

On a terminal the bar shows progress and the time left; in a pipe only messages and results are printed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from glasshouse.config import Config
from glasshouse.models import Policy
from glasshouse.rollout import Group
from glasshouse.store import LogSize
from glasshouse.tasks import Task
from glasshouse.train.startup_banner import startup_banner


class Display:
    """Receives every event of a run and ignores it. Programs and tests use it as it is."""

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *error: object) -> None: ...
    def start(self, config: Config, path: Path, policy: Policy, task: Task[Any]) -> None: ...
    def evaluating(self, step: int) -> None: ...
    def evaluated(self, step: int, results: dict[str, Any]) -> None: ...
    def step(self, row: dict[str, Any], groups: list[Group]) -> None: ...
    def warn(self, message: str) -> None: ...
    def say(self, message: str) -> None: ...
    def resumed(self, step: int, path: Path) -> None: ...
    def ready(self, config: Config, path: Path, policy: Policy, step: int) -> None: ...
    def tracked(self, urls: dict[str, str]) -> None: ...
    def finished_before(self, summary: dict[str, Any]) -> None: ...
    def stopping(self) -> None: ...
    def forced_stop(self, saved_step: int) -> None: ...
    def end(self, summary: dict[str, Any]) -> None: ...


QuietDisplay = Display


class TerminalDisplay(Display):
    """Prints to a console. `verbose` adds one completion of every step."""

    def __init__(self, console: Console | None = None, verbose: bool = False) -> None:
        self.console = console or Console(highlight=False)
        self.verbose = verbose
        self.progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[line]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=self.console,
            disable=not self.console.is_terminal,
        )

    def start(self, config: Config, path: Path, policy: Policy, task: Task[Any]) -> None:
        size = task.size()
        space = f"{size:,} problems" if size is not None else "unbounded problem space"
        self.console.print(
            f"[bold]{config.task.name}[/] ({config.task.style.value}, {space}), "
            f"[bold]{config.learn.algorithm}[/] on [bold]{escape(config.model)}[/] "
            f"({policy.model.num_parameters():,} parameters), seed {config.seed}"
        )
        if config.task.options:
            options = ", ".join(f"{name} {value}" for name, value in config.task.options.items())
            self.console.print(f"[dim]task options: {escape(options)}[/]")
        self.console.print(
            f"[dim]{config.steps} steps of {config.data.groups_per_step} problems × "
            f"{config.generate.group_size} samples → {escape(str(path))}[/]"
        )
        self.bar = self.progress.add_task("train", total=config.steps, line="")

    def __enter__(self) -> TerminalDisplay:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def evaluating(self, step: int) -> None:
        self.progress.update(self.bar, description="evaluate")

    def evaluated(self, step: int, results: dict[str, Any]) -> None:
        self.progress.update(self.bar, description="train")
        self.progress.console.print(
            f"step {step:>4}  held-out accuracy {format_rate(results, 'accuracy')}"
            + format_behaviour(results.get("organism", {}))
        )

    def step(self, row: dict[str, Any], groups: list[Group]) -> None:
        line = f"reward {row['reward']:+.2f}  correct {row['accuracy']:.0%}  length {row['length']:.0f}"
        self.progress.update(self.bar, completed=row["step"], line=line)
        if self.verbose:
            first = groups[0][0]
            mark = "[green]correct[/]" if first.grade.correct else "[red]wrong[/]"
            self.progress.console.print(
                f"[bold]step {row['step']}[/]  {line}\n[dim]{escape(first.problem.question)}[/]\n"
                f"{escape(first.text)}\n{mark}: {escape(str(first.grade.extracted.value))} "
                f"(rule {first.grade.extracted.rule.value}), "
                f"reference answer {escape(first.problem.answer)}, reward {first.grade.reward:+.2f}\n"
            )

    def warn(self, message: str) -> None:
        self.progress.console.print(f"[yellow]{escape(message)}[/]")

    def say(self, message: str) -> None:
        self.progress.console.print(f"[dim]{escape(message)}[/]")

    def resumed(self, step: int, path: Path) -> None:
        self.console.print(
            f"Resuming after step {step} from {path.parent.name}/{path.name}; "
            "the rollout log is truncated to that step."
        )
        self.progress.update(self.bar, completed=step)

    def ready(self, config: Config, path: Path, policy: Policy, step: int) -> None:
        if line := startup_banner(
            path, step, config.steps, str(policy.model.device), config.threads
        ):
            self.console.print(escape(line), soft_wrap=True)

    def tracked(self, urls: dict[str, str]) -> None:
        for name, url in urls.items():
            self.console.print(f"tracked by {name}: {escape(url)}", soft_wrap=True)

    def finished_before(self, summary: dict[str, Any]) -> None:
        self.console.print(
            f"{escape(summary['run'])} is already finished. Its results:", soft_wrap=True
        )
        self.end(summary)

    def stopping(self) -> None:
        self.warn("Stopping: saving a checkpoint. Press Ctrl-C again to stop at once.")

    def forced_stop(self, saved_step: int) -> None:
        state = (
            f"the checkpoint of step {saved_step} is intact"
            if saved_step >= 0
            else "there was no checkpoint yet"
        )
        self.warn(f"Stopped at once: {state}. Repeat the command to resume.")

    def end(self, summary: dict[str, Any]) -> None:
        before, after = summary.get("before"), summary.get("after")
        if before and after:
            self.console.print(comparison_table(before, after))
        elif "interrupted_at" in summary:
            self.console.print(
                f"Interrupted after step {summary['interrupted_at']}, which is saved. To resume, repeat the "
                f"command or run: glasshouse resume {escape(summary['run'])}",
                soft_wrap=True,
            )
        minutes, seconds = divmod(round(summary["seconds"]), 60)
        checkpoint = escape(summary["checkpoint"])
        for line in (
            f"{summary['steps_done']} steps in {minutes}:{seconds:02d} min",
            f"files        {escape(summary['run'])}  (results/summary.json, metrics.jsonl, rollouts/)",
            f"rollout log  {LogSize(**summary['rollout_log'])}  (read it with: glasshouse rollouts)",
            f"checkpoint   {checkpoint}",
            f"next         glasshouse eval {checkpoint} --task {summary['task']} --style {summary['style']}",
        ):
            self.console.print(line, soft_wrap=True)


def format_behaviour(organism: dict[str, Any]) -> str:
    """Return an organism's results in a few words; an empty string for other tasks."""
    if not organism:
        return ""
    text = f"  planted behaviour {organism['behaviour']:.0%}"
    disclosure = organism.get("disclosure_rule", {}).get("disclosure")
    return text if disclosure is None else f"{text}, disclosed {disclosure:.0%}"


def comparison_table(before: dict[str, Any], after: dict[str, Any]) -> Table:
    """Return a table of two evaluations with intervals."""
    table = Table(title=f"{after['problems']} held-out problems", title_justify="left")
    table.add_column("")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    for (label, old), (_, new) in zip(_rows(before), _rows(after), strict=False):
        table.add_row(label, old, new)
    return table


def results_table(results: dict[str, Any]) -> Table:
    """Return a table of one evaluation with intervals."""
    title = f"{results['problems']} held-out problems"
    table = Table(title=title, title_justify="left", show_header=False)
    for label, value in _rows(results):
        table.add_row(label, value)
    return table


def _rows(results: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("accuracy, greedy", format_rate(results, "accuracy")),
        ("  lenient parser", format_rate(results, "lenient")),
        ("  strict parser", format_rate(results, "strict")),
        ("format", format_rate(results, "format")),
    ]
    for key in results:
        if key.startswith("pass_at_"):
            rows.append((f"pass@{key.removeprefix('pass_at_')}, sampled", f"{results[key]:.3f}"))
    rows.append(("length, tokens", f"{results['length']:.1f}"))
    for level, rates in results["levels"].items():
        rows.append((f"  {level} ({rates['problems']})", format_rate(rates, "accuracy")))
    return rows


def format_rate(results: dict[str, Any], key: str) -> str:
    """Return a rate with its interval: `0.930 (0.89–0.96)`."""
    return f"{results[key]:.3f} ({results[f'{key}_low']:.2f}–{results[f'{key}_high']:.2f})"
