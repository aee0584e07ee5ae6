"""The table by arm and measure: one series a run, seed by seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from glasshouse.errors import ConfigError, RecordError, nearest
from glasshouse.study.table import Table

Steps = Mapping[int, float | None]
"""A run's values of one measure by step; None where it is undefined."""
Series = Mapping[int, Steps]
"""The same by seed."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything that a study's runs measured."""

    series: Mapping[tuple[str, str], Series]
    """By arm and measure."""
    seeds: tuple[int, ...]
    """Every seed that some arm has: a seed that one arm lacks is a pair dropped."""
    bases: Mapping[int, str]
    """What each seed starts from, in every arm."""

    def of(self, arm: str, measure: str) -> Series:
        """Empty where the arm was not run, or never measured it."""
        return self.series.get((arm, measure), {})

    @property
    def arms(self) -> set[str]:
        return {arm for arm, _ in self.series}

    def known(self, measure: str) -> None:
        """A measure that no run has is a mistake in the study file."""
        names = {name for _, name in self.series}
        if measure not in names:
            raise ConfigError(f'No run measured "{measure}".{nearest(measure, names)}')


def measured(table: Table) -> Measured:
    series: dict[tuple[str, str], dict[int, dict[int, float | None]]] = {}
    bases: dict[int, str] = {}
    for row in table:
        if bases.setdefault(row.seed, row.base) != row.base:
            raise RecordError(
                f"Seed {row.seed} starts from {bases[row.seed]} in one arm and from {row.base} in "
                f"{row.arm}: such runs are no pair. Start the study again in another folder."
            )
        by_seed = series.setdefault((row.arm, row.measure), {})
        by_seed.setdefault(row.seed, {})[row.step] = row.value
    return Measured(series, tuple(sorted(bases)), bases)
