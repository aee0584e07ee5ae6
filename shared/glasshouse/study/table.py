"""What every run of a study measured, in long form: one row an (arm, seed, step, measure).

Nothing in it depends on time, place or the order of execution: two executions of a study give the
same bytes. Every analysis starts from this table and from nothing else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

from glasshouse.errors import RecordError
from glasshouse.store import monitor_results
from glasshouse.store.atomic_files import write_bytes, write_text
from glasshouse.store.run_directory import evaluations_of, metrics_of

EVALUATED = (
    "accuracy", "format", "length", "pass_at_1", "sampled_format", "sampled_length", "truncated",
)  # fmt: skip
"""What is taken of an evaluation, beside all of its organism's measures."""
TRAINED = ("kl", "reward", "rule_none")
"""What is taken of the training step at which the model was evaluated."""
COUNTS = {"rollouts"}
"""Numbers of an organism's summary that measure nothing."""
PACKED = ".zst"
"""How the name of a compressed table ends."""


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """One measurement."""

    arm: str
    seed: int
    step: int
    measure: str
    """A flat dotted name: `reliance`, `discloses.disclosure`, `interventions.necessity_uplift`."""
    base: str = field(compare=False)
    value: float | None = field(compare=False)
    """None where the measure is undefined."""

    def line(self) -> str:
        """Its one way of being written."""
        shown = {
            "arm": self.arm, "base": self.base, "seed": self.seed,
            "step": self.step, "measure": self.measure, "value": self.value,
        }  # fmt: skip
        return json.dumps(shown, ensure_ascii=False, allow_nan=False)


def read_text(file: Path) -> str:
    """A table's text, unpacked if it is packed."""
    data = file.read_bytes()
    if file.suffix == PACKED:
        try:
            data = zstandard.ZstdDecompressor().decompress(data)
        except zstandard.ZstdError as error:
            raise ValueError(error) from None
    return data.decode()


class Table:
    """Rows, sorted, each (arm, seed, step, measure) once.

    Example: `Table.read(out / "results" / "table.jsonl").value("kl", 3, 40, "reliance")`
    """

    __slots__ = ("_values", "rows")

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = tuple(sorted(rows))
        self._values = {(r.arm, r.seed, r.step, r.measure): r.value for r in self.rows}
        if len(self._values) < len(self.rows):
            raise RecordError("The table has two rows of the same arm, seed, step and measure.")

    @classmethod
    def read(cls, file: Path) -> Table:
        """A table as `write` left it."""
        try:
            lines = read_text(file).split("\n")
            return cls(Row(**json.loads(line)) for line in lines if line)
        except FileNotFoundError:
            raise RecordError(f"There is no table {file}.") from None
        except (OSError, ValueError, TypeError) as error:
            raise RecordError(f"{file} is not a study's table: {error}.") from None

    def write(self, file: Path) -> None:
        """As it is, or compressed where the file is called .zst."""
        if file.suffix == PACKED:
            write_bytes(file, zstandard.ZstdCompressor(level=19).compress(self.text().encode()))
        else:
            write_text(file, self.text())

    def part(self, arms: Container[str], seeds: int) -> Table:
        """The rows of these arms and of the first so many seeds."""
        return Table(row for row in self.rows if row.arm in arms and row.seed < seeds)

    def text(self) -> str:
        return "".join(f"{row.line()}\n" for row in self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self.text() == other.text()

    __hash__ = None  # type: ignore[assignment]

    @property
    def measures(self) -> list[str]:
        return sorted({row.measure for row in self.rows})

    @property
    def arms(self) -> list[str]:
        return sorted({row.arm for row in self.rows})

    def seeds(self, arm: str) -> list[int]:
        return sorted({row.seed for row in self.rows if row.arm == arm})

    def bases(self) -> dict[int, str]:
        """Each seed's base."""
        return {row.seed: row.base for row in self.rows}

    def steps(self, arm: str, measure: str) -> list[int]:
        """The steps at which any seed of the arm has the measure, defined or not."""
        return sorted({r.step for r in self.rows if r.arm == arm and r.measure == measure})

    def value(self, arm: str, seed: int, step: int, measure: str) -> float | None:
        """None where it is undefined, and where it was not measured."""
        return self._values.get((arm, seed, step, measure))

    def curve(self, arm: str, seed: int, measure: str) -> dict[int, float | None]:
        """One run's values by step."""
        wanted = (arm, seed, measure)
        return {r.step: r.value for r in self.rows if (r.arm, r.seed, r.measure) == wanted}


def rows_of(run: Path, arm: str, base: str, seed: int) -> list[Row]:
    """What one run measured: its evaluations, the training steps they follow, its monitoring."""
    trained = {row["step"]: row for row in metrics_of(run)}
    found: dict[tuple[int, str], float | None] = {}
    for evaluation in evaluations_of(run):
        step = evaluation["step"]
        told = {name: evaluation[name] for name in EVALUATED if name in evaluation}
        told |= dict(flattened(evaluation.get("organism", {})))
        told |= {"kl": 0.0} if step == 0 else {}
        told |= {name: trained[step][name] for name in TRAINED if name in trained.get(step, {})}
        found |= {(step, name): value for name, value in told.items()}
    for subject in (monitor_results.read(run / "results") or {"subjects": []})["subjects"]:
        for evaluation, measures in subject["measures"].items():
            for name, scored in measures.items():
                value = scored.get("measure", scored)["value"]
                found[subject["step"], f"{evaluation}.{name}"] = value
    return sorted(
        Row(arm=arm, seed=seed, step=step, measure=name, base=base, value=_number(value))
        for (step, name), value in found.items()
    )


def flattened(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of an organism's summary, but for its counts."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{name}.")
        elif name not in COUNTS:
            yield f"{prefix}{name}", value


def _number(value: Any) -> float | None:
    """JSON has no word for what is not finite: undefined."""
    return None if value is None or not math.isfinite(value) else float(value)
