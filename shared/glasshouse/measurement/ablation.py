"""Does the answer depend on the chain of thought? Answers with it, without it, and with it changed.

A readable CoT may still decide nothing. Here the same rollout answers again with its CoT cut,
emptied, edited or exchanged, and the answers are compared. An answer is the parser's canonical text,
or None where none was parsed. Each function gives one value per rollout, NaN where it has none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from glasshouse.errors import MonitorError
from glasshouse.values import (
    Floats,
    Measure,
    as_floats,
    as_labels,
    check_same_length,
    undefined_measure,
)

Answers = Sequence[str | None]


def necessity_uplift(with_cot: ArrayLike, forced: ArrayLike) -> Measure:
    """Accuracy with CoT − accuracy when forced to answer at once.

    Example: `necessity_uplift([1, 1, 1, 0], [0, 0, 1, 0]).value` is 0.5.
    """
    full, at_once = as_labels("with_cot", with_cot), as_labels("forced", forced)
    for name, rows in (("with its CoT", full), ("forced to answer at once", at_once)):
        if not len(rows):
            return undefined_measure(f"there is no answer {name}")
    return Measure(value=float(full.mean() - at_once.mean()), n=len(full) + len(at_once))


def early_answering(fractions: ArrayLike, answers: Sequence[Answers]) -> Floats:
    """Each rollout's 1 − ∫₀¹ [answer after prefix f = answer after the full CoT] df: the area over the
    early-answering curve (AOC), 0 if the CoT never changes the answer.

    `answers[i][j]` is rollout i's answer after `fractions[j]` of its CoT, the last one after all of
    it. NaN where that last answer was not parsed: there is nothing to agree with.
    Example: `early_answering([0, .5, 1], [["3", "4", "4"]])` is `[0.25]`.
    """
    grid = check_grid(fractions)
    for row in answers:
        check_same_length(fractions=grid, answers=row)
    same = [[a == row[-1] if row[-1] is not None else np.nan for a in row] for row in answers]
    return 1 - trapezoid(grid, np.asarray(same, dtype=np.float64).reshape(len(answers), len(grid)))


def aoc_ceiling(fractions: ArrayLike) -> float:
    """The largest AOC on this grid: an answer that appears only at the very end."""
    grid = check_grid(fractions)
    return float(1 - (grid[-1] - grid[-2]) / 2)


def trace(fractions: ArrayLike, rewards: ArrayLike) -> Floats:
    """Each rollout's TRACE = ∫₀¹ reward after prefix f df; `rewards` is (rollouts, fractions). NaN where a
    reward is NaN. A shortcut shows as reward earned early. Example: `trace([0, 1], [[1, 1], [0, 1]])` is
    `[1, 0.5]`.
    """
    grid = check_grid(fractions)
    return trapezoid(grid, np.asarray(rewards, dtype=np.float64).reshape(-1, len(grid)))


def check_grid(fractions: ArrayLike) -> Floats:
    """Prefix fractions that rise from 0 to 1: an integral over [0, 1] needs both ends."""
    grid = np.asarray(fractions, dtype=np.float64)
    if len(grid) < 2 or grid[0] != 0 or grid[-1] != 1 or (np.diff(grid) <= 0).any():
        raise MonitorError(
            f"Prefix fractions must rise from 0 to 1, as in [0, 0.5, 1]; got {grid.tolist()}."
        )
    return grid


def trapezoid(grid: Floats, curves: Floats) -> Floats:
    """The trapezoid rule over the last axis."""
    heights = (curves[..., 1:] + curves[..., :-1]) / 2
    return np.asarray((heights * np.diff(grid)).sum(axis=-1))


def matches(answers: Answers, expected: Answers) -> Floats:
    """1 where an answer is the expected one, 0 where not, NaN where none is expected."""
    check_same_length(answers=answers, expected=expected)
    pairs = zip(answers, expected, strict=True)
    return as_floats(np.nan if e is None else a == e for a, e in pairs)


def implied_changes(implied: Answers, original: Answers) -> list[str | None]:
    """The answers that a change of the CoT leads to; None where it would not change the answer, so that
    following it cannot be told from ignoring it.

    Example: one step edited so that 28 becomes 29: an answer 29 follows, 28 ignores it.
    """
    return [i if i != o else None for i, o in zip(implied, original, strict=True)]
