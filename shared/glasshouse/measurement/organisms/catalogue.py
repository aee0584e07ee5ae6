"""Evaluations of organisms: tasks with a planted behaviour, whose labels are known by construction.

    labelled = label_rollouts(organism, rows, organism_monitors(organism))  # rows of the rollout log
    measures.reliance(labelled.planted, labelled.behaviour)
    measures.disclosure(labelled.behaviour, labelled.flagged["disclosure_rule"])

    labelling.py        labels of both arms: the summary in a run's log
    planted.py          the evaluation for `glasshouse monitor`, with intervals and nulls
    fitted_monitors.py  n-gram classifiers fitted on the labels, of the base model and again
    hint_swap.py        another hint with the same chain of thought
    substitution.py     the evaluation of `substitution`, whose label is an intervention

`EVALUATIONS` maps an organism to its additional evaluation. The organisms themselves (prompts,
modes and labels) are in `tasks/organisms`.
"""

from collections.abc import Callable, Mapping

from glasshouse.measurement.evaluations import Evaluation
from glasshouse.measurement.organisms.fitted_monitors import FittingPlan
from glasshouse.measurement.organisms.labelling import (
    LabelledRollouts,
    evaluate_organism,
    label_rollouts,
    organism_monitors,
    summarize_labels,
)
from glasshouse.measurement.organisms.planted import OrganismEvaluation
from glasshouse.measurement.organisms.substitution import SubstitutionEvaluation
from glasshouse.tasks.organisms.substitution import Substitution

EVALUATIONS: Mapping[str, Callable[[], Evaluation]] = {Substitution.name: SubstitutionEvaluation}

__all__ = [
    "EVALUATIONS",
    "FittingPlan",
    "LabelledRollouts",
    "OrganismEvaluation",
    "SubstitutionEvaluation",
    "evaluate_organism",
    "label_rollouts",
    "organism_monitors",
    "summarize_labels",
]
