"""The table grouped by arm and measure: the values of every run by seed and step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from glasshouse.errors import ConfigError, RunDataError, did_you_mean
from glasshouse.study.table import Table

StepValues = Mapping[int, float | None]
"""The values of one measure of a run by step; None if undefined."""
RunSeries = Mapping[int, StepValues]
"""The same by seed."""


@dataclass(frozen=True, slots=True)
class StudySeries:
    """Everything that the runs of a study measured."""

    series: Mapping[tuple[str, str], RunSeries]
    """By arm and measure."""
    seeds: tuple[int, ...]
    """Every seed that any arm has. A seed that one arm lacks is a dropped pair."""
    bases: Mapping[int, str]
    """The base of each seed, the same in every arm."""

    def get(self, arm: str, measure: str) -> RunSeries:
        """Empty if no run of the arm has the measure."""
        return self.series.get((arm, measure), {})

    @property
    def arms(self) -> set[str]:
        return {arm for arm, _ in self.series}

    def check_measure(self, measure: str) -> None:
        """Raise if no run has the measure: the study file is wrong."""
        names = {name for _, name in self.series}
        if measure not in names:
            raise ConfigError(f'No run measured "{measure}".{did_you_mean(measure, names)}')


def group_series(table: Table) -> StudySeries:
    series: dict[tuple[str, str], dict[int, dict[int, float | None]]] = {}
    bases: dict[int, str] = {}
    for row in table:
        if bases.setdefault(row.seed, row.base) != row.base:
            raise RunDataError(
                f"Seed {row.seed} starts from {bases[row.seed]} in one arm and from {row.base} in "
                f"{row.arm}, so these runs are not paired. Run the study again with another --out."
            )
        by_seed = series.setdefault((row.arm, row.measure), {})
        by_seed.setdefault(row.seed, {})[row.step] = row.value
    return StudySeries(series, tuple(sorted(bases)), bases)
