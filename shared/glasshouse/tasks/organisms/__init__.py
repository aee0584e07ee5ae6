"""Organisms: tasks with a planted behaviour. One file an organism, and a line in `ORGANISMS`.

    organism = make("leaked_hint", {"of": "sum_digits", "smudged": 0.5})
    control, planted = organism.arms(problem).values()     # x = 0 and x = 1
    y = organism.behaviour(planted, answer)

They live among the tasks, to the left of everything, since streams, recipes and rewards draw and
demonstrate them like any task; what is measured on them is in `monitor/organisms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glasshouse.tasks.organisms.base import CARRIERS, CLOSING, Organism, OrganismOptions
from glasshouse.tasks.organisms.grader_bug import GraderBug
from glasshouse.tasks.organisms.leaked_hint import LeakedHint
from glasshouse.tasks.organisms.substitution import Substitution

ORGANISMS: Mapping[str, type[Organism[Any]]] = {
    o.name: o for o in (LeakedHint, GraderBug, Substitution)
}

__all__ = ["CARRIERS", "CLOSING", "ORGANISMS", "Organism", "OrganismOptions"]
