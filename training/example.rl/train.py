"""The template for experiments: GRPO on digit sums, from the pocket model.

config.yaml holds the whole experiment. The same script runs it on mock assets, a laptop or a cluster,
with other config files or overrides:

    python training/example.rl/train.py
    python training/example.rl/train.py seed=1 learn.algorithm=rloo
    python training/example.rl/train.py --config tests/test_config.yaml

Code that only this experiment needs goes here too. Below is one part of each kind: uncomment what you
need, and name it in config.yaml as its comment says. The run's configuration lists this file under
`imports`, so that `glasshouse resume`, `eval` and `monitor` know your parts. docs/extend.md explains them.
"""

from glasshouse.cli.train import run_experiment

# from glasshouse.generate.torch_engine import TorchGenerator
# from glasshouse.generate.engines import engine
# from glasshouse.monitors.base import MonitorOutput
# from glasshouse.monitors.views import Scope
# from glasshouse.monitors.factory import monitor_kind
# from glasshouse.rollout.terms import RewardInputs, reward
# from glasshouse.rollout.penalties import Penalty, penalty
# from glasshouse.tasks.catalogue import register_task
# from glasshouse.tasks.organisms.leaked_hint import LeakedHint
# from glasshouse.tasks.sum_digits import SumDigits, SumDigitsOptions
# from glasshouse.track.registry import tracker
#
#
# @reward("brief")  # reward.terms: {exact: 1, brief: 0.1}
# def brief(inputs: RewardInputs) -> float:
#     return 1 - min(len(inputs.text) / 200, 2)
#
#
# @penalty("shouting")  # reward.penalties: {shouting: {weight: 0.5}}
# class Shouting(Penalty):
#     def compute(self, rollout):
#         return float("!" in rollout.text)
#
#
# @monitor_kind("length")  # evaluate.monitors: {long: {kind: length, limit: 100}}
# class LengthMonitor:
#     scope = Scope.COT
#
#     def __init__(self, name, limit=100):
#         self.name, self.limit = name, limit
#
#     def score(self, view):
#         return MonitorOutput.from_score(float(len(view["cot"])), threshold=self.limit)
#
#     def describe(self):
#         return {"kind": "length", "name": self.name, "scope": self.scope.value, "limit": self.limit}
#
#
# class PairOptions(SumDigitsOptions):
#     count: tuple[int, int] = (2, 2)
#
#
# @register_task  # task.name: digit_pairs
# class DigitPairs(SumDigits):
#     name = "digit_pairs"
#     description = "total digit sum of two integers"
#     Options = PairOptions
#
#
# @register_task  # an organism; task.name: second_hint
# class SecondHint(LeakedHint):
#     name = "second_hint"
#     description = "the leaked hint, with another word that discloses its use"
#     disclosure_keywords = ("hint",)
#
#
# @tracker("print")  # trackers: [print]
# class PrintTracker:
#     url = "this terminal"
#
#     def start(self, run):
#         return {}
#
#     def log(self, metrics):
#         print(metrics.kind, metrics.step)
#
#     def finish(self, summary, outcome):
#         print(outcome)
#
#
# @engine("counting")  # generate.engine: counting
# class CountingEngine(TorchGenerator):
#     requests = 0
#
#     def generate(self, requests, sampling):
#         CountingEngine.requests += len(requests)
#         return super().generate(requests, sampling)

if __name__ == "__main__":
    run_experiment(__file__)
