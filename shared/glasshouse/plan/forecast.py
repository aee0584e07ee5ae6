"""`glasshouse hosts forecast`: what a run measured, put into the model of the pipeline."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from glasshouse.errors import ConfigError, RunError
from glasshouse.plan.pipeline import Forecast, Pipeline, PhaseTimes, forecast_pipeline, hosts_for
from glasshouse.report.learning_curves import read_metrics

GENERATORS = (1, 2, 4, 8, 16, 32, 64, 125, 250, 500, 1000)
TURNING = {
    "chunks": "a step has no more chunks to hand out; a larger batch or a smaller generate.chunk_size",
    "learner": "the learner is the limit; monarch.learners, or lag 1",
    "sync": "bringing the weights to the hosts is the limit; more generators a host",
    "controller": "drawing, grading and recording are the limit; more hosts do not help",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A run's times, and how its steps were cut."""

    times: PhaseTimes
    chunks: int
    problems: int
    samples: int
    generators: int
    max_offpolicy_steps: int

    def with_groups_per_step(self, problems: int) -> MeasuredRun:
        """The same with another number of problems a step: what is not a chunk grows with it."""
        ratio = problems / self.problems
        grown = {n: getattr(self.times, n) * ratio for n in ("learn", "draw", "grade", "record")}
        return replace(
            self, times=replace(self.times, **grown), problems=problems,
            chunks=max(1, math.ceil(problems * self.chunks / self.problems)),
        )  # fmt: skip


def measure_run(run: Path, bandwidth: float = 200.0) -> MeasuredRun:
    """The medians of a run's steps; the first one, which warms everything up, is left out.

    A chunk's time is that of the generating phase over the rounds in which its generators took the
    chunks; grading is counted with it. `bandwidth`: megabytes a second to another host, as
    `glasshouse hosts check` says, for a run that had no other host.
    """
    rows = read_metrics(run)
    steps = [row["timing"] for row in rows[1:] or rows]
    if not steps:
        raise RunError(f"{run} has no step yet: there is nothing to forecast from.")
    config = yaml.safe_load((run / "config.yaml").read_text())
    problems, samples = config["data"]["groups_per_step"], config["generate"]["group_size"]
    chunks = math.ceil(problems / config["generate"]["chunk"])
    spread = config.get("backend", "local") != "local"
    generators = config["monarch"]["generators"] if spread else 1

    def median(name: str) -> float:
        return statistics.median(step.get(name, 0.0) for step in steps)

    sync, load = median("sync"), median("sync_load")
    hosts = host_count(config.get("hosts", {}))
    send = sync / hosts if hosts else weights(run) / (bandwidth * 1e6)
    rounds = math.ceil(chunks / generators)
    times = PhaseTimes(
        chunk=max(1e-9, (median("generate") - load) / rounds),
        learn=max(0.0, median("learn") - sync),
        sync=0.0 if hosts else sync,
        send=send,
        load=load,
        draw=median("draw"),
        grade=median("grade"),
        record=median("record"),
    )
    return MeasuredRun(
        times=times, chunks=chunks, problems=problems, samples=samples, generators=generators,
        max_offpolicy_steps=config.get("max_offpolicy_steps", 0),
    )  # fmt: skip


def host_count(hosts: dict[str, Any]) -> int:
    """How many further hosts a run's weights were sent to."""
    if hosts.get("kind", "local") == "local":
        return 0
    return len(hosts["addresses"]) or int(hosts["count"])


def weights(run: Path) -> int:
    """Bytes of the run's weights, from its last checkpoint; 0 if it has none."""
    files = sorted((run / "checkpoints").glob("step-*/*.safetensors"))
    return files[-1].stat().st_size if files else 0


def forecast_curve(
    measured: MeasuredRun, spread: Pipeline, per_host: int, numbers: Sequence[int] = GENERATORS
) -> dict[int, Forecast]:
    """A forecast for each number of generators, each on a core of its own."""
    return {
        n: forecast_pipeline(
            measured.times,
            replace(spread, generators=n, hosts=hosts_for(n, per_host)),
        )
        for n in numbers
    }


def show(
    run: Path, *, lag: int | None, problems: int | None, learners: int, per_host: int | None,
    bandwidth: float, out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Print the table (or JSON), draw the curve."""
    if bandwidth <= 0 or learners < 1 or (problems is not None and problems < 1):
        raise ConfigError("--bandwidth, --learners and --groups-per-step must be above 0.")
    if per_host is not None and per_host < 0:
        raise ConfigError("--per-host is a number of generators, or 0 for all on one host.")
    measured = measure_run(run, bandwidth)
    if problems is not None:
        measured = measured.with_groups_per_step(problems)
    spread = Pipeline(
        chunks=measured.chunks, generators=1, learners=learners,
        max_offpolicy_steps=measured.max_offpolicy_steps if lag is None else lag,
    )  # fmt: skip
    per_host = (os.cpu_count() or 1) if per_host is None else per_host
    found = forecast_curve(measured, spread, per_host)
    if as_json:
        points = [{"generators": n, **asdict(f)} for n, f in found.items()]
        print(json.dumps({"measured": asdict(measured), "lag": spread.max_offpolicy_steps, "learners": learners,
                          "per_host": per_host, "forecast": points}, indent=2))  # fmt: skip
    else:
        console = Console(highlight=False)
        console.print(table(measured, spread, per_host, found))
        for sentence in turning_points(found):
            console.print(sentence)
    if out:
        from glasshouse.report.forecast_figure import draw

        draw(
            {
                f"lag {k}": forecast_curve(measured, replace(spread, max_offpolicy_steps=k), per_host)
                for k in (0, 1)
            },
            out,
        )


def table(measured: MeasuredRun, spread: Pipeline, per_host: int, found: dict[int, Forecast]) -> Table:
    t, work = measured.times, measured.problems * measured.samples
    hosts = f"{per_host} generators a host" if per_host else "one host"
    shown = Table(
        title=f"{measured.problems:,} problems × {measured.samples} samples in {measured.chunks:,} "
        f"chunks per step, max_offpolicy_steps {spread.max_offpolicy_steps}, {hosts}\n"
        f"measured: chunk {t.chunk:.3f} s, learn {t.learn:.3f} s, "
        f"sync {t.sync:.4f} s, send {t.send:.4f} s a host",
        title_justify="left",
    )
    for column in ("generators", "s/step", "rollouts/s", "speed-up", "generators busy", "limit"):
        shown.add_column(column, justify="left" if column == "limit" else "right")
    first = next(iter(found.values())).seconds
    for n, f in found.items():
        shown.add_row(
            f"{n:,}", f"{f.seconds:.3f}", f"{work / f.seconds:,.0f}", f"{first / f.seconds:.2f}×",
            f"{f.busy:.0%}", f.limit,
        )  # fmt: skip
    return shown


def turning_points(found: dict[int, Forecast]) -> list[str]:
    """Where something other than the number of generators first becomes the limit."""
    seen: dict[str, int] = {}
    for n, f in found.items():
        seen.setdefault(f.limit, n)
    return [
        f"From {n:,} generators on {TURNING[name]}." for name, n in seen.items() if name in TURNING
    ]
