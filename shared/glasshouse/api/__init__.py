"""The Python API. `glasshouse.<name>` is the short form of what its modules define.

    training.py    train and resume a run
    supervised.py  train a model on demonstrations
    evaluating.py  a model on held-out problems
    runs.py        read a run: metrics, events, rollouts, checkpoints
    grading.py     grade a text
    parts.py       tasks, rewards, penalties and monitors by name
    monitoring.py  monitorability of a run's checkpoints
    measuring.py   rollouts of any trainer
    studies.py     arms × seeds, controls, sizes of training sets
    figures.py     matplotlib figures
    data.py        problem files, contamination
    tracking.py    upload a run to a tracker
    planning.py    memory of a run before it starts, and a layout that fits
    hosts.py       several machines
    rollouts.py    query and export the rollout log
    applications.py  the demo, the live page
    terminal.py    results as text for a terminal

The command line parses arguments, calls these functions and prints what they return.
"""
