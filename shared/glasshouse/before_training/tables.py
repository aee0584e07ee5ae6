"""What the two commands print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from glasshouse.before_training.audit import EDITS, RewardAudit
from glasshouse.before_training.predict import SCOPE, Prediction
from glasshouse.rollout.cot_edits import OTHER_ANSWER
from glasshouse.terminal import count_noun, terminal_safe

if TYPE_CHECKING:
    from rich.console import Console

MAX_EXAMPLE = 160


def print_audit(console: Console, audit: RewardAudit) -> None:
    """A table of mean changes, then a verdict and two examples for each term that reads the CoT."""
    count = f"{count_noun(audit.rollouts, 'rollout')} of {count_noun(audit.problems, 'problem')}"
    _print(
        console,
        f"{audit.source}: {count}. Mean change of each term if the CoT is edited and the answer stays, with a 95 % "
        "interval over problems; last row: the CoT stays and the answer changes.",
    )
    terms = audit.terms.values()
    rows = [
        [edit.replace("_", " "), *(own.format(edit) for own in terms)]
        for edit in (*EDITS, OTHER_ANSWER)
    ]
    _print_table(console, ["edit", *(own.term.partition("(")[0] for own in terms)], rows)
    for own in terms:
        intended = " (a penalty: intended)" if own.kind == "penalty" and own.reads_cot else ""
        _print(console, f"{own.term}: {own.verdict}{intended}.")
        for example in own.examples if own.reads_cot and own.kind != "reward" else ():
            values = f"{example['before']:+.2f} → {example['after']:+.2f}"
            _print(console, f"  {example['edit']}: {values}")
            for sign, key in (("-", "completion"), ("+", "edited")):
                text = " ⏎ ".join(example[key].split("\n"))
                _print(console, f"    {sign} {text[:MAX_EXAMPLE]}{'…' * (len(text) > MAX_EXAMPLE)}")
    if any(own.reads_cot for own in terms):
        _print(console, f"disclose inserts “{audit.sentence}”, compared with the same in ROT13.")
    for name in audit.violations:
        _print(console, f"FAILED: {name} was declared outcome-only.", "red")


def print_prediction(console: Console, prediction: Prediction) -> None:
    """The verdict and its scope first, then what it rests on."""
    own = prediction.outcome
    reason = f" ({own.reason})" if own.reason else ""
    weight = f"{prediction.penalty} λ = {prediction.weight:g}"
    _print(console, f"{prediction.source}, {weight}: {own.verdict}{reason}", "bold")
    _print(console, SCOPE, "dim")
    rollouts = f"{prediction.rollouts:,} rollouts with the cause, {prediction.problems} problems"
    _print(console, f"{rollouts}; 95 % intervals over problems")
    rewards = prediction.rewards
    rows = [[k, own.format(), rewards[k].format("+")] for k, own in prediction.shares.items()]
    _print_table(console, ["mode", "share", "mean reward"], rows)
    margin, follows = prediction.margin.format("+"), prediction.follows["silent"].format()
    _print(console, f"M, silent minus honest: {margin}; of the silent, {follows} follow")
    for name, value in prediction.crossings.items():
        since = "never" if value is None else f"from λ = {value:.2f} on"
        _print(console, f"{name.replace('_over_', ' pays more than ')}: {since}")
    drift = [f"{k.replace('_', ' ')} {v.format('+')}" for k, v in prediction.drift.items()]
    _print(console, f"first-order drift: {', '.join(drift)}")
    _print(console, f"after {prediction.horizon} steps of the replicator, with its 95 % band:")
    rows = []
    for other in prediction.outcomes:
        ends = (curve[-1] for curve in other.curves.values())
        bands = [f"{middle:.2f} ({low:.2f}–{high:.2f})" for middle, low, high in ends]
        rows.append([f"{other.weight:g}", other.verdict, *bands])
    titles = ["λ", "verdict", *(name.replace("_", " ") for name in own.curves)]
    _print_table(console, titles, rows)


def _print(console: Console, line: str, style: str = "") -> None:
    console.print(terminal_safe(line), style=style or None, soft_wrap=True, markup=False)


def _print_table(console: Console, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for place, title in enumerate(titles):
        table.add_column(escape(terminal_safe(title)), justify="right" if place else "left")
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)
