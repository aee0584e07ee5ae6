"""The sentence on how readable a CoT has become: more, less, mixed, or not shown."""

from __future__ import annotations

from typing import Any

import pytest

from glasshouse.monitorability.before_after import verdict


def entry(name: str, step: int, **values: float) -> dict[str, Any]:
    told = {key.replace("_", " "): {"measure": {"value": v}} for key, v in values.items()}
    return {"name": name, "step": step, "measures": {"interventions": told}}


def moved(value: float, low: float, high: float) -> dict[str, Any]:
    return {"measure": {"value": value}, "interval": {"low": low, "high": high, "reason": ""}}


FIRST = entry("base", 0, necessity_uplift=0.3)
LAST = entry("step-000040", 40, necessity_uplift=0.8)
UP, DOWN, STILL = moved(0.5, 0.4, 0.6), moved(-0.4, -0.5, -0.3), moved(0.0, -0.1, 0.1)


@pytest.mark.parametrize(
    ("uplift", "follow", "said"),
    [
        (UP, UP, "came to depend more"),
        (UP, STILL, "came to depend more"),
        (DOWN, DOWN, "came to depend less"),
        (UP, DOWN, "the evidence is mixed: the chain of thought is needed more often"),
        (DOWN, UP, "the evidence is mixed: the chain of thought is needed less often"),
        (STILL, UP, "is not shown"),
    ],
)
def test_uplift_alone_is_no_verdict_where_steps_are_followed_the_other_way(
    uplift: dict[str, Any], follow: dict[str, Any], said: str
) -> None:
    found = verdict(FIRST, LAST, {"necessity uplift": uplift, "mistake-follow": follow})
    assert said in found
