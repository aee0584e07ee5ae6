"""Train, validation and test, by construction.

A keyed hash of a problem's canonical key puts it into one split for good: on any machine, in any
run, at any seed, without a ledger. What is validation here can never be drawn for training there.
"""

from __future__ import annotations

from enum import StrEnum

from glasshouse import randomness
from glasshouse.types import Problem


class Split(StrEnum):
    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


SHARES = {Split.TRAIN: 80, Split.VALIDATION: 10, Split.TEST: 10}
"""Hundredths of every task's space."""


def split_of(problem: Problem) -> Split:
    """The split that this problem belongs to, always."""
    bucket = randomness.key("split", problem.task, problem.key) % 100
    for split, share in SHARES.items():
        if bucket < share:
            return split
        bucket -= share
    raise AssertionError("the shares add up to 100")
