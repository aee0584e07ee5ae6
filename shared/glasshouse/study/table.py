"""The table of a study in long form: one row per (arm, seed, step, measure).

It contains no times or paths and does not depend on the order of execution: running a study twice
gives the same bytes. Every analysis depends on this table only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

import zstandard

from glasshouse.errors import ConfigError, RunDataError, did_you_mean
from glasshouse.files import write_bytes
from glasshouse.measurement.registry import MEASURES
from glasshouse.runs.monitor_results import read_monitor_results
from glasshouse.runs.run_directory import load_evaluations, load_metrics

COLUMNS = ("arm", "base", "seed", "step", "measure", "value")
COUNTS = {"rollouts"}
"""Entries of an organism's summary that are not measures."""
COMPRESSED_SUFFIX = ".zst"
MAX_DIFFERENCES = 5
"""Differing rows that the message lists."""

SeedValues = Mapping[int, float | None]
"""One value per seed; None if undefined."""
StepValues = Mapping[int, float | None]
"""The values of one measure of a run by step; None if undefined."""


@dataclass(frozen=True, slots=True, order=True)
class StudyRow:
    """One measurement."""

    arm: str
    seed: int
    step: int
    measure: str
    """A measure id of `measurement.registry`: `reliance`, `interventions.necessity_uplift`."""
    base: str = field(compare=False)
    value: float | None = field(compare=False)
    """None if the measure is undefined."""

    def to_json(self) -> str:
        """The canonical line: committed tables are compared byte by byte."""
        fields = {name: getattr(self, name) for name in COLUMNS}
        return json.dumps(fields, ensure_ascii=False, allow_nan=False)


class Table:
    """Sorted rows, with each (arm, seed, step, measure) at most once.

    Example: `Table.load(out / "results" / "table.jsonl").runs_of("kl", "reliance")[3]` is a curve of seed 3.
    """

    def __init__(self, rows: Iterable[StudyRow]) -> None:
        self.rows = tuple(sorted(rows))
        if len(set(self.rows)) < len(self.rows):
            raise RunDataError("The table has two rows of the same arm, seed, step and measure.")

    @classmethod
    def load(cls, file: Path) -> Table:
        """Read a table that `save` wrote, decompressed if its name ends in .zst."""
        try:
            data = file.read_bytes()
            if file.suffix == COMPRESSED_SUFFIX:
                data = zstandard.ZstdDecompressor().decompress(data)
            return cls(StudyRow(**json.loads(line)) for line in data.decode().split("\n") if line)
        except (OSError, ValueError, TypeError, zstandard.ZstdError) as error:
            raise RunDataError(f"{file} is not a study's table: {error}.") from None

    def save(self, file: Path) -> None:
        """Write JSON lines, compressed if the file name ends in .zst."""
        data = self.text().encode()
        if file.suffix == COMPRESSED_SUFFIX:
            data = zstandard.ZstdCompressor(level=19).compress(data)
        write_bytes(file, data)

    def subset(self, arms: Container[str], seeds: Container[int]) -> Table:
        """The rows of these arms and seeds."""
        return Table(row for row in self.rows if row.arm in arms and row.seed in seeds)

    def text(self) -> str:
        return "".join(f"{row.to_json()}\n" for row in self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[StudyRow]:
        return iter(self.rows)

    @cached_property
    def bases(self) -> dict[int, str]:
        """The base of every seed that any arm has, the same in all of them."""
        bases: dict[int, str] = {}
        for row in self.rows:
            if bases.setdefault(row.seed, row.base) != row.base:
                raise RunDataError(
                    f"Seed {row.seed} starts from {bases[row.seed]} in one arm and from {row.base} in "
                    f"{row.arm}, so these runs are not paired. Run the study again with another --out."
                )
        return dict(sorted(bases.items()))

    @cached_property
    def _runs(self) -> dict[tuple[str, str], dict[int, dict[int, float | None]]]:
        runs: dict[tuple[str, str], dict[int, dict[int, float | None]]] = {}
        for row in self.rows:
            by_seed = runs.setdefault((row.arm, row.measure), {})
            by_seed.setdefault(row.seed, {})[row.step] = row.value
        return runs

    def runs_of(self, arm: str, measure: str) -> Mapping[int, StepValues]:
        """By seed, the values of the measure by step; empty if no run of the arm has it."""
        return self._runs.get((arm, measure), {})

    def steps_of(self, arm: str, measure: str) -> list[int]:
        """The steps at which any run of the arm has the measure."""
        return sorted({step for run in self.runs_of(arm, measure).values() for step in run})

    def check_measure(self, measure: str) -> None:
        """Raise if no run has the measure: the study file is wrong."""
        names = {name for _, name in self._runs}
        if measure not in names:
            raise ConfigError(f'No run measured "{measure}".{did_you_mean(measure, names)}')


def compare_tables(table: Table, committed: Table, file: str) -> tuple[bool, str]:
    """Whether the table has the rows that a committed one has of the same arms and seeds, and a message.

    Example: `compare_tables(table, Table.load(Path("committed.jsonl")), "committed.jsonl")`
    """
    arms, seeds = {row.arm for row in table}, {row.seed for row in table}
    old, new = ([row.to_json() for row in rows] for rows in (committed.subset(arms, seeds), table))
    if old == new:
        of_total = f" of {len(committed):,}" if len(old) < len(committed) else ""
        return True, f"identical: {len(new):,}{of_total} rows equal {file} byte for byte"
    pairs = zip_longest(old, new, fillvalue="(no row)")
    differing = [(one, other) for one, other in pairs if one != other]
    message = f"different from {file}: {len(differing):,} of {len(new):,} rows; the first:"
    for one, other in differing[:MAX_DIFFERENCES]:
        message += f"\n  {file}: {one}\n  this study: {other}"
    return False, message


def collect_rows(
    run: Path, arm: str, base: str, seed: int, named: Container[str] = ()
) -> list[StudyRow]:
    """Everything that one run measured: its evaluations, their training steps and its monitoring. Of the
    measures that are younger than published tables only those `named`: a study that is run again must
    give the same bytes."""
    taken = [
        spec
        for spec in MEASURES.values()
        if spec.tabled == "always" or (spec.tabled == "named" and spec.id in named)
    ]
    of_training = {spec.id for spec in taken if "training" in spec.needs}
    of_evaluation = {spec.id for spec in taken} - of_training
    metrics = {row["step"]: row for row in load_metrics(run)}
    values: dict[tuple[int, str], float | None] = {}
    for evaluation in load_evaluations(run):
        step = evaluation["step"]
        measured = {k: v for k, v in evaluation.items() if k in of_evaluation}
        measured |= dict(_flatten(evaluation.get("organism", {})))
        measured |= {"kl": 0.0} if step == 0 else {}
        measured |= {k: v for k, v in metrics.get(step, {}).items() if k in of_training}
        values |= {(step, name): value for name, value in measured.items()}
    monitored = read_monitor_results(run / "results") or {"checkpoints": []}
    for checkpoint in monitored["checkpoints"]:
        for evaluation, measures in checkpoint["measures"].items():
            for name, measured in measures.items():
                values[checkpoint["step"], f"{evaluation}.{name}"] = measured["value"]
    return sorted(
        StudyRow(arm=arm, seed=seed, step=step, measure=name, base=base, value=_finite(value))
        for (step, name), value in values.items()
    )


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) for each measure of an organism's summary."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        elif name not in COUNTS:
            yield f"{prefix}{name}", value


def _finite(value: Any) -> float | None:
    """JSON cannot represent NaN or infinity: they count as undefined."""
    return None if value is None or not math.isfinite(value) else float(value)
