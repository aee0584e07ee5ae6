"""Monitorability: can monitors still detect a behaviour from the chain of thought of a checkpoint?

    base.py            the evaluation protocol: a checkpoint in, estimates and rows out
    monitor_scores.py  label-free monitors on a checkpoint's rollouts
    interventions/     the same rollout with its CoT cut, edited, filled or exchanged
    organisms/         tasks with a planted behaviour, whose labels are known
    before_after.py    the change from the base model to the last checkpoint, in a sentence

Labels never come from a monitor: they are known by construction or from an intervention.
docs/monitorability.md and docs/monitoring.md explain how to read the numbers.
"""
