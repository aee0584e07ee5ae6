"""The verdict on a question. The sentence that says it is in sentences.py.

A change is shown if its p, corrected by Holm over the study's questions, is at most 0.05 and Student's
95 % interval is off zero. A change against the start must also go beyond the null arm, otherwise it
is what RL on noise does: its p is then the larger of the two, and both intervals must be off zero.
That a measure stays is shown if its whole 95 % interval lies within the margin: stricter than the
usual equivalence test (TOST), which asks that of the 90 % interval.
"""

from __future__ import annotations

import math
from enum import Enum

from glasshouse.estimation.paired_seeds import ALPHA
from glasshouse.study.questions import Answer, Contrast


class Verdict(Enum):
    """In the order in which a study tells them."""

    SHOWN = "Shown"
    OPPOSITE = "Not as predicted"
    NOT_SHOWN = "Not shown"
    UNDEFINED = "Not measured"


def decide(a: Answer) -> Verdict:
    p = a.effect.paired
    if p.effect is None or p.low is None or p.high is None:
        return Verdict.UNDEFINED
    if a.question.margin is not None:
        margin = a.question.margin
        if -margin <= p.low and p.high <= margin:
            return Verdict.NOT_SHOWN if too_few(a) else Verdict.SHOWN
        outside = p.low > margin or p.high < -margin
        return Verdict.OPPOSITE if p.shown and outside else Verdict.NOT_SHOWN
    if not p.shown or (a.held_to_null and not beyond_null(a)):
        return Verdict.NOT_SHOWN
    predicted = (p.effect > 0) == (a.question.expect == "rises")
    return Verdict.SHOWN if predicted else Verdict.OPPOSITE


def beyond_null(a: Answer) -> bool:
    """Does the arm differ from the null arm, the same way as from its reference?"""
    beyond, effect = a.beyond_null, a.effect.paired.effect
    if beyond is None or beyond.paired.effect is None or effect is None:
        return False
    return beyond.paired.shown and (beyond.paired.effect > 0) == (effect > 0)


def apart(c: Contrast) -> bool:
    """Told from zero by its own p and interval, uncorrected."""
    p = c.paired
    if p.p is None or p.low is None or p.high is None:
        return False
    return p.p <= ALPHA and not p.low <= 0 <= p.high


def too_few(a: Answer) -> bool:
    """So few pairs that even the clearest effect would not be shown. That a measure stays is no
    test of Holm's family, but two or three seeds that agree by luck do not show it either."""
    smallest = a.effect.paired.smallest_p
    return smallest is not None and smallest * tests(a) > ALPHA


def tests(a: Answer) -> int:
    """How many tests the question's p is corrected over."""
    return 1 if a.question.margin is not None else max(1, a.tests)


def pairs_needed(count: int) -> int:
    """Fewest pairs whose smallest p survives Holm over so many tests.

    Example: `pairs_needed(1)` is 6: 2/2⁶ = 0.031. `pairs_needed(8)` is 9: 8 · 2/2⁹ = 0.031.
    """
    return 1 + math.ceil(math.log2(max(1, count) / ALPHA))
