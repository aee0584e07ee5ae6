"""The figures of real models in training/smollm2.grpo/README.md and docs/models.md are those of the tables."""

from __future__ import annotations

import json

import pytest
from tests.docs.tables import EXPERIMENTS, ROOT, Value, differences, effect, ends, seeds
from tests.docs.test_figures import check_page

pytestmark = pytest.mark.xdist_group("figures")
MODELS = {"SmolLM2": ("smollm2.grpo", 8), "Gemma 3": ("smollm2.grpo gemma3", 3)}
"""By the first word of a row: the study and its last step."""
ARMS = {"rewards": "rl", "shuffled rewards": "shuffled"}
SECTIONS = {
    "training/smollm2.grpo/README.md": ("## Result", "\n## "),
    "docs/models.md": ("## Real models learn", "\n## "),
}
"""By page: where the section begins and ends."""


def gain(study: str, arm: str, measure: str, last: int) -> list[float]:
    """After − before: mean over seeds with its interval, which ends at the largest possible fall as in the study."""
    analysis = json.loads((ROOT / EXPERIMENTS[study] / "study.json").read_text())
    lowest = analysis["questions"][0]["ceiling"]["fall"]
    mean, low, high = effect(differences(*(seeds(study, arm, measure, step) for step in (last, 0))))
    return [mean, max(low, lowest), high]


def row_figures() -> dict[str, list[Value]]:
    """By the beginning of a table row: its figures in order."""
    return {
        f"| {model}, {name} |": [
            *ends(study, arm, "pass_at_1", last),
            *gain(study, arm, "pass_at_1", last),
            *ends(study, arm, "accuracy", last),
        ]
        for model, (study, last) in MODELS.items()
        for name, arm in ARMS.items()
    }


@pytest.mark.parametrize("page", SECTIONS)
def test_figures_of_the_section_equal_its_tables(page: str) -> None:
    begin, end = SECTIONS[page]
    section = (ROOT / page).read_text().split(begin)[1].split(end)[0]
    check_page(section, row_figures())


@pytest.mark.parametrize("model", MODELS)
def test_there_is_a_gain_with_rewards_and_none_with_shuffled_rewards(model: str) -> None:
    study, last = MODELS[model]
    assert gain(study, "rl", "pass_at_1", last)[1] > 0
    assert gain(study, "shuffled", "pass_at_1", last)[1] <= 0
