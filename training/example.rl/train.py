"""The template for experiments: GRPO on digit sums, from the pocket model.

config.yaml holds the whole experiment. The same script runs it on mock assets, a laptop or a cluster,
with other config files or overrides:

    python training/example.rl/train.py
    python training/example.rl/train.py seed=1 learn.algorithm=rloo
    python training/example.rl/train.py --config tests/test_config.yaml

Code that only this experiment needs goes here too, for example a reward term:

    from glasshouse.rewards import RewardInputs, reward

    @reward("brief")
    def brief(inputs: RewardInputs) -> float:
        return 1 - min(len(inputs.text) / 200, 2)

with `reward.terms: {exact: 1, brief: 0.1}` in config.yaml. The run's configuration lists this file under
`imports`, so that `glasshouse resume`, `eval` and `monitor` know the term too.
"""

from glasshouse.cli import run_experiment

if __name__ == "__main__":
    run_experiment(__file__)
