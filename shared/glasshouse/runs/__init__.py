"""Runs on disk: rollout log, metrics, events, checkpoints, monitor results; rollouts of other trainers.

Other packages read and write a run through this one.
"""
