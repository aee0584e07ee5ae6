"""Interventions on the same rollout: is the chain of thought load-bearing?

forcing.py     prefixes that are forced on the model, in its own tokens
edits.py       one wrong number, and the answer that follows from it by construction
ablate.py      every intervention on every rollout, in large greedy batches
evaluation.py  uplift, AOC, TRACE, mistake-follow, filler, transplant, steps: with intervals

Interventions().evaluate(subject).measures["necessity uplift"]
"""

from glasshouse.monitorability.interventions.ablation import FRACTIONS, Ablated, Change, ablate
from glasshouse.monitorability.interventions.edits import Edit, consequence, edit
from glasshouse.monitorability.interventions.evaluation import Interventions

__all__ = [
    "FRACTIONS",
    "Ablated",
    "Change",
    "Edit",
    "Interventions",
    "ablate",
    "consequence",
    "edit",
]
