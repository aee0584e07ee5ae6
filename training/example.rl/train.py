"""The template of an experiment: GRPO on digit sums, from the pocket model.

An experiment is configuration. What it trains, on what, for how long stands in config.yaml; the
same script runs the mock test, the laptop and the cluster with another file laid over it:

    python training/example.rl/train.py
    python training/example.rl/train.py seed=1 learn.algorithm=rloo
    python training/example.rl/train.py --config tests/test_config.yaml

This is also the place for what is this experiment's alone. A reward of your own, for example:

    from glasshouse.grading import RewardInputs, reward

    @reward("brief")
    def brief(given: RewardInputs) -> float:
        return 1 - min(len(given.text) / 200, 2)

and `reward.terms: {exact: 1, brief: 0.1}` in config.yaml.
"""

from glasshouse.cli import run_experiment

if __name__ == "__main__":
    run_experiment(__file__)
