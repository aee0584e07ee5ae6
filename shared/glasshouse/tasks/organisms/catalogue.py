"""Organisms: tasks with a planted behaviour. To add one, write one file and add it to `ORGANISMS`.

    organism = make_task("leaked_hint", {"inner_task": "sum_digits", "masked_digit_rate": 0.5})
    control, planted = organism.arms(problem).values()
    organism.shows_behaviour(planted, answer)

Organisms are tasks, so streams, recipes and rewards use them like any other task. What is measured on
them is in `monitorability/organisms`.
"""

from __future__ import annotations

from typing import Any

from glasshouse.tasks.organisms.base import FILLER_WORD, INNER_TASKS, Organism, OrganismOptions
from glasshouse.tasks.organisms.grader_bug import GraderBug
from glasshouse.tasks.organisms.leaked_hint import LeakedHint
from glasshouse.tasks.organisms.substitution import Substitution

ORGANISMS: dict[str, type[Organism[Any]]] = {
    o.name: o for o in (LeakedHint, GraderBug, Substitution)
}

__all__ = ["FILLER_WORD", "INNER_TASKS", "ORGANISMS", "Organism", "OrganismOptions"]
