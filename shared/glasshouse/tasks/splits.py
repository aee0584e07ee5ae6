"""Train, validation and test splits, by a hash of the problem's canonical key.

A problem is in the same split on every machine, in every run and for every seed, with nothing stored.
"""

from __future__ import annotations

from enum import StrEnum

from glasshouse import randomness
from glasshouse.types import Problem


class Split(StrEnum):
    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


SPLIT_PERCENT = {Split.TRAIN: 80, Split.VALIDATION: 10, Split.TEST: 10}
"""Percentage of each task's problems."""


def assign_split(problem: Problem) -> Split:
    """The split of a problem: a function of its task and key."""
    bucket = randomness.key("split", problem.task, problem.key) % 100
    for split, percent in SPLIT_PERCENT.items():
        if bucket < percent:
            return split
        bucket -= percent
    raise AssertionError("the percentages add up to 100")
