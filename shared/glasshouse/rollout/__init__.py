"""Rollouts: problems in, graded completions out.

collector.py        prompt, generate and grade
reward_controls.py  negative controls: shuffled or random rewards
"""

from glasshouse.rollout.collector import Group, PendingRollouts, RolloutCollector, make_grader

__all__ = ["Group", "PendingRollouts", "RolloutCollector", "make_grader"]
