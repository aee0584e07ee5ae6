"""Rewards: from a completion to a number.

terms.py            exact, closeness, alignment, format; `@reward("name")` adds one
penalties.py        subtracted from the reward: length, monitor, aligned, orthogonal
monitor_overlap.py  refuses a reward monitor that covers an evaluating one
grading.py          grades a completion and explains its grade
self_check.py       checks that a task's grader accepts its own gold answers

grade(problem, "1+2+3=6\\n[ANSWER] 6", terms={"closeness": 1, "format": 0.2}, strict=True)
"""

from glasshouse.rewards.grading import explain_grade, grade
from glasshouse.rewards.terms import REWARDS, RewardInputs, combine_rewards, reward

__all__ = ["REWARDS", "RewardInputs", "combine_rewards", "explain_grade", "grade", "reward"]
