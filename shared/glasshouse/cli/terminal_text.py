"""Results as text for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glasshouse.cli.measure_report import compare_sentences, measure_tables, undefined_sentences
from glasshouse.view.monitor_table import gmean_lines, monitor_table
from glasshouse.view.rollout_text import overview_table, render_group, render_rollout, tally_by_step

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "compare_sentences",
    "evaluation_table",
    "gmean_lines",
    "measure_tables",
    "monitor_table",
    "overview_table",
    "render_group",
    "render_rollout",
    "tally_by_step",
    "undefined_sentences",
]


def evaluation_table(values: dict[str, Any]) -> Table:
    """A table of one evaluation with intervals."""
    from glasshouse.training.display import results_table  # imports torch

    return results_table(values)
