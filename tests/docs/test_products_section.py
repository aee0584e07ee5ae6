"""The section about products in training/positive_control.grpo/README.md has the figures of its table."""

from __future__ import annotations

import json

import pytest
from tests.docs.tables import EXPERIMENTS, ROOT, Value, count, differences, effect, ends, seeds
from tests.docs.test_figures import check_page

pytestmark = pytest.mark.xdist_group("figures")
STUDY, LAST_STEP = "study_products", 40
ROWS = {
    "| exact, sampled": "pass_at_1",
    "| exact, greedy": "accuracy",
    "| closeness, sampled": "sampled_closeness",
    "| closeness, greedy": "closeness",
    "| digits in place, sampled": "sampled_alignment",
    "| median relative error, sampled": "sampled_median_relative_error",
}


def changes(arm: str, measure: str) -> list[float]:
    """After − before, for each seed."""
    return differences(*(seeds(STUDY, arm, measure, step) for step in (LAST_STEP, 0)))


def products_figures() -> dict[str, list[Value]]:
    """By the beginning of a paragraph or table row: its figures in order."""
    analysis = json.loads((ROOT / EXPERIMENTS[STUDY] / "study.json").read_text())
    p_values = [question["effect"]["p_holm"] for question in analysis["questions"]]
    rows: dict[str, list[Value]] = {
        start: [
            figure
            for arm in ("products", "products-shuffled")
            for figure in (
                *ends(STUDY, arm, measure, LAST_STEP),
                *effect(changes(arm, measure)),
            )
        ]
        for start, measure in ROWS.items()
    }
    rising = count([change > 0 for change in changes("products", "pass_at_1")])
    return rows | {"All five registered": [min(p_values), max(p_values), rising]}


def test_figures_of_the_section_equal_its_table() -> None:
    text = (ROOT / "training/positive_control.grpo/README.md").read_text()
    section = text.split("## Result: three digits times two")[1].split("- **Reward**")[0]
    check_page(section, products_figures())
