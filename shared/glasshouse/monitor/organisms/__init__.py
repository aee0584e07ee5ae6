"""Organisms measured: labels by construction, monitors beside them, one row a rollout.

    labelled = label(organism, rows, monitors_of(organism))      # rows: as the record holds them
    measures.reliance(labelled.x, labelled.y)
    measures.disclosure(labelled.y, labelled.z["discloses"])

What an organism *is* (its plant, modes and label) is in `tasks/organisms`.
"""

from glasshouse.monitor.organisms.evaluate import (
    SPLITS,
    Labelled,
    evaluate,
    label,
    monitors_of,
    summary,
)

__all__ = ["SPLITS", "Labelled", "evaluate", "label", "monitors_of", "summary"]
