"""How close held-out answers are to the gold answers, where accuracy counts only exact ones.

Only for tasks whose answers are numbers. `closeness` and `alignment` are the credits of the reward terms
with the same names, from 0 to 1.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from glasshouse.rollout.terms import alignment_credit, closeness_credit
from glasshouse.tasks.answers.equality import parse_number
from glasshouse.types import AnswerKind, Rollout


def summarize_partial_credit(
    rollouts: Sequence[Rollout], prefix: str = ""
) -> dict[str, float | None]:
    """Return `closeness`, `alignment` and `median_relative_error`, with `prefix` before each name; nothing
    if some answers are not numbers. A completion without an answer has credit 0 and an infinite error;
    the median is None if it is infinite.

    Example: `summarize_partial_credit(rollouts, "sampled_")["sampled_closeness"]`
    """
    if not rollouts or any(r.problem.answer_kind is not AnswerKind.NUMBER for r in rollouts):
        return {}
    credits = [_credits(rollout) for rollout in rollouts]
    median = statistics.median(_relative_error(rollout) for rollout in rollouts)
    return {
        f"{prefix}closeness": statistics.fmean(closeness for closeness, _ in credits),
        f"{prefix}alignment": statistics.fmean(alignment for _, alignment in credits),
        f"{prefix}median_relative_error": median if math.isfinite(median) else None,
    }


def _credits(rollout: Rollout) -> tuple[float, float]:
    """Closeness and alignment of one answer."""
    value, problem = rollout.grade.extracted.model_answer, rollout.problem
    if rollout.grade.correct:
        return 1.0, 1.0
    if value is None:
        return 0.0, 0.0
    return closeness_credit(value, problem), alignment_credit(value, problem)


def _relative_error(rollout: Rollout) -> float:
    """|answer - gold| / |gold|; for the gold answer 0, |answer|."""
    value = rollout.grade.extracted.model_answer
    answer = None if value is None else parse_number(value)
    gold = parse_number(rollout.problem.gold_answer)
    if rollout.grade.correct:
        return 0.0
    if answer is None or gold is None:
        return math.inf
    return float(abs(answer - gold) / (abs(gold) or 1))
