"""The table of a study in long form: one row per (arm, seed, step, measure), and one record per run.

The rows contain no times or paths and do not depend on the order of execution: running a study twice gives the
same bytes. Every analysis depends on them only. The record of a run (records.py) says what computed it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import zstandard

from glasshouse.config.schema import Config
from glasshouse.errors import ConfigError, RunDataError, did_you_mean
from glasshouse.files import write_bytes
from glasshouse.measurement.registry import MEASURES
from glasshouse.runs.monitor_results import read_monitor_results
from glasshouse.runs.run_directory import load_evaluations, load_metrics
from glasshouse.study.evaluations import Row, Value, measure_rollouts
from glasshouse.study.records import Record
from glasshouse.study.spec import Study

COLUMNS = ("arm", "base", "seed", "step", "measure", "value")
KEY = itemgetter(slice(4))
"""Arm, seed, step and measure of a row."""
COMPRESSED_SUFFIX = ".zst"
MAX_DIFFERENCES = 5
"""Differing rows that the message lists."""
MIN_EVENTS = 10
"""A ratio over fewer events (disclosure over two uses) is not averaged."""

Run = tuple[str, int]
"""Arm and seed."""
NumberedValues = Mapping[int, float | None]
"""Values of a measure by step, or by seed; None if undefined."""


class StudyRow(NamedTuple):
    """One measurement."""

    arm: str
    seed: int
    step: int
    measure: str
    """A measure id of `measurement.registry`: `reliance`, `interventions.necessity_uplift`."""
    base: str
    value: float | None
    """None if the measure is undefined."""
    n: int | None = None
    """Of a ratio: the events that it is taken over."""

    @property
    def averaged(self) -> float | None:
        """The value that analyses use: None also for a ratio over fewer than MIN_EVENTS events."""
        return None if self.n is not None and self.n < MIN_EVENTS else self.value

    def to_json(self) -> str:
        """The canonical line: committed tables are compared byte by byte."""
        fields = {name: getattr(self, name) for name in COLUMNS}
        fields |= {} if self.n is None else {"n": self.n}
        return json.dumps(fields, ensure_ascii=False, allow_nan=False)


class Table:
    """Sorted rows, with each (arm, seed, step, measure) at most once.

    Example: `Table.load(out / "results" / "table.jsonl").runs_of("kl", "reliance")[3]` is a curve of seed 3.
    """

    def __init__(
        self, rows: Iterable[StudyRow], records: Mapping[Run, Record] | None = None
    ) -> None:
        self.rows = tuple(sorted(rows, key=KEY))
        self.records = dict(sorted((records or {}).items()))
        """By arm and seed."""
        if len(set(map(KEY, self.rows))) < len(self.rows):
            raise RunDataError("The table has two rows of the same arm, seed, step and measure.")

    @classmethod
    def load(cls, file: Path) -> Table:
        """Read a table that `save` wrote, decompressed if its name ends in .zst."""
        try:
            data = file.read_bytes()
            if file.suffix == COMPRESSED_SUFFIX:
                data = zstandard.ZstdDecompressor().decompress(data)
            text = data.decode().rstrip("\n").replace("\n", ",\n")
            lines = json.loads(f"[{text}]")  # at once: half the time of line by line
            records = {(own["arm"], own["seed"]): own["run"] for own in lines if "run" in own}
            return cls((StudyRow(**own) for own in lines if "run" not in own), records)
        except (OSError, ValueError, TypeError, KeyError, zstandard.ZstdError) as error:
            raise RunDataError(f"{file} is not a study's table: {error}.") from None

    @classmethod
    def join(cls, tables: Iterable[Table]) -> Table:
        """All rows and records of tables that have different runs."""
        listed = list(tables)
        records = {run: record for own in listed for run, record in own.records.items()}
        return cls((row for own in listed for row in own), records)

    def save(self, file: Path) -> None:
        """Write JSON lines, records first; compressed if the file name ends in .zst."""
        records = [
            json.dumps({"arm": arm, "seed": seed, "run": record}, ensure_ascii=False)
            for (arm, seed), record in self.records.items()
        ]
        data = ("".join(f"{line}\n" for line in records) + self.text()).encode()
        if file.suffix == COMPRESSED_SUFFIX:
            data = zstandard.ZstdCompressor(level=19).compress(data)
        write_bytes(file, data)

    def subset(self, arms: Container[str], seeds: Container[int]) -> Table:
        """The runs of these arms and seeds."""
        if all(row.arm in arms and row.seed in seeds for row in self.rows):
            return self
        return Table(
            (row for row in self.rows if row.arm in arms and row.seed in seeds),
            {run: own for run, own in self.records.items() if run[0] in arms and run[1] in seeds},
        )

    def text(self) -> str:
        """The rows, which are compared byte by byte."""
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
            by_seed.setdefault(row.seed, {})[row.step] = row.averaged
        return runs

    @cached_property
    def _fewest_events(self) -> dict[tuple[str, str, int], int]:
        fewest: dict[tuple[str, str, int], int] = {}
        for row in self.rows:
            if row.n is not None:
                place = row.arm, row.measure, row.step
                fewest[place] = min(row.n, fewest.get(place, row.n))
        return fewest

    def fewest_events(self, arm: str, measure: str, step: int) -> int | None:
        """The events of a ratio in the run that has the fewest; None if the measure is no ratio."""
        return self._fewest_events.get((arm, measure, step))

    def runs_of(self, arm: str, measure: str) -> Mapping[int, NumberedValues]:
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


def collect_values(run: Path, kept: Sequence[Row], config: Config) -> list[Value]:
    """Everything that one run measured: its evaluations, their training steps, its monitoring, and what follows from
    the evaluation rollouts that were kept."""
    taken = [spec for spec in MEASURES.values() if spec.tabled]
    of_training = {spec.id for spec in taken if "training" in spec.needs}
    of_evaluation = {spec.id for spec in taken} - of_training
    metrics = {row["step"]: row for row in load_metrics(run)}
    values = []
    for evaluation in load_evaluations(run):
        step = evaluation["step"]
        measured = {k: v for k, v in evaluation.items() if k in of_evaluation}
        measured |= {"kl": 0.0} if step == 0 else {}
        measured |= {k: v for k, v in metrics.get(step, {}).items() if k in of_training}
        values += [Value(step, name, value) for name, value in measured.items()]
    monitored = read_monitor_results(run / "results") or {"checkpoints": []}
    for checkpoint in monitored["checkpoints"]:
        for source, measures in checkpoint["measures"].items():
            for name, own in measures.items():
                values.append(Value(checkpoint["step"], f"{source}.{name}", own["value"]))
    values += measure_rollouts(kept, config)
    return list({(own.step, own.measure): own for own in values}.values())  # the last evaluation


def to_rows(arm: str, base: str, seed: int, values: Iterable[Value]) -> Iterator[StudyRow]:
    """The rows of a run. JSON cannot represent NaN or infinity: they count as undefined."""
    for step, name, value, n in values:
        known = value if value is not None and math.isfinite(value) else None
        yield StudyRow(arm=arm, seed=seed, step=step, measure=name, base=base, value=known, n=n)


def measure_again(table: Table, by_run: Mapping[Run, Sequence[Row]], study: Study) -> Table:
    """The table with all measures of the kept rollouts computed again, also by monitors that are new in the study."""
    rows = {(row.arm, row.seed, row.step, row.measure): row for row in table}
    for (arm, seed), kept in by_run.items():
        if arm in study.arms and seed in study.seeds:
            values = measure_rollouts(kept, study.run_config(arm, seed))
            for new in to_rows(arm, study.base_of(seed), seed, values):
                rows[new.arm, new.seed, new.step, new.measure] = new
    return Table(rows.values(), table.records)
