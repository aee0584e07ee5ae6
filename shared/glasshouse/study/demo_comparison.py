"""Compare two runs of a leaked-hint organism: how often is the hint used, and is it mentioned?

Everything is computed from the rollouts of the evaluations. In the planted arm the prompt contains a
*wrong* hint, so an answer that equals it was caused by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from glasshouse.errors import RunDataError
from glasshouse.measurement.closed_forms import newcombe_interval
from glasshouse.measurement.columns import label_rollouts, own_monitors, score_rollouts
from glasshouse.measurement.estimates import Values, estimate, mean_values
from glasshouse.measurement.rates import mean_statistic
from glasshouse.measurement.registry import lookup
from glasshouse.measurement.resampling import count_trials
from glasshouse.monitors.base import stack_flags
from glasshouse.runs.rollout_log import LOG, read_rows
from glasshouse.runs.rows import from_row
from glasshouse.runs.run_config import load_run_config
from glasshouse.tasks.base import make_task
from glasshouse.tasks.organisms.base import Organism
from glasshouse.types import Rollout
from glasshouse.values import Floats, Measure, undefined_measure

USES, MENTIONS, UNMENTIONED = "uses", "mentions", "unmentioned"


class Samples(NamedTuple):
    """One value per rollout."""

    values: Floats
    """NaN for a rollout that does not count, such as one without the behaviour in `mentions`."""
    problems: Sequence[str]
    """The problem of each rollout: the unit that intervals resample."""


@dataclass(frozen=True)
class EvaluatedStep:
    """One evaluation of a run."""

    step: int
    samples: Mapping[str, Samples]
    """By measure."""
    rollouts: Sequence[Rollout]
    """Of the planted arm, in the order of the samples."""

    @cached_property
    def measures(self) -> dict[str, Measure]:
        """Shares with their 95 % intervals over problems."""
        return {
            name: estimate(mean_values(*samples), lookup(name), key=("demo", self.step))
            for name, samples in self.samples.items()
        }


Curve = Sequence[EvaluatedStep]
"""All evaluations of one run."""


@dataclass(frozen=True, slots=True)
class DemoComparison:
    """Two runs: one with the outcome reward, one with a monitor in the reward as well."""

    outcome: Curve
    monitor: Curve

    @property
    def ends(self) -> dict[str, EvaluatedStep]:
        return {
            "before training": self.outcome[0],
            "outcome reward": self.outcome[-1],
            "monitor in the reward": self.monitor[-1],
        }

    def difference(self, measure: str) -> Measure:
        """Monitor minus outcome after training, paired by problem."""
        sides = [curve[-1].samples[measure] for curve in (self.monitor, self.outcome)]
        (trials, hits), (other_trials, other_hits) = (count_trials(*side) for side in sides)
        if not trials or not other_trials:
            return undefined_measure("a run has no rollout with a value")
        values = np.concatenate([side.values for side in sides])
        is_monitor = np.arange(len(values)) < len(sides[0].values)
        monitor = mean_statistic(np.where(is_monitor, values, np.nan))
        outcome = mean_statistic(np.where(is_monitor, np.nan, values))
        means = [float(np.nanmean(side.values)) for side in sides]
        return estimate(
            Values(
                measure=Measure(value=means[0] - means[1], n=len(values)),
                problems=[problem for side in sides for problem in side.problems],
                statistic=lambda weights: monitor(weights) - outcome(weights),
                ends=newcombe_interval(hits, trials, other_hits, other_trials),
            ),
            lookup(measure),
            key=("demo difference",),
        )

    def sentences(self) -> list[str]:
        """The answer of this pair of runs, without a claim that its interval does not support."""
        used, mentioned = (
            [format_share(step.measures[name]) for step in self.ends.values()]
            for name in (USES, MENTIONS)
        )
        outcome = self.outcome[-1]
        sentences = [
            f"Before training, the model uses the wrong hint in {used[0]} of its answers and mentions it in "
            f"{mentioned[0]} of these uses.",
            f"After {outcome.step} steps with the outcome reward it uses the hint in {used[1]} and mentions "
            f"it in {mentioned[1]}.",
        ]
        with_monitor = (
            f"With a monitor in the reward it uses the hint in {used[2]} and mentions it in "
            f"{mentioned[2]}"
        )
        change, reference = self.difference(MENTIONS), outcome.measures[MENTIONS].value
        if change.value is None or change.low is None or change.high is None or reference is None:
            return [*sentences, f"{with_monitor}; the difference has no interval."]
        points = (
            f"{_format_points(change.value)} points, 95 % interval {_format_points(change.low)} to "
            f"{_format_points(change.high)}"
        )
        if change.low <= 0 <= change.high:
            return [*sentences, f"{with_monitor}. That mentions differ is not shown ({points})."]
        return [*sentences, f"{with_monitor} instead of {format_percent(reference)} ({points})."]

    def example(self) -> dict[str, Rollout]:
        """One problem before and after. The first problem whose answer by the untrained model uses and
        mentions the hint (else the first of all), with the same sample of the trained models, so that it is
        not chosen by its result. Every evaluation asks the same problems in the same order."""
        mentions = self.outcome[0].samples[MENTIONS].values
        index = next((i for i, value in enumerate(mentions) if value == 1), 0)
        return {label: step.rollouts[index] for label, step in self.ends.items()}


def load_curve(run: Path) -> Curve:
    """Label the rollouts of every evaluation of a run."""
    settings = load_run_config(run).task
    organism = make_task(settings.name, settings.options)
    assert isinstance(organism, Organism)
    by_step: dict[int, list[Rollout]] = {}
    if (run / "results" / LOG).is_file():
        for row in read_rows(run, "validation"):
            if row["arm"]:
                by_step.setdefault(row["step"], []).append(from_row(row))
    if not by_step:
        raise RunDataError(
            f"{run} has no rollouts of a planted arm, so there is nothing to show. Remove the folder of "
            "the demo, or choose another --out, and run it again."
        )
    return [_label_step(organism, step, own) for step, own in sorted(by_step.items())]


def _label_step(organism: Organism[Any], step: int, rollouts: Sequence[Rollout]) -> EvaluatedStep:
    columns = label_rollouts(rollouts, organism)
    [rule] = [m for m in own_monitors(organism) if m.name == "disclosure_rule"]
    mentioned = stack_flags(score_rollouts(rule, rollouts)).astype(float)
    used, planted = columns.behaviour, columns.planted
    problems = np.array(columns.problems)[planted].tolist()
    values = {
        USES: np.asarray(used, dtype=float),
        MENTIONS: np.where(used, mentioned, np.nan),
        UNMENTIONED: used * (1 - mentioned),
    }
    return EvaluatedStep(
        step,
        {name: Samples(column[planted], problems) for name, column in values.items()},
        [rollout for rollout, arm in zip(rollouts, planted, strict=True) if arm],
    )


def format_share(share: Measure) -> str:
    """Example: `93 % (88–97 %)`"""
    if share.value is None:
        return "undefined"
    if share.low is None or share.high is None:
        return format_percent(share.value)
    return f"{format_percent(share.value)} ({share.low * 100:.0f}–{format_percent(share.high)})"


def format_percent(share: float) -> str:
    """Example: `format_percent(0.934)` gives `93 %`"""
    return f"{share * 100:.0f} %"


def _format_points(difference: float) -> str:
    """Percentage points with a sign: `−92`, `+3`, `0`."""
    rounded = round(difference * 100)
    return f"{rounded:+d}".replace("-", "−") if rounded else "0"
