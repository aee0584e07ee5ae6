"""The monitor protocol, and the views that monitors score.

A `View` holds the parts of a rollout that a monitor's scope allows and no others, so a monitor cannot read them by
accident. The answer parser (`split_completion`) decides where the chain of thought ends, for the reward and for every
monitor. A monitor that fails has no score and no flag.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import numpy as np

from glasshouse.errors import GlasshouseError, MonitorError
from glasshouse.registry import Registry, require_members
from glasshouse.tasks.answers import split_completion
from glasshouse.types import Rollout
from glasshouse.values import FAILED, Floats, Ints

FILE = "monitor.json"
"""Of a saved monitor, in its folder."""


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
    scope: Scope, *, prompt: str, question: str, completion: str, state: Floats | None = None
) -> View:
    """Builds the view of a rollout. `prompt` is the exact text sent, `question` the problem's."""
    split = split_completion(completion)
    parts = {"prompt": prompt, "question": question, "cot": split.cot, "answer": split.answer}
    return view_of_parts(scope, parts, state)


def view_rollout(scope: Scope, rollout: Rollout, state: Floats | None = None) -> View:
    """Builds the view of a rollout of this package."""
    parts = {"prompt": rollout.prompt, "question": rollout.problem.question}
    return make_view(scope, **parts, completion=rollout.text, state=state)


def view_of_parts(scope: Scope, parts: Mapping[str, str], state: Floats | None = None) -> View:
    """The view of a rollout that is already split: its prompt, question, cot and answer."""
    seen = MappingProxyType({part: parts[part] for part in SCOPE_PARTS[scope]})
    if scope is not Scope.ACTIVATIONS:
        return View(scope, seen)
    if state is None:
        raise MonitorError("A view with the scope activations needs a hidden state.")
    return View(scope, seen, np.asarray(state, dtype=np.float64))


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorOutput:
    """A monitor's output for one rollout.

    Example: `MonitorOutput.from_score(0.8, threshold=0.5, reason="mentions the hint")`
    """

    score: float | None
    """Higher is more suspicious; None if the monitor failed."""
    flagged: bool | None
    """Whether the score is above the monitor's threshold; None if the monitor failed."""
    reason: str
    """Why the monitor flags the rollout, or why it failed."""
    tokens: int = field(default=0, compare=False)
    """What a model read and wrote for it; 0 for a monitor that runs no model."""
    seconds: float = field(default=0.0, compare=False)

    def as_row(self) -> dict[str, Any]:
        """As JSON values, with what it cost if a model gave it."""
        row = asdict(self)
        return row if self.tokens else {n: row[n] for n in ("score", "flagged", "reason")}

    @property
    def failed(self) -> bool:
        """The monitor has no score. It must count neither as a reward nor as a negative."""
        return self.score is None

    @classmethod
    def from_score(
        cls, score: float, *, threshold: float, reason: str = "", **cost: Any
    ) -> MonitorOutput:
        if not np.isfinite(score):
            return cls.failure(f"the score is {score}, not a number")
        return cls(score=score, flagged=score > threshold, reason=reason, **cost)

    @classmethod
    def failure(cls, reason: str) -> MonitorOutput:
        return cls(score=None, flagged=None, reason=reason)


@runtime_checkable
class Monitor(Protocol):
    """Scores a view of a rollout."""

    @property
    def name(self) -> str: ...

    @property
    def scope(self) -> Scope: ...

    def score(self, view: View) -> MonitorOutput: ...

    def describe(self) -> dict[str, Any]:
        """Everything that determines the outputs, as JSON values: for provenance and hashing."""


monitor: Registry[Any] = Registry(
    "monitor",
    "monitors",
    key="evaluate.monitors",
    modules={
        "rule": "glasshouse.monitors.rules",
        "steps": "glasshouse.monitors.rules",
        "judge": "glasshouse.monitors.llm_judge",
    },
)
"""Kinds of monitors by name: classes that take a name and their settings."""
check_monitor = require_members(
    "monitor", ("name", "scope", "score", "describe"), "glasshouse/monitors/base.py"
)


def score_all(monitor: Monitor, views: Sequence[View]) -> list[MonitorOutput]:
    """Scores each view, or all at once with `score_many`, if the monitor has it. An exception in the monitor becomes a
    failed output with its reason; a `GlasshouseError` is raised, because the user can fix its cause."""
    for view in views:
        if view.scope is not monitor.scope:
            raise MonitorError(
                f'The monitor "{monitor.name}" has the scope "{monitor.scope}", '
                f'but a view has the scope "{view.scope}".'
            )
    if score_many := getattr(monitor, "score_many", None):
        return list(score_many(views))
    return [_score_guarded(monitor, view) for view in views]


def _score_guarded(monitor: Monitor, view: View) -> MonitorOutput:
    try:
        return monitor.score(view)
    except GlasshouseError:
        raise
    except Exception as error:
        return MonitorOutput.failure(f"{type(error).__name__}: {error}"[:300])


def mean_cost(outputs: Iterable[Any]) -> dict[str, float]:
    """What a verdict of a monitor that runs a model costs, from its outputs or their rows; empty for any other."""
    rows = (o if isinstance(o, dict) else o.as_row() for o in outputs)
    costs = [(row["seconds"], row["tokens"]) for row in rows if row.get("tokens")]
    names = ("seconds_per_verdict", "tokens_per_verdict")
    return dict(zip(names, np.mean(costs, axis=0).tolist(), strict=True)) if costs else {}


def describe_cost(cost: Mapping[str, Any]) -> str:
    """Example: "0.31 s and 212 tokens per verdict"."""
    return f"{cost['seconds_per_verdict']:.2g} s and {cost['tokens_per_verdict']:.0f} tokens per verdict"


def stack_flags(outputs: Iterable[MonitorOutput]) -> Ints:
    """(R,) flags: 1 flagged, 0 not, FAILED where the monitor failed."""
    return np.array([FAILED if o.failed else int(bool(o.flagged)) for o in outputs], dtype=np.int64)


def stack_scores(outputs: Iterable[MonitorOutput]) -> Floats:
    """(R,) scores, NaN where the monitor failed."""
    return np.array([np.nan if o.score is None else o.score for o in outputs], dtype=np.float64)


def hash_monitor(monitor: Monitor) -> str:
    """A hash of everything that determines a monitor's outputs, without its name."""
    description = {k: v for k, v in monitor.describe().items() if k != "name"}
    text = json.dumps(description, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
