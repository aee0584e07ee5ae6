"""Metrics reported with every point of a curve, so that degradation is not mistaken for hiding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from glasshouse.measurement.rates import rate
from glasshouse.types import ExtractionRule
from glasshouse.values import MeasureResult, check_same_length, mean_result


def compute_companions(
    *, correct: ArrayLike, cot_tokens: ArrayLike, rules: Sequence[ExtractionRule]
) -> dict[str, MeasureResult]:
    """Accuracy, CoT length and parse failures. `rules` holds the parser rule of each answer."""
    check_same_length(correct=np.asarray(correct), cot_tokens=np.asarray(cot_tokens), rules=rules)
    return {
        "accuracy": rate(correct),
        "cot_tokens": mean_result(cot_tokens, "there is no rollout"),
        "parse_failure_rate": rate([rule is ExtractionRule.NONE for rule in rules]),
    }
