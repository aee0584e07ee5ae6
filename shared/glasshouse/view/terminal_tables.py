"""Results of a run in the terminal: an overview of its rollouts, one in full, and the table of monitoring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from glasshouse.measurement.registry import lookup, sort_measures
from glasshouse.runs.rows import kind_of
from glasshouse.tasks.answers import split_completion
from glasshouse.terminal import terminal_safe

Row = dict[str, Any]
Estimate = dict[str, Any]
"""A measure of results/monitor.json."""
PLAIN: dict[str, Any] = {"box": None, "pad_edge": False, "header_style": "bold"}
MAX_LINES = 12
"""Lines per split in the overview; more steps than this are merged into ranges."""


@dataclass(slots=True)
class Tally:
    """Totals over the rollouts of one or more steps."""

    rows: int = 0
    correct: int = 0
    reward: float = 0.0
    rules: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.rows + other.rows,
            self.correct + other.correct,
            self.reward + other.reward,
            self.rules + other.rules,
        )


def tally_by_step(rows: Iterable[Row]) -> dict[tuple[str, int], Tally]:
    """Totals by the first part of the split, and by step; rows are not kept in memory."""
    tallies: dict[tuple[str, int], Tally] = {}
    for row in rows:
        tally = tallies.setdefault((kind_of(row["split"]), row["step"]), Tally())
        tally.rows += 1
        tally.correct += row["correct"]
        tally.reward += row["reward"]
        tally.rules[row["rule"]] += 1
    return tallies


def overview_table(tallies: dict[tuple[str, int], Tally]) -> Table:
    """A few lines per kind of rollout: steps, rows, accuracy, reward and parser rules."""
    table = Table(**PLAIN)
    table.add_column("split")
    for name in ("steps", "rows", "correct", "reward"):
        table.add_column(name, justify="right")
    table.add_column("rules")
    for kind in dict.fromkeys(kind for kind, _ in tallies):
        steps = sorted(step for k, step in tallies if k == kind)
        steps_per_line = -(-len(steps) // MAX_LINES)
        for start in range(0, len(steps), steps_per_line):
            some = steps[start : start + steps_per_line]
            total = sum((tallies[kind, step] for step in some), Tally())
            rules = (
                f"{rule} {format_share(count, total.rows)}"
                for rule, count in total.rules.most_common()
            )
            table.add_row(
                kind if start == 0 else "",
                f"{some[0]}–{some[-1]}" if len(some) > 1 else str(some[0]),
                f"{total.rows:,}",
                f"{total.correct / total.rows:.1%}",
                f"{total.reward / total.rows:.3f}",
                ", ".join(rules),
            )
    return table


def format_share(part: int, whole: int) -> str:
    """A percentage that is rounded to 0 % or 100 % only if it is exact."""
    rounded = f"{part / whole:.0%}"
    return "<1%" if rounded == "0%" else ">99%" if rounded == "100%" and part < whole else rounded


def render_rollout(row: Row, prompt: bool = False) -> RenderableType:
    """One rollout: question, CoT, answer, grade and sampling details."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    question = Text(terminal_safe(row["prompt"] if prompt else row["question"]))
    if not prompt:
        question.append(f"  (prompt of {len(row['prompt']):,} characters: --prompt)", style="dim")
    cot, answer = split_cot(row)
    grid.add_row("prompt" if prompt else "question", question)
    if cot.plain.strip():
        grid.add_row("CoT", cot)
    grid.add_row("answer" if answer.plain else "", answer)
    parsed, reason = (terminal_safe(str(row[key])) for key in ("model_answer", "reason"))
    grid.add_row("parsed", Text(f"{parsed} by rule {row['rule']}: {reason}"))
    grid.add_row("gold", Text(terminal_safe(row["gold_answer"])))
    terms = ", ".join(f"{name} {value:.3g}" for name, value in row["terms"].items())
    grid.add_row("reward", Text(f"{row['reward']:.3g}  ({terminal_safe(terms)})"))
    grid.add_row("advantage", Text(f"{row['advantage']:+.3f}"))
    grid.add_row("sampled", Text(_describe_sampling(row)))
    return Panel(grid, title=_heading(row), title_align="left", border_style=_colour(row))


def split_cot(row: Row) -> tuple[Text, Text]:
    """The CoT and the answer after it. The parsed value is highlighted."""
    completion = row["text"]
    low, high = row["span"] or (len(completion), len(completion))
    text = Text()
    text.append(terminal_safe(completion[:low]))
    text.append(terminal_safe(completion[low:high]), style=f"bold {_colour(row)}")
    text.append(terminal_safe(completion[high:]))
    start = len(terminal_safe(completion[: split_completion(completion).answer_start]))
    cot, answer = text[:start], text[start:]
    cot.rstrip()
    return cot, answer


def _heading(row: Row) -> Text:
    return Text(
        f"{row['split']}, step {row['step']}, group {row['group']}, sample {row['sample']}  "
        f"{'✓ correct' if row['correct'] else '✗ wrong'}"
    )


def _colour(row: Row) -> str:
    return "green" if row["correct"] else "red"


def _describe_sampling(row: Row) -> str:
    text = f"{row['length']} tokens, stopped by {row['finish_reason']}, policy version {row['policy_version']}"
    if not row["logprobs"]:
        return f"{text}; tokens were not logged"
    return f"{text}; mean log-probability {sum(row['logprobs']) / row['length']:.3f}"


# --- monitoring ------------------------------------------------------------------------------


def monitor_table(results: dict[str, Any]) -> Table:
    """One row per measure, one column per checkpoint, and the change with its interval. All other
    intervals, nulls and ceilings are in monitor.json and in the report."""
    checkpoints, changes = results["checkpoints"], results["change"]["measures"]
    settings = results["settings"]
    table = Table(
        title=f"{settings['problems']} held-out problems, rollouts {settings['rollouts']}; by checkpoint step",
        title_justify="left",
        padding=(0, 1, 0, 0),
        **PLAIN,
    )
    table.add_column("measure", no_wrap=True)
    for checkpoint in checkpoints:
        name = str(checkpoint["name"] if checkpoint["step"] == 0 else checkpoint["step"])
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("change (95 % interval)", justify="right", no_wrap=True)
    for evaluation, measures in checkpoints[-1]["measures"].items():
        for name in sort_measures(measures):
            if lookup(name).detail:
                continue
            found = (c["measures"].get(evaluation, {}).get(name, {}) for c in checkpoints)
            values = (format_number(estimate.get("value")) for estimate in found)
            label = escape(lookup(f"{evaluation}.{name}").label_with_unit)
            table.add_row(label, *values, format_change(changes.get(name)))
    return table


def format_number(value: float | None, sign: str = "") -> str:
    return "–" if value is None else f"{value:{sign}.{1 if abs(value) >= 10 else 2}f}"


def format_change(estimate: Estimate | None) -> str:
    """`+0.49 (+0.41 to +0.57)`; a dash if undefined."""
    value, low, high = ((estimate or {}).get(name) for name in ("value", "low", "high"))
    shown = format_number(value, "+")
    if value is None or low is None or high is None:
        return shown
    return f"{shown} ({format_number(low, '+')} to {format_number(high, '+')})"
