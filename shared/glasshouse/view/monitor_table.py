"""Print monitoring results: a table over checkpoints, and bars for before and after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

from glasshouse.measurement.registry import Family, headline_measures, lookup, sort_measures
from glasshouse.runs.monitor_results import find_measure

Results = dict[str, Any]
"""The content of results/monitor.json."""
"""One of its monitored checkpoints."""
Estimate = dict[str, Any]
BAR_WIDTH = 24


def monitor_table(results: Results) -> Table:
    """One row per measure, one column per checkpoint, and the change with its interval. All other
    intervals, nulls and ceilings are in monitor.json and in the report."""
    checkpoints, changes = results["checkpoints"], results["change"]["measures"]
    settings = results["settings"]
    table = Table(
        title=f"{settings['problems']} held-out problems, rollouts {settings['rollouts']}; by checkpoint step",
        title_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="bold",
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
            estimates = (
                checkpoint["measures"].get(evaluation, {}).get(name) for checkpoint in checkpoints
            )
            values = (format_number(_value(estimate)) for estimate in estimates)
            table.add_row(
                escape(lookup(f"{evaluation}.{name}").label_with_unit),
                *values,
                format_change(changes.get(name)),
            )
    return table


def gmean_lines(results: Results) -> list[str]:
    """g-mean² of each monitor of the organism at the last checkpoint, with its null and ceiling."""
    last, lines = results["checkpoints"][-1], []
    for name, estimate in last["measures"].get("organism", {}).items():
        monitor, _, last_segment = name.rpartition(".")
        if last_segment != "gmean2":
            continue
        label = lookup(name).label
        if _value(estimate) is None:
            lines.append(f"{label} is undefined: {estimate['undefined']}")
            continue
        informedness = find_measure(last, f"{monitor}.informedness")
        context = [f"flagging at random reaches {estimate['ceiling']:.2f}"]
        if estimate["p"] is not None:
            context.append(f"permuted verdicts {estimate['null']:.2f}, p = {estimate['p']:.4f}")
        if informedness:
            share = format_number(_value(find_measure(last, "attributable_share")))
            context.insert(0, f"attributable share {share}")
            context.append(f"informedness {format_estimate(informedness)}")
        at = checkpoint_label(last)
        lines.append(f"{label} {format_estimate(estimate)} at {at}: {'; '.join(context)}")
    return lines


def before_after_bars(results: Results) -> str:
    """The main measures of the first and last checkpoint as bars (rich markup)."""
    ends = {"before": results["checkpoints"][0], "after": results["checkpoints"][-1]}
    lines = []
    for name in headline_measures(Family.COT):
        lines.append(f"[bold]{lookup(name).label}[/]  [dim]{lookup(name).sentence}[/]")
        for when, checkpoint in ends.items():
            estimate = find_measure(checkpoint, name)
            lines.append(f"  {when:<7}{_bar(_value(estimate))}  {format_estimate(estimate)}")
    return "\n".join(lines)


def checkpoint_label(checkpoint: Mapping[str, Any]) -> str:
    return str(checkpoint["name"]) if checkpoint["step"] == 0 else f"step {checkpoint['step']}"


def format_number(value: float | None) -> str:
    return "–" if value is None else f"{value:.{_decimals(value)}f}"


def format_estimate(estimate: Estimate | None) -> str:
    """`0.90 (0.85–0.94)`; a dash if undefined."""
    value = _value(estimate)
    if estimate is None or value is None:
        return "–"
    low, high = estimate["low"], estimate["high"]
    digits = _decimals(value)
    if low is None or high is None:
        return f"{value:.{digits}f}"
    between = "–" if low >= 0 else " to "
    return f"{value:.{digits}f} ({low:.{digits}f}{between}{high:.{digits}f})"


def format_change(estimate: Estimate | None) -> str:
    """`+0.49 (+0.41 to +0.57)`; a dash if undefined."""
    value = _value(estimate)
    if estimate is None or value is None:
        return "–"
    low, high = estimate["low"], estimate["high"]
    if low is None or high is None:
        return f"{value:+.2f}"
    digits = _decimals(value)
    return f"{value:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def _value(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate["value"]


def _decimals(value: float) -> int:
    return 1 if abs(value) >= 10 else 2


def _bar(value: float | None) -> str:
    if value is None:
        return f"[dim]{'undefined':<{BAR_WIDTH}}[/]"
    full = round(max(0.0, min(1.0, value)) * BAR_WIDTH)
    return f"[green]{'█' * full}[/][dim]{'░' * (BAR_WIDTH - full)}[/]"
