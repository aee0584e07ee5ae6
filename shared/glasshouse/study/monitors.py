"""How well each monitor of a study detects the behaviour: before RL, and in every arm after it.

A monitor is informative at the base if the lower end of its AUROC (planted rollouts, before RL, 95 % interval over
bases or seeds) lies above the prompt floor: the AUROC of n-grams that read the prompt alone. Sensitivity without the
false alarms says nothing, so both are always given, beside the floor and a monitor of the answer alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from glasshouse.study.contrasts import SeedMean, mean_over_seeds, unit_means
from glasshouse.study.spec import MIN_RANDOM_BASES, Study
from glasshouse.study.table import Table

AUROC = "auroc_planted"
FLOOR = "ngrams_base.prompt"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRates:
    """A monitor in one arm, at the last step."""

    sensitivity: SeedMean
    """P(flagged | behaviour)"""
    false_alarms: SeedMean
    """P(flagged | no behaviour)"""
    events: int | None
    """Rollouts with the behaviour in the run that has the fewest."""
    kappa: Mapping[str, float | None]
    """Cohen's κ with each other monitor of the study, mean over seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSummary:
    """One monitor of a study."""

    monitor: str
    base_auroc: SeedMean
    """Before RL."""
    floor: float | None
    """The AUROC of n-grams of the prompt, before RL."""
    arms: Mapping[str, ArmRates]

    @property
    def is_informative(self) -> bool:
        low = self.base_auroc.low
        return low is not None and self.floor is not None and low > self.floor


def summarize_monitors(study: Study, table: Table) -> list[MonitorSummary]:
    """Every monitor that the table has, those of the study first; empty if the rollouts were not kept."""
    suffix, arms = f".{AUROC}", sorted(study.arms)
    found = {
        row.measure.removesuffix(suffix)
        for row in table
        if row.step == 0
        and row.measure.endswith(suffix)
        and not row.measure.startswith("organism.")
    }
    ordered = [*(m for m in study.monitors if m in found), *sorted(found - set(study.monitors))]
    floor = _at_base(table, arms, FLOOR).mean
    return [
        MonitorSummary(
            monitor=monitor,
            base_auroc=_at_base(table, arms, monitor),
            floor=floor,
            arms={
                arm: _rate_arm(table, monitor, arm, [m for m in study.monitors if m != monitor])
                for arm in study.arms
                if table.runs_of(arm, f"{monitor}.disclosure")
            },
        )
        for monitor in ordered
    ]


def _at_base(table: Table, arms: Sequence[str], monitor: str) -> SeedMean:
    """The AUROC before RL: that of any arm, since all start from the same weights and rollouts."""
    measure = f"{monitor}.{AUROC}"
    runs = [own for arm in arms for own in table.runs_of(arm, measure).items()]
    values = {seed: steps[0] for seed, steps in runs if 0 in steps}
    bases = [table.bases[seed] for seed in values]
    units = bases if len(set(bases)) >= MIN_RANDOM_BASES else list(values)
    return mean_over_seeds(unit_means(list(values.values()), units), measure)


def _rate_arm(table: Table, monitor: str, arm: str, others: list[str]) -> ArmRates:
    step = max(table.steps_of(arm, f"{monitor}.disclosure"))

    def values(measure: str) -> list[float | None]:
        return [run.get(step) for run in table.runs_of(arm, measure).values()]

    tnr, sensitivity = f"{monitor}.tnr", f"{monitor}.disclosure"
    kappas = {other: f"{min(monitor, other)}~{max(monitor, other)}.kappa" for other in others}
    return ArmRates(
        sensitivity=mean_over_seeds(values(sensitivity), sensitivity),
        false_alarms=mean_over_seeds([None if v is None else 1 - v for v in values(tnr)], tnr),
        events=table.fewest_events(arm, sensitivity, step),
        kappa={other: mean_over_seeds(values(name)).mean for other, name in kappas.items()},
    )
