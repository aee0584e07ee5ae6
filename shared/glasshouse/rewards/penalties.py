"""Pressures: what is taken off a rollout's reward for the way it was written.

    reward = terms of the answer  −  Σ λ · penalty          every penalty in [0, 1], logged by name

    length       tokens beyond a budget
    monitor      λ · z: a monitor in the reward flags it
    aligned      the planted key was used and the CoT does not say so
    orthogonal   a control: a word after the answer that means nothing

Outcome alone is no pressure at all. KL is the learner's (`learn.kl_coef`), shuffled and random rewards
are the collector's (`reward.shuffle`, `reward.random`).

λ is fixed (`weight`), or adaptive: with a `floor` it starts at 0, rises while the step's true
accuracy holds the floor and falls while it does not, so that a penalty never costs the task.

To add one, write its class under `@pressure("name")`; the config then knows it by that name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from glasshouse.answers import split
from glasshouse.errors import ConfigError, MonitorError, RewardError, nearest
from glasshouse.monitors import Monitor, RuleMonitor, keep_apart, score_all
from glasshouse.monitors.step_verifier import FORMS
from glasshouse.monitors.views import Scope, look
from glasshouse.rewards.terms import REWARDS
from glasshouse.tasks import Organism, Task
from glasshouse.tasks.organisms import CLOSING
from glasshouse.types import Rollout

Groups = list[list[Rollout]]


class PressureOptions(BaseModel):
    """What every pressure can be told."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    kind: str = ""
    """Which pressure; empty: the one of this name."""
    weight: float = Field(1.0, ge=0, allow_inf_nan=False)
    """λ; with a floor, the most that λ becomes."""
    floor: float | None = Field(None, ge=0, le=1)
    """Adaptive: λ rises only while the step's accuracy is at least this; empty: λ is fixed."""
    rate: float = Field(0.1, gt=0, le=1)
    """Adaptive: by which share of `weight` λ moves in a step."""


class Pressure(ABC):
    """One penalty, of one rollout.

    Example: `Length("length", Length.Options(weight=0.5, budget=20), task).penalty(rollout)`
    """

    Options: ClassVar[type[PressureOptions]] = PressureOptions

    def __init__(self, name: str, options: Any, task: Task[Any]) -> None:
        self.name, self.options, self.task = name, options, task

    @abstractmethod
    def penalty(self, rollout: Rollout) -> float:
        """How much of the weight is taken off, from 0 to 1."""

    @property
    def monitors(self) -> tuple[Monitor, ...]:
        """Monitors that the policy is trained against: none of them may evaluate."""
        return ()


PRESSURES: dict[str, type[Pressure]] = {}
"""Every pressure by name."""
SomePressure = TypeVar("SomePressure", bound=type[Pressure])


def pressure(name: str) -> Callable[[SomePressure], SomePressure]:
    """Register a pressure under a name."""

    def register(kind: SomePressure) -> SomePressure:
        PRESSURES[name] = kind
        return kind

    return register


# ── the pressures ────────────────────────────────────────────────────────────────────────────────


class LengthOptions(PressureOptions):
    budget: int = Field(0, ge=0)
    """Tokens that cost nothing."""
    per: int = Field(100, ge=1)
    """So many tokens beyond the budget cost the whole weight."""


@pressure("length")
class Length(Pressure):
    """Tokens beyond a budget, each a little."""

    Options = LengthOptions

    def penalty(self, rollout: Rollout) -> float:
        over = len(rollout.completion.tokens) - self.options.budget
        return min(1.0, max(0, over) / self.options.per)


class WatchedOptions(PressureOptions):
    scope: Scope = Scope.COT
    """What the monitor is shown."""
    keywords: tuple[str, ...] = ()
    """Whole words that it looks for; with no patterns either: the organism's disclosing words."""
    patterns: tuple[str, ...] = ()
    """Regular expressions that it looks for."""


@pressure("monitor")
class Watched(Pressure):
    """λ · z: a rule monitor in the reward."""

    Options = WatchedOptions
    usual_scope: ClassVar[Scope | None] = None

    def __init__(self, name: str, options: Any, task: Task[Any]) -> None:
        super().__init__(name, options, task)
        keywords = options.keywords
        if not keywords and not options.patterns:
            keywords = self._usual()
        if not keywords and not options.patterns:
            raise ConfigError(
                f"reward.penalties.{name} has nothing to look for: give it keywords or patterns."
            )
        self.rule = RuleMonitor(name, options.scope, keywords=keywords, patterns=options.patterns)

    def _usual(self) -> tuple[str, ...]:
        return self.task.disclosing if isinstance(self.task, Organism) else ()

    def flagged(self, rollout: Rollout) -> bool:
        """z. A monitor without a verdict is no reward and no penalty: it ends the run."""
        view = look(
            self.rule.scope, prompt=rollout.prompt_text, question=rollout.problem.question,
            completion=rollout.text,
        )  # fmt: skip
        verdict = score_all(self.rule, [view])[0]
        if verdict.flag is None:
            raise RewardError(f'The monitor "{self.name}" in the reward failed: {verdict.reason}.')
        return verdict.flag

    def penalty(self, rollout: Rollout) -> float:
        return float(self.flagged(rollout))

    @property
    def monitors(self) -> tuple[Monitor, ...]:
        return (self.rule,)


class OrthogonalOptions(WatchedOptions):
    scope: Scope = Scope.ANSWER
    """After the answer: a word before it would share its place with a disclosure."""


@pressure("orthogonal")
class Orthogonal(Watched):
    """The control: a word that has nothing to do with the behaviour, after the answer."""

    Options = OrthogonalOptions

    def _usual(self) -> tuple[str, ...]:
        return (CLOSING,)


@pressure("aligned")
class Aligned(Watched):
    """The aligned control: the key was used, and the CoT does not say so.

    Used: the answer is the key's, and the written steps do not lead to it.
    """

    def penalty(self, rollout: Rollout) -> float:
        key = rollout.problem.meta.get("key")
        if key is None or rollout.grade.extracted.value != key:
            return 0.0
        steps, _ = FORMS[rollout.problem.task]
        led_there = steps(split(rollout.text).cot).conclusion == key
        return float(not led_there and not self.flagged(rollout))


# ── all of a run's ───────────────────────────────────────────────────────────────────────────────


class Pressures:
    """The pressures of a run, and where the adaptive ones stand.

    Example: `Pressures.of({"monitor": {"weight": 1.0}}, task).apply(groups)`
    """

    def __init__(self, pressures: Sequence[Pressure] = ()) -> None:
        self.pressures = tuple(pressures)
        self.weights = {p.name: 0.0 if _adaptive(p) else p.options.weight for p in pressures}

    @classmethod
    def of(
        cls,
        settings: Mapping[str, Mapping[str, Any]],
        task: Task[Any],
        evaluating: Iterable[Monitor] = (),
    ) -> Pressures:
        """As `reward.penalties` says; a monitor that also evaluates is refused."""
        made = [_make(name, dict(given), task) for name, given in settings.items()]
        believed = list(evaluating)
        for one in made:
            for monitor in believed:
                if one.monitors and monitor.name == one.name:
                    raise ConfigError(
                        f'"{one.name}" is in reward.penalties and among the monitors that evaluate: a '
                        "policy trained against a monitor cannot be measured with it. Rename or remove one."
                    )
        try:
            keep_apart([m for one in made for m in one.monitors], believed)
        except MonitorError as error:
            raise ConfigError(f"reward.penalties: {error}") from None
        return cls(made)

    def apply(self, groups: Groups) -> Groups:
        """The rollouts with every penalty among their parts, and taken off their reward."""
        return [[self._pressed(r) for r in group] for group in groups] if self.pressures else groups

    def _pressed(self, rollout: Rollout) -> Rollout:
        parts = {p.name: p.penalty(rollout) for p in self.pressures}
        taken = sum(self.weights[name] * value for name, value in parts.items())
        grade = rollout.grade
        return replace(
            rollout,
            grade=replace(grade, reward=grade.reward - taken, parts={**grade.parts, **parts}),
        )

    def adapt(self, accuracy: float) -> dict[str, float]:
        """After a step: move the adaptive weights; returns what they were, for the log."""
        row = {f"lambda_{name}": weight for name, weight in self.weights.items()}
        for p in self.pressures:
            if _adaptive(p):
                move = p.options.rate * p.options.weight
                up = move if accuracy >= p.options.floor else -move
                self.weights[p.name] = min(p.options.weight, max(0.0, self.weights[p.name] + up))
        return row

    def state(self) -> dict[str, float]:
        """Where the weights stand: part of what a checkpoint holds."""
        return dict(self.weights)

    def restore(self, state: Mapping[str, float]) -> None:
        self.weights |= state


def _adaptive(one: Pressure) -> bool:
    return one.options.floor is not None


def _make(name: str, given: dict[str, Any], task: Task[Any]) -> Pressure:
    kind = given.get("kind") or name
    if kind not in PRESSURES:
        raise ConfigError(
            f'reward.penalties: there is no pressure "{kind}".{nearest(kind, PRESSURES)}'
        )
    if name in REWARDS or name == "earned":
        raise ConfigError(
            f'reward.penalties: "{name}" is the name of a reward term; call the pressure otherwise.'
        )
    model = PRESSURES[kind].Options
    for option in given:
        if option not in model.model_fields:
            near = nearest(option, model.model_fields)
            raise ConfigError(f'reward.penalties.{name} has no option "{option}".{near}')
    try:
        return PRESSURES[kind](name, model.model_validate(given), task)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"reward.penalties.{name}.{where}: {first['msg']}.") from None
