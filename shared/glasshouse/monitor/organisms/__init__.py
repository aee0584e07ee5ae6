"""Organisms measured: labels by construction, monitors beside them, one row a rollout.

    labelled = label(organism, rows, monitors_of(organism))      # rows: as the record holds them
    measures.reliance(labelled.x, labelled.y)
    measures.disclosure(labelled.y, labelled.z["discloses"])

substitution.py is the evaluation of E5, whose label is an intervention; `EVALUATIONS` says which organism
`glasshouse monitor` measures by one of its own.

What an organism *is* (its plant, modes and label) is in `tasks/organisms`.
"""

from collections.abc import Callable, Mapping

from glasshouse.monitor.evaluation import Evaluation
from glasshouse.monitor.organisms.evaluate import (
    SPLITS,
    Labelled,
    evaluate,
    label,
    monitors_of,
    summary,
)
from glasshouse.monitor.organisms.substitution import Flips
from glasshouse.tasks.organisms.substitution import Substitution

EVALUATIONS: Mapping[str, Callable[[], Evaluation]] = {Substitution.name: Flips}

__all__ = [
    "EVALUATIONS",
    "SPLITS",
    "Flips",
    "Labelled",
    "evaluate",
    "label",
    "monitors_of",
    "summary",
]
