"""Views: the parts of a rollout that a monitor's scope allows.

A `View` is built without the other parts, so a monitor cannot read them by accident. The answer
parser (`split_completion`) decides where the chain of thought ends, for the reward and for every
monitor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

import numpy as np

from glasshouse.errors import MonitorError
from glasshouse.tasks.answers import split_completion
from glasshouse.values import Floats


class Scope(StrEnum):
    """Which parts of a rollout a monitor sees."""

    PROMPT = "prompt"
    """The prompt alone: the floor, because it holds nothing that the model wrote."""
    ANSWER = "answer"
    """The question and the final answer."""
    COT = "cot"
    """The chain of thought alone."""
    COT_ANSWER = "cot+answer"
    """The chain of thought and the final answer."""
    ACTIVATIONS = "activations"
    """The policy's hidden state at the last token of the CoT, without text. For probes."""


SCOPE_PARTS: Mapping[Scope, tuple[str, ...]] = {
    Scope.PROMPT: ("prompt",),
    Scope.ANSWER: ("question", "answer"),
    Scope.COT: ("cot",),
    Scope.COT_ANSWER: ("cot", "answer"),
    Scope.ACTIVATIONS: (),
}


@dataclass(frozen=True, slots=True)
class View:
    """The parts of one rollout that one scope allows.

    Example: `make_view(Scope.COT, prompt=…, question=…, completion="2+2=4\\n[ANSWER] 4")["cot"]` is
    `"2+2=4\\n"`, and its `["answer"]` is an error.
    """

    scope: Scope
    parts: Mapping[str, str]
    state: Floats | None = field(default=None, compare=False)
    """(D,) with the scope `activations`, else None."""

    def __getitem__(self, part: str) -> str:
        if part not in self.parts:
            raise MonitorError(f'A monitor with the scope "{self.scope}" does not see the {part}.')
        return self.parts[part]


def make_view(
    scope: Scope,
    *,
    prompt: str,
    question: str,
    completion: str,
    state: Floats | None = None,
) -> View:
    """Builds the view of a rollout. `prompt` is the exact text sent, `question` the problem's."""
    if scope is Scope.ACTIVATIONS:
        return view_of_parts(scope, {}, state)
    sections = split_completion(completion)
    parts = {
        "prompt": prompt,
        "question": question,
        "cot": sections.cot,
        "answer": sections.answer,
    }
    return view_of_parts(scope, parts)


def view_of_parts(scope: Scope, parts: Mapping[str, str], state: Floats | None = None) -> View:
    """The view of a rollout that is already split: its prompt, question, cot and answer."""
    if scope is Scope.ACTIVATIONS:
        if state is None:
            raise MonitorError(
                "A view with the scope activations needs a hidden state; "
                "compute it with activation_probe.compute_cot_states."
            )
        return View(scope, MappingProxyType({}), np.asarray(state, dtype=np.float64))
    return View(scope, MappingProxyType({part: parts[part] for part in SCOPE_PARTS[scope]}))
