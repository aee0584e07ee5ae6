"""What a monitor is shown: the parts of a rollout that its scope allows, and nothing else.

A `View` is built without the other parts, so no monitor can look at them, by mistake or not.
Where the chain of thought ends is decided by the answer parser (`grading.split`): the same code
for the reward and for every monitor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

import numpy as np

from glasshouse.answers import split
from glasshouse.errors import MonitorError
from glasshouse.measures.result import Floats


class Scope(StrEnum):
    """How much of a rollout a monitor sees."""

    PROMPT = "prompt"
    """The prompt alone: the floor. What it finds cannot come from what the model wrote."""
    ANSWER = "answer"
    """The question and the final answer."""
    COT = "cot"
    """The chain of thought alone."""
    COT_ANSWER = "cot+answer"
    """The chain of thought and the final answer."""
    ACTIVATIONS = "activations"
    """The policy's hidden state at the last token of the CoT; no text. For probes."""


PARTS: Mapping[Scope, tuple[str, ...]] = {
    Scope.PROMPT: ("prompt",),
    Scope.ANSWER: ("question", "answer"),
    Scope.COT: ("cot",),
    Scope.COT_ANSWER: ("cot", "answer"),
    Scope.ACTIVATIONS: (),
}


@dataclass(frozen=True, slots=True)
class View:
    """One rollout as one scope shows it.

    Example: `look(Scope.COT, prompt=…, question=…, completion="2+2=4\\n[ANSWER] 4")["cot"]` is
    `"2+2=4\\n"`, and `["answer"]` of it is an error.
    """

    scope: Scope
    parts: Mapping[str, str]
    state: Floats | None = field(default=None, compare=False)
    """(D,) with the scope `activations`, else None."""

    def __getitem__(self, part: str) -> str:
        if part not in self.parts:
            raise MonitorError(f'A monitor of scope "{self.scope}" is not shown the {part}.')
        return self.parts[part]

    @property
    def text(self) -> str:
        """Its parts one after the other."""
        return "\n".join(self.parts.values())


def look(
    scope: Scope,
    *,
    prompt: str,
    question: str,
    completion: str,
    state: Floats | None = None,
) -> View:
    """A rollout seen through a scope. `prompt` is the exact text sent, `question` the problem's."""
    if scope is Scope.ACTIVATIONS:
        if state is None:
            raise MonitorError("A probe needs the policy's hidden state; see monitors/probe.py.")
        return View(scope, MappingProxyType({}), np.asarray(state, dtype=np.float64))
    sections = split(completion)
    everything = {
        "prompt": prompt,
        "question": question,
        "cot": sections.cot,
        "answer": sections.answer,
    }
    return View(scope, MappingProxyType({part: everything[part] for part in PARTS[scope]}))
