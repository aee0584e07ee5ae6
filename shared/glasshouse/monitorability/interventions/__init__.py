"""Interventions on the same rollout: does the answer depend on the chain of thought?

prefixes.py    forced prefixes, in the tokens of the rollout
edits.py       one changed step, and the answer that it implies by construction
ablation.py    every intervention on every rollout, in large greedy batches
evaluation.py  uplift, AOC, TRACE, mistake-follow, filler, transplant, steps: with intervals

Example: `InterventionEvaluation().evaluate(checkpoint).measures["necessity_uplift"]`
"""

from glasshouse.monitorability.interventions.ablation import (
    FRACTIONS,
    AblatedRollout,
    InterventionKind,
    ablate,
)
from glasshouse.monitorability.interventions.edits import Edit, implied_answer, make_edit
from glasshouse.monitorability.interventions.evaluation import InterventionEvaluation

__all__ = [
    "FRACTIONS",
    "AblatedRollout",
    "Edit",
    "InterventionEvaluation",
    "InterventionKind",
    "ablate",
    "implied_answer",
    "make_edit",
]
