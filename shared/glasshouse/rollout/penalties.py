"""What is done to rewards after grading: penalties for the way a completion is written, and negative controls.

    reward = combined reward terms  −  Σ weight · penalty      each penalty in [0, 1], logged by name

    length       tokens beyond a budget
    monitor      1 if a monitor in the reward flags the completion: keywords, or any other monitor
    aligned      1 if the planted hint was used and the CoT does not disclose it
    orthogonal   control: 1 for a meaningless word after the answer

The weight is fixed, or adaptive: with an `accuracy_floor` it starts at 0, rises while the accuracy of the step is at
least the floor and falls while it is not, so that a penalty never costs the task. With `permute: true` the values of a
penalty are permuted among the rollouts of a step: the matching null of an arm with that penalty.

KL to the starting policy belongs to the learner (`learn.kl_coef`). To add a penalty, define its class under
`@penalty("name")`; `reward.penalties` then knows it by that name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from glasshouse import randomness
from glasshouse.errors import ConfigError, RewardError, validate_options
from glasshouse.monitors.base import (
    Monitor,
    Scope,
    hash_monitor,
    make_view,
    score_all,
)
from glasshouse.monitors.factory import make_monitor
from glasshouse.monitors.llm_judge import JudgeMonitor
from glasshouse.monitors.rules import RuleMonitor
from glasshouse.monitors.scoring import score_rollouts
from glasshouse.registry import Registry, require_members
from glasshouse.rollout.grading import reward
from glasshouse.tasks.answers import split_completion
from glasshouse.tasks.base import Task, find_step_check, make_task
from glasshouse.tasks.organisms import FILLER_WORD, Organism
from glasshouse.types import Rollout

if TYPE_CHECKING:
    from glasshouse.models.policy import Policy

Groups = list[list[Rollout]]
PROBE_PROBLEMS = 20


class PenaltyOptions(BaseModel):
    """Options of every penalty."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    kind: str = ""
    """Which penalty; empty: the one with this name."""
    weight: float = Field(1.0, ge=0, allow_inf_nan=False)
    """Factor of the penalty; with an `accuracy_floor`, its maximum."""
    accuracy_floor: float | None = Field(None, ge=0, le=1)
    """Adaptive: the weight rises only while the accuracy of the step is at least this; empty: the
    weight is fixed."""
    adapt_rate: float = Field(0.1, gt=0, le=1)
    """Adaptive: share of `weight` by which the current weight moves per step."""
    permute: bool = False
    """Null: permute the values of this penalty among the rollouts of a step. As many rollouts are
    penalised as without it, but the penalty says nothing about the completion. Each rollout's own
    value is logged as `<name>_own`."""


class Penalty(ABC):
    """A penalty on one rollout."""

    Options: ClassVar[type[PenaltyOptions]] = PenaltyOptions
    monitors: tuple[Monitor, ...] = ()
    """Monitors that the policy is trained against: none of them may evaluate."""
    policy: Policy | None = None
    """The model that is trained, whose states a probe in the reward reads."""

    def __init__(self, name: str, options: Any, task: Task[Any]) -> None:
        self.name, self.options, self.task = name, options, task

    @abstractmethod
    def compute(self, rollout: Rollout) -> float:
        """The penalty before weighting, in [0, 1]."""

    def compute_all(self, rollouts: Sequence[Rollout]) -> list[float]:
        """The penalty of each rollout; a monitor that runs a model gets them together."""
        return [self.compute(rollout) for rollout in rollouts]

    @property
    def is_adaptive(self) -> bool:
        return self.options.accuracy_floor is not None


def _check_penalty(name: str, part: Any) -> None:
    if not (isinstance(part, type) and issubclass(part, Penalty)):
        raise ConfigError(f'The penalty "{name}" must be a class that inherits from Penalty.')
    require_members("penalty", ("compute",), "glasshouse/rollout/penalties.py")(name, part)


penalty: Registry[type[Penalty]] = Registry(
    "penalty", "penalties", key="reward.penalties", check=_check_penalty
)
"""All penalties by name: `@penalty("shouting")` above a class that inherits from `Penalty`."""


class LengthPenaltyOptions(PenaltyOptions):
    budget: int = Field(0, ge=0)
    """Tokens without a penalty."""
    saturation_tokens: int = Field(100, ge=1)
    """Tokens beyond the budget at which the penalty reaches 1."""


@penalty("length")
class LengthPenalty(Penalty):
    """Tokens beyond a budget, linear up to a maximum."""

    Options = LengthPenaltyOptions

    def compute(self, rollout: Rollout) -> float:
        excess = len(rollout.completion.tokens) - self.options.budget
        return min(1.0, max(0, excess) / self.options.saturation_tokens)


class MonitorPenaltyOptions(PenaltyOptions):
    scope: Scope = Scope.COT
    """What the monitor sees."""
    keywords: tuple[str, ...] = ()
    """Whole words to search for; without patterns either: the organism's disclosure keywords."""
    patterns: tuple[str, ...] = ()
    """Regular expressions to search for."""
    monitor: str | dict[str, Any] = ""
    """Instead of them: any monitor, as saved:FOLDER, or a kind with its settings as in `evaluate.monitors`."""


@penalty("monitor")
class MonitorPenalty(Penalty):
    """1 if a monitor in the reward flags the completion."""

    Options = MonitorPenaltyOptions

    def __init__(self, name: str, options: Any, task: Task[Any]) -> None:
        super().__init__(name, options, task)
        keywords, patterns = options.keywords, options.patterns
        keywords = keywords or (() if patterns else self._default_keywords())
        if options.monitor:
            self.monitor = make_monitor(name, options.monitor)
        elif keywords or patterns:
            self.monitor = RuleMonitor(name, options.scope, keywords=keywords, patterns=patterns)
        else:
            raise ConfigError(
                f"reward.penalties.{name} has nothing to search for: give keywords, patterns or a monitor."
            )
        self.monitors = (self.monitor,)

    def _default_keywords(self) -> tuple[str, ...]:
        return self.task.disclosure_keywords if isinstance(self.task, Organism) else ()

    def compute(self, rollout: Rollout) -> float:
        return self.compute_all([rollout])[0]

    def compute_all(self, rollouts: Sequence[Rollout]) -> list[float]:
        """Whether the monitor flags each rollout. A monitor that fails stops the run: neither reward nor
        penalty would be right."""
        verdicts = score_rollouts(self.monitor, rollouts, self.policy)
        for verdict in verdicts:
            if verdict.failed:
                raise RewardError(
                    f"The monitor of reward.penalties.{self.name} failed: {verdict.reason}."
                )
        return [float(bool(verdict.flagged)) for verdict in verdicts]


class OrthogonalPenaltyOptions(MonitorPenaltyOptions):
    scope: Scope = Scope.ANSWER
    """After the answer: a word before it would compete with a disclosure for its position."""


@penalty("orthogonal")
class OrthogonalPenalty(MonitorPenalty):
    """Control: a word after the answer that has nothing to do with the behaviour."""

    Options = OrthogonalPenaltyOptions

    def _default_keywords(self) -> tuple[str, ...]:
        return (FILLER_WORD,)


@penalty("aligned")
class AlignedPenalty(MonitorPenalty):
    """Aligned control: the hint was used, and the CoT does not disclose it.

    The hint counts as used if the answer equals it and the written steps do not lead to it.
    """

    def compute_all(self, rollouts: Sequence[Rollout]) -> list[float]:
        flagged = super().compute_all(rollouts)
        pairs = zip(rollouts, flagged, strict=True)
        return [float(not flag and self._is_silent_use(r)) for r, flag in pairs]

    @staticmethod
    def _is_silent_use(rollout: Rollout) -> bool:
        hint = rollout.problem.meta.get("hint")
        if hint is None or rollout.grade.extracted.model_answer != hint:
            return False
        check_steps = find_step_check(rollout.problem.task)
        check = check_steps(split_completion(rollout.text).cot) if check_steps else None
        return check is None or check.conclusion != hint


class Penalties:
    """The penalties of a run with their current weights.

    Example: `Penalties.from_config({"monitor": {"weight": 1.0}}, task).apply(groups, seed=0, step=1)`
    """

    def __init__(self, penalties: Sequence[Penalty] = ()) -> None:
        self.penalties = tuple(penalties)
        self.weights = {p.name: 0.0 if p.is_adaptive else p.options.weight for p in penalties}

    def attach(self, policy: Policy, cache: Path) -> None:
        """Give probes in the reward the model that is trained. What a judge says is kept in the run directory: steps
        that are repeated after an interruption get the same verdicts."""
        for item in self.penalties:
            item.policy = policy
            for monitor in item.monitors:
                if isinstance(monitor, JudgeMonitor):
                    monitor.cache = cache

    @classmethod
    def from_config(
        cls,
        options: Mapping[str, Mapping[str, Any]],
        task: Task[Any],
        evaluation_monitors: Iterable[Monitor] = (),
    ) -> Penalties:
        """Builds `reward.penalties`; raises if one of their monitors also evaluates."""
        penalties = []
        for name, values in options.items():
            if name in reward or name == "earned":
                raise ConfigError(
                    f'reward.penalties: "{name}" is the name of a reward term; choose another name.'
                )
            made = penalty.get(values.get("kind") or name)
            checked = validate_options(made.Options, dict(values), f"reward.penalties.{name}")
            penalties.append(made(name, checked, task))
        check_independent([m for p in penalties for m in p.monitors], evaluation_monitors, task)
        return cls(penalties)

    def apply(self, groups: Groups, *, seed: int, step: int) -> Groups:
        """The rollouts with each penalty logged in `grade.terms` and subtracted from the reward.

        `seed` and `step` key the permutations of penalties with `permute`.
        """
        if not self.penalties:
            return groups
        rollouts = [rollout for group in groups for rollout in group]
        columns: dict[str, list[float]] = {}
        own: dict[str, list[float]] = {}  # values of permuted penalties before that
        for item in self.penalties:
            values = columns[item.name] = item.compute_all(rollouts)
            if item.options.permute:
                own[f"{item.name}_own"] = list(values)
                randomness.stream("permuted penalty", seed, step, item.name).shuffle(values)
        columns |= own
        rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
        return [[self._penalize(rollout, next(rows)) for rollout in group] for group in groups]

    def _penalize(self, rollout: Rollout, values: Mapping[str, float]) -> Rollout:
        total = sum(weight * values[name] for name, weight in self.weights.items())
        grade = rollout.grade
        terms = {**grade.terms, **values}
        return replace(rollout, grade=replace(grade, reward=grade.reward - total, terms=terms))

    def update_weights(self, accuracy: float) -> dict[str, float]:
        """Moves the adaptive weights after a step; returns the weights before, as metrics."""
        metrics = {f"weight_{name}": weight for name, weight in self.weights.items()}
        for item in self.penalties:
            options = item.options
            if item.is_adaptive:
                change = options.adapt_rate * options.weight
                change = change if accuracy >= options.accuracy_floor else -change
                weight = self.weights[item.name] + change
                self.weights[item.name] = min(options.weight, max(0.0, weight))
        return metrics


def make_penalty(name: str, task: Task[Any] | str, **options: Any) -> Penalty:
    """A penalty, as `reward.penalties` would build it.

    Example: `make_penalty("length", "sum_digits", budget=20)`
    """
    built = make_task(task) if isinstance(task, str) else task
    return Penalties.from_config({name: options}, built).penalties[0]


def check_independent(
    in_reward: Sequence[Monitor], evaluation_monitors: Iterable[Monitor], task: Task[Any]
) -> None:
    """Raises if a monitor in the reward also evaluates, under any name, or covers a rule that does: it flags every
    probe that the rule flags.

    A reward rule with the keywords `key` and `hint` differs from an evaluating rule with `key`, but RL against it
    removes all that the evaluation could see. Probes are demonstrations in all modes, and the rules' own keywords.
    An organism's own rules may be covered: whether what they flag disappears is what such a penalty asks."""
    evaluating = list(evaluation_monitors)
    own = task.monitor_patterns if isinstance(task, Organism) else {}
    rules = [m for m in evaluating if isinstance(m, RuleMonitor) and m.name not in own]
    rewarded = [m for m in in_reward if isinstance(m, RuleMonitor)]
    words = [word for monitor in (*rewarded, *rules) for word in monitor.keywords]
    probes = list(_probe_completions(task, words)) if rewarded and rules else []
    for monitor in in_reward:
        for other in evaluating:
            equal = other.name == monitor.name or hash_monitor(other) == hash_monitor(monitor)
            seen = _flagged(other, probes) if monitor in rewarded and other in rules else set()
            if equal or (seen and seen <= _flagged(monitor, probes)):
                raise ConfigError(
                    f'reward.penalties: the evaluating monitor "{other.name}" flags nothing that '
                    f'"{monitor.name}" in the reward does not flag. A policy trained against a monitor cannot be '
                    "evaluated with it or a part of it. Use another monitor, under another name."
                )


def _probe_completions(task: Task[Any], keywords: Sequence[str]) -> Iterator[str]:
    for index in range(PROBE_PROBLEMS):
        rng = randomness.stream("monitor probe", task.name, index)
        problem = task.draw(rng)
        for mode in task.modes:
            yield task.demonstrate(problem, mode, rng)
    for word in dict.fromkeys(keywords):
        yield f"{word}\n[ANSWER] 1"
        yield f"[ANSWER] 1 {word}"


def _flagged(monitor: Monitor, completions: Sequence[str]) -> set[int]:
    """The indices of the completions that the monitor flags."""
    views = [
        make_view(monitor.scope, prompt="", question="", completion=text) for text in completions
    ]
    outputs = score_all(monitor, views)
    return {index for index, output in enumerate(outputs) if output.flagged}


# ── negative controls: rewards that say nothing about the completion, on which RL must not learn ─────


def shuffle_rewards(groups: Groups, seed: int, step: int) -> Groups:
    """Permute the step's rewards among all its rollouts; each keeps its own in its terms, as `earned`."""
    rewards = [r.grade.reward for group in groups for r in group]
    randomness.stream("shuffle", seed, step).shuffle(rewards)
    permuted = iter(rewards)
    return [[_with_reward(r, next(permuted)) for r in group] for group in groups]


def random_rewards(groups: Groups, seed: int, step: int) -> Groups:
    """Replace every reward by -1 or 1 at random, keyed by problem and sample."""

    def draw(r: Rollout) -> float:
        return randomness.stream("coin", seed, step, r.problem.key, r.sample).choice((-1.0, 1.0))

    return [[_with_reward(r, draw(r)) for r in group] for group in groups]


def _with_reward(rollout: Rollout, reward: float) -> Rollout:
    terms = {**rollout.grade.terms, "earned": rollout.grade.reward}
    return replace(rollout, grade=replace(rollout.grade, terms=terms, reward=reward))
