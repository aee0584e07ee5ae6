"""Results of a run in the terminal: an overview of its rollouts, one in full, and the table of monitoring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from glasshouse.measurement.registry import lookup, sort_measures
from glasshouse.runs.rows import kind_of
from glasshouse.tasks.answers import split_completion
from glasshouse.terminal import count_noun, terminal_safe
from glasshouse.view.run_measures import thin

Row = dict[str, Any]
Estimate = dict[str, Any]
"""A measure of results/monitor.json."""
PLAIN: dict[str, Any] = {"box": None, "pad_edge": False, "header_style": "bold"}
MAX_COLUMNS = 8
"""Checkpoints in a table; of more, evenly spaced ones with the first and the last."""
MAX_LINES = 12
"""Lines per split in the overview; more steps than this are merged into ranges."""


Tally = Counter[Any]
"""Totals over rollouts: rows, correct, reward, and (rule, name) for each rule of the parser."""


def tally_by_step(rows: Iterable[Row]) -> dict[tuple[str, int], Tally]:
    """Totals by the first part of the split, and by step; rows are not kept in memory."""
    tallies: dict[tuple[str, int], Tally] = {}
    for row in rows:
        tally = tallies.setdefault((kind_of(row["split"]), row["step"]), Counter())
        own: dict[Any, Any] = {"rows": 1, "correct": row["correct"], "reward": row["reward"]}
        tally.update({**own, ("rule", row["rule"]): 1})
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
            total: Tally = Counter()
            for step in some:
                total.update(tallies[kind, step])
            count = total["rows"]
            named = [(key[1], n) for key, n in total.most_common() if isinstance(key, tuple)]
            rules = (f"{rule} {format_share(n, count)}" for rule, n in named)
            table.add_row(
                kind if start == 0 else "",
                f"{some[0]}–{some[-1]}" if len(some) > 1 else str(some[0]),
                f"{count:,}",
                f"{total['correct'] / count:.1%}",
                f"{total['reward'] / count:.3f}",
                ", ".join(rules),
            )
    return table


def format_share(part: int, whole: int) -> str:
    """A percentage that is rounded to 0 % or 100 % only if it is exact."""
    rounded = f"{part / whole:.0%}"
    return "<1%" if rounded == "0%" else ">99%" if rounded == "100%" and part < whole else rounded


def render_rollout(row: Row, prompt: bool = False) -> RenderableType:
    """One rollout: question, CoT, answer, grade and sampling details."""
    shown = row["prompt"] if prompt else row["question"]
    hint = "" if prompt else f"  (prompt of {len(row['prompt']):,} characters: --prompt)"
    parts = split_completion(row["text"])
    terms = ", ".join(f"{name} {value:.3g}" for name, value in row["terms"].items())
    sampled = f"{row['length']} tokens, stopped by {row['finish_reason']}, policy version {row['policy_version']}"
    if row["logprobs"]:
        mean = sum(row["logprobs"]) / row["length"]
        sampled += f"; mean log-probability {mean:.3f}"
    else:
        sampled += "; tokens were not logged"
    lines = {
        "prompt" if prompt else "question": shown,
        "CoT": parts.cot.rstrip(),
        "answer": parts.answer,
        "parsed": f"{row['model_answer']} by rule {row['rule']}: {row['reason']}",
        "gold": row["gold_answer"],
        "reward": f"{row['reward']:.3g}  ({terms})",
        "advantage": f"{row['advantage']:+.3f}",
        "sampled": sampled,
    }
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, line in lines.items():
        if line.strip():
            text = Text(terminal_safe(line))
            grid.add_row(name, text.append(hint, style="dim") if name == "question" else text)
    title = Text(
        f"{row['split']}, step {row['step']}, group {row['group']}, sample {row['sample']}  "
        f"{'✓ correct' if row['correct'] else '✗ wrong'}"
    )
    colour = "green" if row["correct"] else "red"
    return Panel(grid, title=title, title_align="left", border_style=colour)


# --- measures --------------------------------------------------------------------------------


def measures_table(results: dict[str, Any]) -> Table:
    """One row per measure, one column per checkpoint, and the change with its interval; of a single checkpoint, more
    about each value. monitor.json, measures.json and the report have everything."""
    checkpoints = thin(results["checkpoints"], MAX_COLUMNS)
    hidden = len(results["checkpoints"]) - len(checkpoints)
    changes = results["change"]["measures"]
    settings, is_file = results["settings"], "title" in results
    names = [c["name"] if is_file or c["step"] == 0 else c["step"] for c in checkpoints]
    title = None
    if not is_file:
        title = f"{settings['problems']} held-out problems, rollouts {settings['rollouts']}; by checkpoint step"
    table = Table(title=title, title_justify="left", padding=(0, 1, 0, 0), **PLAIN)
    if hidden:
        table.caption = (
            f"{count_noun(hidden, 'checkpoint')} not in this table; the report has all of them"
        )
        table.caption_justify = "left"
    table.add_column("measure", no_wrap=True)
    single = ["value", "95 % interval", "null (p)", "ceiling", "rollouts"]
    columns = [*names, "change (95 % interval)"] if len(checkpoints) > 1 else single
    for name in columns:
        table.add_column(escape(terminal_safe(str(name))), justify="right", no_wrap=not is_file)
    for source, measures in checkpoints[-1]["measures"].items():
        for name in sort_measures(measures):
            if lookup(name).detail and source:
                continue
            found = [c["measures"].get(source, {}).get(name, {}) for c in checkpoints]
            label = lookup(f"{source}.{name}" if source else name).label_with_unit
            with_interval = is_file and len(checkpoints) <= 3
            cells = [format_value(estimate, with_interval) for estimate in found]
            cells.append(format_change(changes.get(name)))
            if len(checkpoints) == 1:
                cells = describe_estimate(found[0])
            table.add_row(escape(terminal_safe(label)), *cells)
    return table


def describe_estimate(estimate: Estimate) -> list[str]:
    """Value, interval, null with p, ceiling and number of rollouts."""
    low, high, null, p, n = (estimate.get(name) for name in ("low", "high", "null", "p", "n"))
    between = "" if low is None else f"{format_number(low)} to {format_number(high)}"
    null_p = "" if null is None or p is None else f"{format_number(null)} ({p:.4f})"
    ceiling = "" if estimate.get("ceiling") is None else format_number(estimate["ceiling"])
    return [format_number(estimate.get("value")), between, null_p, ceiling, f"{n or 0:,}"]


def format_value(estimate: Estimate, with_interval: bool) -> str:
    value, low, high = (estimate.get(name) for name in ("value", "low", "high"))
    is_known = with_interval and low is not None and high is not None
    between = f" ({format_number(low)} to {format_number(high)})" if is_known else ""
    return format_number(value) + between


def print_measures(console: Console, results: dict[str, Any]) -> None:
    """What `glasshouse measure` found, as `measured.summarize_measures` says it."""

    def write(*lines: str, style: str = "") -> None:
        for line in lines:
            console.print(Text(terminal_safe(line), style=style), soft_wrap=True)

    write(results["title"], style="bold")
    write(*filter(None, [results["verdict"], *results["said"]]))
    console.print(measures_table(results))
    if results["unsaid"]:
        write("What cannot be said", style="bold")
        write(*(f"- {sentence}" for sentence in results["unsaid"]))
    write("How it was measured", style="bold")
    write(*(f"- {name}: {text}" for name, text in results["settings"].items()))


def format_number(value: float | None, sign: str = "") -> str:
    return "–" if value is None else f"{value:{sign}.{1 if abs(value) >= 10 else 2}f}"


def format_change(estimate: Estimate | None) -> str:
    """`+0.49 (+0.41 to +0.57)`; a dash if undefined."""
    value, low, high = ((estimate or {}).get(name) for name in ("value", "low", "high"))
    shown = format_number(value, "+")
    if value is None or low is None or high is None:
        return shown
    return f"{shown} ({format_number(low, '+')} to {format_number(high, '+')})"
