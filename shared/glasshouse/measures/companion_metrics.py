"""What stands beside every point of a curve, so that degradation is not mistaken for hiding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from glasshouse.measures.rates import rate
from glasshouse.measures.result import Measure, mean, same_length
from glasshouse.types import Rule


def beside(
    *,
    correct: ArrayLike,
    cot_tokens: ArrayLike,
    rules: Sequence[Rule],
    kl: ArrayLike | None = None,
) -> Mapping[str, Measure]:
    """Accuracy, CoT length, parse failures, the extraction-rule mix and KL from the start.

    `rules` holds which rule read each rollout's answer; a rising share of `last` is a sign of
    gaming. `kl` is each rollout's KL from the starting weights, if it was computed.
    """
    numbers = mean(cot_tokens, "there is no rollout")
    same_length(correct=np.asarray(correct), cot_tokens=np.asarray(cot_tokens), rules=rules)
    shares = {f"read by {rule}": rate([r is rule for r in rules]) for rule in Rule}
    return {
        "accuracy": rate(correct),
        "CoT tokens": numbers,
        "parse failures": shares.pop(f"read by {Rule.NONE}"),
        **shares,
        "KL": mean([] if kl is None else kl, "KL from the start was not computed"),
    }
