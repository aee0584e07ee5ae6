"""The null of an intervention: the same measure without the intervention."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from glasshouse import randomness
from glasshouse.measurement.permutation import PERMUTATIONS, NullDistribution, undefined_null
from glasshouse.values import check_same_length


def control_null(
    rows: ArrayLike,
    control: ArrayLike,
    problems: ArrayLike,
    *,
    key: Sequence[randomness.Part],
    permutations: int = PERMUTATIONS,
) -> NullDistribution:
    """Is the mean of `rows` above that of their controls, which had no intervention?

    Each row has a control. If the intervention does nothing, which of the two is which is a coin
    toss, one per problem. `mean` is the controls' mean; `high` lies as far above it as 95 % of the
    tosses reach. Rows without a value on either side are left out.

    Example: `control_null([1, 1, 0, 1], [0, 0, 0, 0], problems, key=("edit",)).mean` is 0.
    """
    values, controls = np.asarray(rows, dtype=np.float64), np.asarray(control, dtype=np.float64)
    check_same_length(rows=values, control=controls, problems=np.asarray(problems))
    known = ~(np.isnan(values) | np.isnan(controls))
    if not known.any():
        return undefined_null("no rollout has a value with and without the intervention")
    gain = (values - controls)[known]
    problem = np.unique(np.asarray(problems)[known], return_inverse=True)[1]
    sums = np.bincount(problem, weights=gain)  # (problems,)
    seed = np.array([randomness.key("control", *key)], dtype=np.uint64)
    noise = randomness.uniforms(seed, 0, permutations * len(sums)).reshape(permutations, -1)
    flipped = np.where(noise < 0.5, 1.0, -1.0) @ sums / known.sum()
    base = float(controls[known].mean())
    at_least = int((flipped >= gain.mean() - 1e-12).sum())
    return NullDistribution(
        mean=base,
        high=base + float(np.quantile(flipped, 0.95)),
        p=(1 + at_least) / (1 + permutations),
        permutations=permutations,
    )
