"""What a person sees of a run: a live line while it trains, a table at the end.

On a terminal the line carries progress and time left; in a pipe only what matters is printed.
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
from glasshouse.rollout.collector import Group
from glasshouse.store import Storage
from glasshouse.tasks import Task
from glasshouse.train.startup_banner import health


class Display:
    """Every event of a run, ignored: what tests and programs use, and the base of what people see."""

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *error: object) -> None: ...
    def start(self, config: Config, path: Path, policy: Policy, task: Task[Any]) -> None: ...
    def evaluating(self, step: int) -> None: ...
    def evaluated(self, step: int, found: dict[str, Any]) -> None: ...
    def step(self, row: dict[str, Any], groups: list[Group]) -> None: ...
    def warn(self, sentence: str) -> None: ...
    def say(self, sentence: str) -> None: ...
    def resumed(self, step: int, path: Path) -> None: ...
    def ready(self, config: Config, path: Path, policy: Policy, step: int) -> None: ...
    def tracked(self, looks: dict[str, str]) -> None: ...
    def finished_before(self, summary: dict[str, Any]) -> None: ...
    def stopping(self) -> None: ...
    def too_late(self, saved: int) -> None: ...
    def end(self, summary: dict[str, Any]) -> None: ...


Quiet = Display


class Terminal(Display):
    """For people. `verbose` shows a completion of every step."""

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
        space = f"{size:,} problems" if size is not None else "an unbounded space"
        self.console.print(
            f"[bold]{config.task.name}[/] ({config.task.style.value}, {space}), "
            f"[bold]{config.learn.algorithm}[/] on [bold]{config.model}[/] "
            f"({policy.model.num_parameters():,} parameters), seed {config.seed}"
        )
        if config.task.options:
            shown = ", ".join(f"{k} {v}" for k, v in config.task.options.items())
            self.console.print(f"[dim]range: {escape(shown)}[/]")
        self.console.print(f"[dim]{config.steps} steps of {config.data.groups_per_step} problems × "
                           f"{config.generate.group_size} samples → {path}[/]")  # fmt: skip
        self.bar = self.progress.add_task("train", total=config.steps, line="")

    def __enter__(self) -> Terminal:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def evaluating(self, step: int) -> None:
        self.progress.update(self.bar, description="evaluate")

    def evaluated(self, step: int, found: dict[str, Any]) -> None:
        self.progress.update(self.bar, description="train")
        self.progress.console.print(
            f"step {step:>4}  held-out accuracy {interval(found, 'accuracy')}"
            + planted(found.get("organism", {}))
        )

    def step(self, row: dict[str, Any], groups: list[Group]) -> None:
        line = (
            f"reward {row['reward']:+.2f}  right {row['accuracy']:.0%}  length {row['length']:.0f}"
        )
        self.progress.update(self.bar, completed=row["step"], line=line)
        if self.verbose:
            first = groups[0][0]
            mark = "[green]right[/]" if first.grade.correct else "[red]wrong[/]"
            rule = first.grade.extracted.rule.value
            self.progress.console.print(
                f"[bold]step {row['step']}[/]  {line}\n[dim]{escape(first.problem.question)}[/]\n"
                f"{escape(first.text)}\n{mark}: {escape(str(first.grade.extracted.value))} "
                f"(rule {rule}), gold {escape(first.problem.answer)}, reward {first.grade.reward:+.2f}\n"
            )

    def warn(self, sentence: str) -> None:
        self.progress.console.print(f"[yellow]{escape(sentence)}[/]")

    def say(self, sentence: str) -> None:
        self.progress.console.print(f"[dim]{escape(sentence)}[/]")

    def resumed(self, step: int, path: Path) -> None:
        self.console.print(
            f"Going on after step {step}, from {path.parent.name}/{path.name}; "
            "the record is cut back to that step."
        )
        self.progress.update(self.bar, completed=step)

    def ready(self, config: Config, path: Path, policy: Policy, step: int) -> None:
        if line := health(path, step, config.steps, str(policy.model.device), config.threads):
            self.console.print(escape(line), soft_wrap=True)

    def tracked(self, looks: dict[str, str]) -> None:
        for name, look in looks.items():
            self.console.print(f"tracked by {name}: {escape(look)}", soft_wrap=True)

    def finished_before(self, summary: dict[str, Any]) -> None:
        self.console.print(f"{summary['run']} has come to its end already; this is what it found.")
        self.end(summary)

    def stopping(self) -> None:
        self.warn("Stopping: saving what is done. Once more to stop at once.")

    def too_late(self, saved: int) -> None:
        what = (
            f"the checkpoint of step {saved} stands"
            if saved >= 0
            else "there was no checkpoint yet"
        )
        self.warn(f"Stopped at once: {what}. The same command goes on from there.")

    def end(self, summary: dict[str, Any]) -> None:
        before, after = summary.get("before"), summary.get("after")
        if before and after:
            self.console.print(comparison(before, after))
        elif "interrupted_at" in summary:
            self.console.print(
                f"Interrupted after step {summary['interrupted_at']}, which is saved; the same command, or "
                f"glasshouse resume {summary['run']}, goes on from there."
            )
        minutes, seconds = divmod(round(summary["seconds"]), 60)
        self.console.print(f"{summary['steps_done']} steps in {minutes}:{seconds:02d} min")
        self.console.print(
            f"files   {summary['run']}  (results/summary.json, metrics.jsonl, rollouts/)"
        )
        self.console.print(
            f"record  {Storage(**summary['record'])}  (glasshouse rollouts reads it)"
        )
        self.console.print(f"model   {summary['checkpoint']}")
        self.console.print(
            f"next    glasshouse eval {summary['checkpoint']} --task {summary['task']} --style {summary['style']}"
        )


def planted(organism: dict[str, Any]) -> str:
    """An organism's evaluation in a few words; nothing for other tasks."""
    if not organism:
        return ""
    told = f"  planted behaviour {organism['behaviour']:.0%}"
    disclosure = organism.get("discloses", {}).get("disclosure")
    return told if disclosure is None else f"{told}, disclosed {disclosure:.0%}"


def comparison(before: dict[str, Any], after: dict[str, Any]) -> Table:
    """Before and after, with intervals."""
    table = Table(title=f"{after['problems']} held-out problems", title_justify="left")
    table.add_column("")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    for label, key in (
        ("accuracy, greedy", "accuracy"),
        ("  strict reading", "strict"),
        ("format", "format"),
    ):
        table.add_row(label, interval(before, key), interval(after, key))
    for key in before:
        if key.startswith("pass_at_"):
            label = f"pass@{key.removeprefix('pass_at_')}, sampled"
            table.add_row(label, f"{before[key]:.3f}", f"{after[key]:.3f}")
    table.add_row("length, tokens", f"{before['length']:.1f}", f"{after['length']:.1f}")
    for level in before["levels"]:
        table.add_row(
            f"  {level}",
            interval(before["levels"][level], "accuracy"),
            interval(after["levels"][level], "accuracy"),
        )
    return table


def scores(found: dict[str, Any]) -> Table:
    """One evaluation, with intervals."""
    table = Table(
        title=f"{found['problems']} held-out problems", title_justify="left", show_header=False
    )
    for label, key in (("accuracy, greedy", "accuracy"), ("  lenient reading", "lenient"),
                       ("  strict reading", "strict"), ("format", "format")):  # fmt: skip
        table.add_row(label, interval(found, key))
    for key in found:
        if key.startswith("pass_at_"):
            table.add_row(f"pass@{key.removeprefix('pass_at_')}, sampled", f"{found[key]:.3f}")
    table.add_row("length, tokens", f"{found['length']:.1f}")
    for level, rates in found["levels"].items():
        table.add_row(f"  {level} ({rates['problems']})", interval(rates, "accuracy"))
    return table


def interval(found: dict[str, Any], key: str) -> str:
    """`0.930 (0.89–0.96)`"""
    return f"{found[key]:.3f} ({found[f'{key}_low']:.2f}–{found[f'{key}_high']:.2f})"
