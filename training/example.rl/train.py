"""The template for experiments: GRPO on digit sums, from the pocket model.

    python training/example.rl/train.py
    python training/example.rl/train.py seed=1 learn.algorithm=rloo
    python training/example.rl/train.py --config tests/test_config.yaml

config.yaml holds the whole experiment. Your own tasks, rewards, monitors and other parts go into this
file, above the last two lines (docs/python.md has one of each).
"""

from glasshouse import run_experiment

if __name__ == "__main__":
    run_experiment(__file__)
