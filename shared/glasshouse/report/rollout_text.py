"""Rollouts for people: a run's record as a table, one rollout in full, a group side by side."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from glasshouse.answers.sections import outline
from glasshouse.store.manifest import Entry, Storage, size

Row = dict[str, Any]
LINES = 12
"""A kind with more steps than this is shown in so many lines."""
NARROWEST = 38
"""Columns of a group side by side are at least this wide."""


@dataclass(slots=True)
class Tally:
    """What the rows of some steps have in common."""

    rows: int = 0
    right: int = 0
    reward: float = 0.0
    rules: Counter[str] = field(default_factory=Counter)

    def count(self, row: Row) -> None:
        self.rows += 1
        self.right += row["correct"]
        self.reward += row["reward"]
        self.rules[row["rule"]] += 1

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.rows + other.rows,
            self.right + other.right,
            self.reward + other.reward,
            self.rules + other.rules,
        )


def tally(rows: Iterable[Row]) -> dict[tuple[str, int], Tally]:
    """By kind and step, in memory of the steps only."""
    found: dict[tuple[str, int], Tally] = {}
    for row in rows:
        found.setdefault((row["kind"], row["step"]), Tally()).count(row)
    return found


def overview(found: dict[tuple[str, int], Tally], entries: Iterable[Entry]) -> Table:
    """Steps in a few lines a kind: how many rows, how many right, which rules, what it takes."""
    stored: dict[tuple[str, int], Storage] = {}
    for entry in entries:
        stored[entry.kind, entry.step] = stored.get((entry.kind, entry.step), Storage()) + entry
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for name in ("steps", "rows", "right", "reward"):
        table.add_column(name, justify="right")
    table.add_column("rules")
    table.add_column("a step", justify="right")
    table.add_column("raw", justify="right")
    for kind in dict.fromkeys(kind for kind, _ in found):
        steps = sorted(step for k, step in found if k == kind)
        per = -(-len(steps) // LINES)
        for start in range(0, len(steps), per):
            some = steps[start : start + per]
            total = sum((found[kind, step] for step in some), Tally())
            frames = [stored.get((kind, step), Storage()) for step in some]
            table.add_row(
                kind if start == 0 else "",
                f"{some[0]}–{some[-1]}" if len(some) > 1 else str(some[0]),
                f"{total.rows:,}",
                f"{total.right / total.rows:.1%}",
                f"{total.reward / total.rows:.3f}",
                ", ".join(f"{r} {share(n, total.rows)}" for r, n in total.rules.most_common()),
                size(sum(f.bytes for f in frames) / len(frames)),
                size(sum(f.raw for f in frames) / len(frames)),
            )
    return table


def share(some: int, of: int) -> str:
    """A share that is never rounded to none or all."""
    rounded = f"{some / of:.0%}"
    return "<1%" if rounded == "0%" else ">99%" if rounded == "100%" and some < of else rounded


def single(row: Row, prompt: bool = False) -> RenderableType:
    """One rollout: what was asked, what was thought, what was answered, what it earned."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    asked = Text(printable(row["prompt"] if prompt else row["question"]))
    if not prompt:
        asked.append(f"  (prompt of {len(row['prompt']):,} characters: --prompt)", style="dim")
    thought, answer = parted(row)
    grid.add_row("asked", asked)
    if thought.plain.strip():
        grid.add_row("thought", thought)
    grid.add_row("answered" if answer.plain else "", answer)
    grid.add_row(
        "read",
        Text(f"{printable(str(row['answer']))} by rule {row['rule']}: {printable(row['reason'])}"),
    )
    grid.add_row("gold", Text(printable(row["gold"])))
    parts = ", ".join(f"{name} {value:.3g}" for name, value in row["parts"].items())
    grid.add_row("reward", Text(f"{row['reward']:.3g}  ({printable(parts)})"))
    grid.add_row("advantage", Text(f"{row['advantage']:+.3f}"))
    grid.add_row("sampled", Text(_sampled(row)))
    return Panel(grid, title=heading(row), title_align="left", border_style=colour(row))


def side_by_side(rows: Sequence[Row], width: int) -> RenderableType:
    """A group's completions as columns, under what they were asked."""
    across = max(1, min(len(rows), width // NARROWEST))
    panels = [
        Panel(
            Text(printable(row["completion"])),
            title=Text(
                f"{row['sample']} {mark(row)} {row['reward']:.2f}, advantage {row['advantage']:+.2f}"
            ),
            subtitle=Text(f"{printable(str(row['answer']))}, {row['rule']}"),
            border_style=colour(row),
            width=width // across - 1,
        )
        for row in rows
    ]
    first = rows[0]
    right = sum(row["correct"] for row in rows)
    return Group(
        Text(printable(first["question"]), style="bold"),
        Text(f"{first['split']}, step {first['step']}, group {first['group']}: gold "
             f"{printable(first['gold'])}, {right} of {len(rows)} right", style="dim"),
        Columns(panels, padding=(0, 1, 0, 0)),
    )  # fmt: skip


def heading(row: Row) -> Text:
    kind = row["split"] if row["kind"] != "replaced" else "replaced"
    return Text(
        f"{kind}, step {row['step']}, group {row['group']}, sample {row['sample']}  "
        f"{mark(row)} {'right' if row['correct'] else 'wrong'}"
    )


def mark(row: Row) -> str:
    return "✓" if row["correct"] else "✗"


def colour(row: Row) -> str:
    return "green" if row["correct"] else "red"


def parted(row: Row) -> tuple[Text, Text]:
    """The chain of thought, and the answer that follows it: from the last tag on, or after the last
    think block. Without either all of it is thought. The value that was read stands out."""
    text, tags, body = (
        row["completion"],
        outline(row["completion"]).tags,
        outline(row["completion"]).body,
    )
    cut = tags[-1] if tags else body if 0 < body < len(text) else len(text)
    shown = Text()
    low, high = row["span"] or (len(text), len(text))
    shown.append(printable(text[:low]))
    shown.append(printable(text[low:high]), style=f"bold {colour(row)}")
    shown.append(printable(text[high:]))
    thought, answer = (
        shown.divide([len(printable(text[:cut]))])[:2] if cut < len(text) else (shown, Text())
    )
    thought.rstrip()
    return thought, answer


def printable(text: str) -> str:
    """A text that a terminal shows instead of obeying: control characters and lone surrogates as
    their escapes, but for line ends and tabs."""
    return "".join(
        c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs", "Cf") else ascii(c)[1:-1]
        for c in text
    )


def _sampled(row: Row) -> str:
    said = f"{row['length']} tokens, stopped by {row['stop']}, policy version {row['version']}"
    if not row["logprobs"]:
        return f"{said}; tokens were not recorded" if row["tokens"] is None else said
    lowest = min(row["logprobs"])
    return f"{said}; mean log-probability {sum(row['logprobs']) / row['length']:.3f}, lowest {lowest:.2f}"
