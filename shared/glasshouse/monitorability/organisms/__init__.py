"""Organisms measured: labels by construction, monitors beside them, one row a rollout.

    labelled = label(organism, rows, monitors_of(organism))      # rows: as the record holds them
    measures.reliance(labelled.x, labelled.y)
    measures.disclosure(labelled.y, labelled.z["discloses"])

    evaluate.py    one checkpoint's rollouts, labelled: what a run's log says of an evaluation
    evaluation.py  the same for `glasshouse monitor`, with intervals and nulls
    witnesses.py   n-gram classifiers fitted on the labels, at the base and again
    swap.py        another plant under the same chain of thought
    substitution.py  the evaluation of E5, whose label is an intervention

`EVALUATIONS` says which organism `glasshouse monitor` measures by one more of its own.

What an organism *is* (its plant, modes and label) is in `tasks/organisms`.
"""

from collections.abc import Callable, Mapping

from glasshouse.monitorability.base import Evaluation
from glasshouse.monitorability.organisms.fitted_monitors import Plan
from glasshouse.monitorability.organisms.labelling import (
    SPLITS,
    Labelled,
    evaluate,
    label,
    monitors_of,
    summary,
)
from glasshouse.monitorability.organisms.planted import Planted
from glasshouse.monitorability.organisms.substitution import Flips
from glasshouse.tasks.organisms.substitution import Substitution

EVALUATIONS: Mapping[str, Callable[[], Evaluation]] = {Substitution.name: Flips}

__all__ = [
    "EVALUATIONS",
    "SPLITS",
    "Flips",
    "Labelled",
    "Plan",
    "Planted",
    "evaluate",
    "label",
    "monitors_of",
    "summary",
]
