"""The summary sentence of a change: more, less, mixed, or not shown."""

from __future__ import annotations

from typing import Any

import pytest

from glasshouse.measurement.before_after import summarize_change
from glasshouse.values import Measure


def entry(name: str, step: int, uplift: float) -> dict[str, Any]:
    measures = {"interventions": {"necessity_uplift": {"value": uplift}}}
    return {"name": name, "step": step, "measures": measures}


def change(value: float, low: float, high: float) -> Measure:
    return Measure(value=value, n=10, low=low, high=high, units=10)


FIRST, LAST = entry("base", 0, 0.3), entry("step-000040", 40, 0.8)
UP, DOWN, NONE = change(0.5, 0.4, 0.6), change(-0.4, -0.5, -0.3), change(0.0, -0.1, 0.1)


@pytest.mark.parametrize(
    ("uplift", "follow", "words"),
    [
        (UP, UP, ["depend more"]),
        (UP, NONE, ["depend more"]),
        (DOWN, DOWN, ["depend less"]),
        (UP, DOWN, ["mixed", "needed more often"]),
        (DOWN, UP, ["mixed", "needed less often"]),
        (NONE, UP, ["not shown"]),
    ],
)
def test_the_evidence_is_mixed_where_uplift_and_mistake_follow_disagree(
    uplift: Measure, follow: Measure, words: list[str]
) -> None:
    changes = {"necessity_uplift": uplift, "mistake_follow": follow}
    sentence = summarize_change(FIRST, LAST, changes)
    assert all(word in sentence for word in words)
