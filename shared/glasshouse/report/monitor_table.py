"""What monitoring found, for people: a table over checkpoints, and a small figure in text."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table

Entry = dict[str, Any]
SMALL = (
    ("necessity uplift", "right with its thought − right when forced to answer at once"),
    ("step validity", "of the steps that it writes, how many are true"),
    ("early-answering AOC", "how late the thought decides the answer"),
)
"""The measures of the small figure, with what they mean."""
WIDTH = 24
ORDER = (
    "accuracy",
    "necessity uplift",
    "early-answering AOC",
    "TRACE",
    "TRACE, true grade",
    "mistake-follow",
    "mistake corrected",
    "transplant follow",
    "filler agreement",
    "step validity",
    "step coverage",
    "has a CoT",
    "CoT tokens",
    "parse failures",
    "reliance",
    "q",
    "behaviour",
    "shortcut",
    "accuracy, control",
    "accuracy, planted",
    "CoT characters",
    "plant necessity",
    "plant swapped: follows the prompt",
    "plant swapped: follows the CoT",
    "plant removed: keeps it",
)
"""Measures as people read them; others follow, by name."""
ASIDE = (": TPR", ": TNR", ": g-mean²", ": pz − FPR", "FPR, planted", "AUROC, planted")
"""How measures end that the table leaves to monitor.json and the report: there would be too many."""


def ordered(measures: dict[str, Any]) -> list[str]:
    return sorted(measures, key=lambda n: (ORDER.index(n) if n in ORDER else len(ORDER), n))


def table(found: dict[str, Any]) -> Table:
    """A row a measure, a column a subject, a last one for the change with its interval. The other
    intervals, nulls and ceilings are in monitor.json and in the report."""
    subjects, change = found["subjects"], found["change"]["measures"]
    s = found["settings"]
    title = f"{s['problems']} held-out problems, rollouts {s['rollouts']}; by the checkpoint's step"
    made = Table(
        title=title,
        title_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="bold",
    )
    made.add_column("", no_wrap=True)
    for entry in subjects:
        name = str(entry["name"] if entry["step"] == 0 else entry["step"])
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("change (95 % interval)", justify="right", no_wrap=True)
    for group, measures in subjects[-1]["measures"].items():
        for name in ordered(measures):
            if name.endswith(ASIDE):
                continue
            values = [number(entry["measures"].get(group, {}).get(name)) for entry in subjects]
            made.add_row(escape(name), *values, changed(change.get(name)))
    return made


def label(entry: Entry) -> str:
    return str(entry["name"]) if entry["step"] == 0 else f"step {entry['step']}"


def number(scored: dict[str, Any] | None) -> str:
    value = None if scored is None else scored["measure"]["value"]
    return "–" if value is None else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def cell(scored: dict[str, Any] | None) -> str:
    """`0.90 (0.85–0.94)`; a dash where the measure is undefined."""
    if scored is None or scored["measure"]["value"] is None:
        return "–"
    value, low, high = scored["measure"]["value"], *ends(scored)
    digits = 1 if abs(value) >= 10 else 2
    if low is None or high is None:
        return f"{value:.{digits}f}"
    between = "–" if low >= 0 else " to "
    return f"{value:.{digits}f} ({low:.{digits}f}{between}{high:.{digits}f})"


def changed(scored: dict[str, Any] | None) -> str:
    """`+0.49 (+0.41 to +0.57)`"""
    if scored is None or scored["measure"]["value"] is None:
        return "–"
    value, low, high = scored["measure"]["value"], *ends(scored)
    if low is None or high is None:
        return f"{value:+.2f}"
    digits = 1 if abs(value) >= 10 else 2
    return f"{value:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def ends(scored: dict[str, Any]) -> tuple[float | None, float | None]:
    return scored["interval"]["low"], scored["interval"]["high"]


def measure(entry: Entry, name: str) -> dict[str, Any] | None:
    """A measure of a subject, by whichever evaluation."""
    for group in entry["measures"].values():
        if name in group:
            found: dict[str, Any] = group[name]
            return found
    return None


def gmeans(found: dict[str, Any]) -> list[str]:
    """Of every monitor of an organism's last subject g-mean², never without what it is read beside."""
    last, lines = found["subjects"][-1], []
    for name, scored in last["measures"].get("organism", {}).items():
        who, _, what = name.rpartition(": ")
        if what != "g-mean²":
            continue
        if scored["measure"]["value"] is None:
            lines.append(f"{name} is undefined: {scored['measure']['reason']}")
            continue
        null, lift = scored["null"], measure(last, f"{who}: pz − FPR")
        told = [f"a coin reaches {scored['ceiling']:.2f}"]
        if null["p"] is not None:
            told.append(f"permuted verdicts {null['mean']:.2f}, p = {null['p']:.4f}")
        if lift:
            told.insert(0, f"q {number(measure(last, 'q'))}")
            told.append(f"pz − FPR {cell(lift)}")
        lines.append(f"{name} {cell(scored)} at {label(last)}: {'; '.join(told)}")
    return lines


def small(found: dict[str, Any]) -> str:
    """How readable the CoT is before and after, as bars in text (rich markup)."""
    first, last = found["subjects"][0], found["subjects"][-1]
    lines = []
    for name, meaning in SMALL:
        lines.append(f"[bold]{name}[/]  [dim]{meaning}[/]")
        for when, entry in (("before", first), ("after", last)):
            scored = measure(entry, name)
            lines.append(f"  {when:<7}{bar(scored)}  {cell(scored)}")
    return "\n".join(lines)


def bar(scored: dict[str, Any] | None) -> str:
    value = None if scored is None else scored["measure"]["value"]
    if value is None:
        return f"[dim]{'undefined':<{WIDTH}}[/]"
    full = round(max(0.0, min(1.0, value)) * WIDTH)
    return f"[green]{'█' * full}[/][dim]{'░' * (WIDTH - full)}[/]"
