"""Grading: from text to reward. The only place where an answer is read.

    answers.py   split, extract, equal: the parser, lenient and strict
    rewards.py   exact, closeness, alignment, format; `@reward("name")` adds one
    grade.py     grade a completion, or explain its grade to a person

    grade(problem, "1+2+3=6\\n[ANSWER] 6", terms={"closeness": 1, "format": 0.2}, strict=True)

Inside: numbers.py (what a number is), sections.py (where an answer may stand), readings.py (what
is read there), equality.py (when it is right).
"""

from glasshouse.grading.answers import Sections, equal, extract, split
from glasshouse.grading.grade import explain, grade
from glasshouse.grading.rewards import REWARDS, RewardInputs, combine, reward

__all__ = [
    "REWARDS",
    "RewardInputs",
    "Sections",
    "combine",
    "equal",
    "explain",
    "extract",
    "grade",
    "reward",
    "split",
]
