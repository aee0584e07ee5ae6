"""The verdict on a question; sentences.py explains it in words.

A change is shown if its p, Holm-corrected over the study's questions, is at most 0.05 and Student's
95 % interval excludes zero. A change from the start must also exceed that of the null arm, because
RL on noise moves weights too: its p is the larger of the two, and both intervals must exclude zero.
`unchanged` is shown if the whole 95 % interval lies within the margin, which is stricter than the
usual equivalence test (TOST) with its 90 % interval.
"""

from __future__ import annotations

import math
from enum import Enum

from glasshouse.measurement.paired_seeds import ALPHA
from glasshouse.study.questions import Comparison, Contrast


class Verdict(Enum):
    """In the order in which results are listed."""

    SHOWN = "Shown"
    OPPOSITE = "Not as predicted"
    NOT_SHOWN = "Not shown"
    UNDEFINED = "Not measured"


def decide_verdict(comparison: Comparison) -> Verdict:
    p, question = comparison.effect.paired, comparison.question
    if p.effect is None:
        return Verdict.UNDEFINED
    if p.low is None or p.high is None:  # all differences are equal, and the measure has no bounds
        return Verdict.NOT_SHOWN
    if question.margin is not None:
        if -question.margin <= p.low and p.high <= question.margin:
            return Verdict.NOT_SHOWN if has_too_few_pairs(comparison) else Verdict.SHOWN
        outside = p.low > question.margin or p.high < -question.margin
        return Verdict.OPPOSITE if p.shown and outside else Verdict.NOT_SHOWN
    if not p.shown or (comparison.must_exceed_null and not exceeds_null(comparison)):
        return Verdict.NOT_SHOWN
    as_predicted = (p.effect > 0) == (question.expect == "rises")
    return Verdict.SHOWN if as_predicted else Verdict.OPPOSITE


def exceeds_null(comparison: Comparison) -> bool:
    """Whether the arm differs from the null arm in the same direction as from its reference."""
    beyond, effect = comparison.beyond_null, comparison.effect.paired.effect
    if beyond is None or beyond.paired.effect is None or effect is None:
        return False
    return beyond.paired.shown and (beyond.paired.effect > 0) == (effect > 0)


def differs_from_zero(contrast: Contrast) -> bool:
    """Whether the uncorrected p and the interval exclude zero."""
    p = contrast.paired
    if p.p is None or p.low is None or p.high is None:
        return False
    return p.p <= ALPHA and not p.low <= 0 <= p.high


def has_too_few_pairs(comparison: Comparison) -> bool:
    """Whether even the clearest effect could not be shown. `unchanged` is not part of Holm's family
    but needs as many pairs as a single test: two or three seeds may agree by chance."""
    smallest = comparison.effect.paired.smallest_p
    return smallest is not None and smallest * tests_in_family(comparison) > ALPHA


def tests_in_family(comparison: Comparison) -> int:
    """The number of tests that the question's p is corrected for."""
    return 1 if comparison.question.margin is not None else max(1, comparison.num_tests)


def pairs_needed(num_tests: int) -> int:
    """The fewest pairs whose smallest possible p survives Holm's correction over the tests.

    Example: `pairs_needed(1)` is 6: 2/2⁶ = 0.031. `pairs_needed(8)` is 9: 8 · 2/2⁹ = 0.031.
    """
    return 1 + math.ceil(math.log2(max(1, num_tests) / ALPHA))
