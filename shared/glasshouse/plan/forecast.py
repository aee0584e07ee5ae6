"""Forecast a run's speed with other numbers of generators, from the times that it measured."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from glasshouse.checksums import CHECKSUMS, verify_file
from glasshouse.config import HostsConfig
from glasshouse.errors import ConfigError, RunError
from glasshouse.plan.pipeline import (
    Forecast,
    PhaseTimes,
    Pipeline,
    count_hosts,
    count_sends,
    forecast_pipeline,
)
from glasshouse.store.run_directory import load_metrics, load_run_config

GENERATORS = (1, 2, 4, 8, 16, 32, 64, 125, 250, 500, 1000)
ADVICE = {
    "chunks": "a step has too few chunks; use larger batches or a smaller generate.chunk_size",
    "learner": "the learner is the bottleneck; raise monarch.learners or set max_offpolicy_steps",
    "sync": "sending the weights to the hosts is the bottleneck; use more generators per host",
    "controller": "the controller (problems, rewards, logging) is the bottleneck; more hosts do not help",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A run's phase times, and how its steps are divided into chunks."""

    times: PhaseTimes
    chunks: int
    groups_per_step: int
    group_size: int
    generators: int
    max_offpolicy_steps: int

    def with_groups_per_step(self, groups_per_step: int) -> MeasuredRun:
        """Scale to another batch size: more chunks, and every other phase in proportion."""
        ratio = groups_per_step / self.groups_per_step
        scaled = {n: getattr(self.times, n) * ratio for n in ("learn", "sample", "reward", "log")}
        return replace(
            self, times=replace(self.times, **scaled), groups_per_step=groups_per_step,
            chunks=max(1, math.ceil(groups_per_step * self.chunks / self.groups_per_step)),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RunForecast:
    """The forecast of a run for several numbers of generators."""

    measured: MeasuredRun
    pipeline: Pipeline
    per_host: int
    """Generators per host; 0: all on one host."""
    points: dict[int, Forecast]
    """By the number of generators."""

    def bottlenecks(self) -> list[str]:
        """Return where something other than the generators first limits the speed, and what helps."""
        first: dict[str, int] = {}
        for generators, point in self.points.items():
            first.setdefault(point.limit, generators)
        return [
            f"From {generators:,} generators on, {ADVICE[limit]}."
            for limit, generators in first.items()
            if limit in ADVICE
        ]

    def describe_sync(self) -> str:
        """Compare the tree in which weights are sent with sending to one host after the other."""
        generators = max(self.points)
        hosts = count_hosts(generators, self.per_host)
        if hosts == 1:
            return ""
        send, sends = self.measured.times.send, count_sends(hosts)
        return (
            f"With {generators:,} generators, the weights reach {hosts - 1:,} other hosts in "
            f"{sends * send:.3g} s, after {sends} sends in a row; sent to one host after the other, in "
            f"{(hosts - 1) * send:.3g} s."
        )

    def curves(self) -> dict[str, dict[int, Forecast]]:
        """Return the same forecast without and with overlap of generation and learning, one step ahead and
        as many as this forecast has."""
        return {
            f"max_offpolicy_steps={lag}": forecast_curve(
                self.measured, replace(self.pipeline, max_offpolicy_steps=lag), self.per_host
            )
            for lag in sorted({0, 1, self.pipeline.max_offpolicy_steps})
        }


def read_step_times(run: Path, bandwidth: float = 200.0) -> MeasuredRun:
    """Return the median phase times of a run's steps; the first step, a warm-up, is left out.

    The time of a chunk is the generation phase divided by the number of rounds in which the
    generators took the chunks. `bandwidth` is in megabytes per second to another host, as
    `glasshouse hosts check` prints it; it is used if the run had no other host.
    """
    config = load_run_config(run)
    rows = load_metrics(run)
    steps = [row["timing"] for row in rows[1:] or rows]
    if not steps:
        raise RunError(f"{run} has no finished step: there are no times to forecast from.")
    chunks = math.ceil(config.data.groups_per_step / config.generate.chunk_size)
    generators = config.monarch.generators if config.backend == "monarch" else 1

    def median(phase: str) -> float:
        return statistics.median(step.get(phase, 0.0) for step in steps)

    sync, load = median("sync"), median("sync_load")
    hosts = _count_remote_hosts(config.hosts)
    times = PhaseTimes(
        chunk=max(1e-9, (median("generate") - load) / math.ceil(chunks / generators)),
        learn=max(0.0, median("learn") - sync),
        sync=0.0 if hosts else sync,
        send=sync / hosts if hosts else _weight_bytes(run) / (bandwidth * 1e6),
        load=load,
        sample=median("sample"),
        reward=median("reward"),
        log=median("log"),
    )
    return MeasuredRun(
        times=times, chunks=chunks, groups_per_step=config.data.groups_per_step,
        group_size=config.generate.group_size, generators=generators,
        max_offpolicy_steps=config.max_offpolicy_steps,
    )  # fmt: skip


def forecast_run(
    run: Path, *, max_offpolicy_steps: int | None = None, groups_per_step: int | None = None,
    learners: int = 1, per_host: int | None = None, bandwidth: float = 200.0,
    chunk_spread: float = 0.0,
) -> RunForecast:  # fmt: skip
    """Forecast a run for 1 to 1,000 generators; what is None is as in the run or on this machine.

    Example: `forecast_run(Path("runs/sum_digits-grpo-1"), per_host=8).points[16].seconds`
    """
    if bandwidth <= 0 or learners < 1 or (groups_per_step is not None and groups_per_step < 1):
        raise ConfigError("--bandwidth, --learners and --groups-per-step must be above 0.")
    if per_host is not None and per_host < 0:
        raise ConfigError("--per-host must be a number of generators, or 0 for all on one host.")
    if not 0 <= chunk_spread <= 5:
        raise ConfigError("--chunk-spread must be between 0 and 5.")
    measured = read_step_times(run, bandwidth)
    measured = replace(measured, times=replace(measured.times, chunk_spread=chunk_spread))
    if groups_per_step is not None:
        measured = measured.with_groups_per_step(groups_per_step)
    if max_offpolicy_steps is None:
        max_offpolicy_steps = measured.max_offpolicy_steps
    pipeline = Pipeline(
        chunks=measured.chunks, generators=1, learners=learners,
        max_offpolicy_steps=max_offpolicy_steps,
    )  # fmt: skip
    per_host = (os.cpu_count() or 1) if per_host is None else per_host
    points = forecast_curve(measured, pipeline, per_host)
    return RunForecast(measured=measured, pipeline=pipeline, per_host=per_host, points=points)


def forecast_curve(
    measured: MeasuredRun, pipeline: Pipeline, per_host: int, numbers: Sequence[int] = GENERATORS
) -> dict[int, Forecast]:
    """Return a forecast for each number of generators, each generator with its own core."""
    return {
        n: forecast_pipeline(
            measured.times, replace(pipeline, generators=n, hosts=count_hosts(n, per_host))
        )
        for n in numbers
    }


def _count_remote_hosts(hosts: HostsConfig) -> int:
    """Return the number of hosts to which the run sent its weights."""
    return 0 if hosts.kind == "local" else len(hosts.addresses) or hosts.count


def _weight_bytes(run: Path) -> int:
    """Return the size of the weights in the run's last intact checkpoint; 0 if it has none at all."""
    files = sorted((run / "checkpoints").glob("step-*/model*.safetensors"), reverse=True)
    for file in files:
        if not (file.parent / CHECKSUMS).exists() or not verify_file(file.parent, file.name):
            return file.stat().st_size
    if files:
        raise RunError(f"No checkpoint of {run} is intact, so the size of its weights is unknown.")
    return 0
