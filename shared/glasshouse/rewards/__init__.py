"""Rewards: from a completion to a number.

terms.py       exact, closeness, alignment, format; `@reward("name")` adds one
penalties.py   terms subtracted from the reward: length, monitor, aligned, orthogonal
grading.py     grade a completion, or explain its grade
self_check.py  a task's reference answers pass its own grader

grade(problem, "1+2+3=6\\n[ANSWER] 6", terms={"closeness": 1, "format": 0.2}, strict=True)
"""

from glasshouse.rewards.grading import explain, grade
from glasshouse.rewards.terms import REWARDS, RewardInputs, combine, reward

__all__ = ["REWARDS", "RewardInputs", "combine", "explain", "grade", "reward"]
