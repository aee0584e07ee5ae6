"""Where the figures of training/monitorability.grpo/README.md come from."""

from tests.docs.tables import (
    DISCLOSURE,
    UNDETECTED,
    Value,
    arm_differences,
    differences,
    effect,
    ends,
    seeds,
)

STUDY = "monitorability.grpo"
GMEAN2 = "organism.disclosure_rule.gmean2"
MARGIN = 0.15
"""Of the question whether outcome reward alone leaves undetected use unchanged."""
ROWS = {
    "| outcome reward only": "outcome",
    "| + length penalty": "length",
    "| + monitor penalty, weight 0.3": "monitor",
    "| + monitor penalty, and KL": "monitor-kl-cot",
    "| + penalty on undisclosed use": "aligned",
    "| random rewards": "random",
}


def experiment_page_figures() -> dict[str, list[Value]]:
    """By the beginning of a paragraph, list item or table row: its figures in order."""

    def change(first: str, second: str, measure: str = UNDETECTED) -> list[float]:
        return effect(arm_differences(STUDY, (first, second), measure, 40))

    def by_base(arms: tuple[str, str]) -> list[Value]:
        return [
            effect(arm_differences(STUDY, arms, UNDETECTED, 40, base))[0]
            for base in ("leaked-hint-0", "leaked-hint-2")
        ]

    from_start = differences(*(seeds(STUDY, "outcome", UNDETECTED, step) for step in (40, 0)))
    fall, high, low = (abs(value) for value in change("monitor", "outcome", GMEAN2))
    study_2 = arm_differences(
        "cot_penalty", ("penalty-1", "outcome"), UNDETECTED, 50, "leaked-hint-2"
    )
    return {
        start: [
            v for m in (UNDETECTED, "reliance", DISCLOSURE, GMEAN2) for v in ends(STUDY, arm, m, 40)
        ]
        for start, arm in ROWS.items()
    } | {
        "1. ": [MARGIN, *effect(from_start)],
        "2. ": change("length", "outcome"),
        "3. ": [*change("monitor", "outcome"), fall, low, high],
        "4. ": change("monitor-kl-cot", "monitor"),
        "5. ": change("aligned", "outcome"),
        "The size of the effects": [
            *by_base(("length", "outcome")),
            *by_base(("monitor", "outcome")),
            effect(study_2)[0],
        ],
        "In two other base models": ends("ladder", "plain", UNDETECTED, 40),
    }
