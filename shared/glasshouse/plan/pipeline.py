"""A discrete-event simulation of the training pipeline: seconds per step for a number of generators.

    max_offpolicy_steps=0   sample ─ generate ─ reward ─ learn ─ sync ─ log ─ sample …
    max_offpolicy_steps=1   reward ─ sample ─┬─ generate ─────────────┬─ reward …
                                             └─ learn ─ sync ─ log ───┘

Chunks wait in a queue; whichever generator is free takes the next one. A generator loads the new
weights before its first chunk of a step. Weights are sent to further hosts one host at a time. If
there are fewer cores than jobs, the jobs share the cores evenly. The simulation runs no model: it
is deterministic arithmetic on measured times.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

GENERATORS, CHUNKS, LEARNER, SYNC, CONTROLLER = (
    "generators", "chunks", "learner", "sync", "controller",
)  # fmt: skip
WARM_UP, MEASURED = 3, 8
"""Steps until the pipeline is in a steady state, and steps that are averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTimes:
    """Measured seconds per phase, on one core."""

    chunk: float
    """One chunk on one generator."""
    learn: float = 0.0
    """One step's rollouts on one learner."""
    sync: float = 0.0
    """Publish new weights on the learner's host."""
    send: float = 0.0
    """Send them to one further host."""
    load: float = 0.0
    """Load the new weights into a generator."""
    sample: float = 0.0
    reward: float = 0.0
    log: float = 0.0

    def __post_init__(self) -> None:
        if self.chunk <= 0 or min(self.parts()) < 0:
            raise ValueError("chunk must be above 0 seconds, and no phase may be negative.")

    def parts(self) -> tuple[float, ...]:
        return (self.learn, self.sync, self.send, self.load, self.sample, self.reward, self.log)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """How a step's work is divided."""

    chunks: int
    """Chunks per step."""
    generators: int
    max_offpolicy_steps: int = 0
    learners: int = 1
    """Learner processes; they share the learning evenly."""
    hosts: int = 1
    cores: int = 0
    """Cores that all processes share; 0: one per process."""

    def __post_init__(self) -> None:
        if min(self.chunks, self.generators, self.learners, self.hosts) < 1 or self.cores < 0:
            raise ValueError("chunks, generators, learners and hosts must be at least 1.")
        if self.max_offpolicy_steps not in (0, 1):
            raise ValueError("max_offpolicy_steps must be 0 or 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The result of a simulation."""

    seconds: float
    """Seconds per step in the steady state."""
    limit: str
    """The bottleneck: generators, chunks, learner, sync or controller."""
    generator_utilization: float
    """Fraction of the time in which a generator generates."""


def forecast_pipeline(times: PhaseTimes, pipeline: Pipeline) -> Forecast:
    """Simulate the pipeline; return the seconds per step and the bottleneck.

    Example: `forecast(Times(chunk=1.0, learn=0.5), Pipeline(chunks=8, generators=4)).seconds`, 2.5
    """
    seconds = seconds_per_step(times, pipeline)
    work = pipeline.chunks * times.chunk
    return Forecast(
        seconds=seconds,
        limit=find_limit(times, pipeline, seconds),
        generator_utilization=min(1.0, work / (pipeline.generators * seconds)),
    )


def find_limit(times: PhaseTimes, pipeline: Pipeline, seconds: float) -> str:
    """Return the phase whose removal would save most time; the first one if several are equal."""
    without = {
        GENERATORS: replace(times, chunk=1e-12, load=0.0),
        LEARNER: replace(times, learn=0.0),
        SYNC: replace(times, sync=0.0, send=0.0),
        CONTROLLER: replace(times, sample=0.0, reward=0.0, log=0.0),
    }
    saved = {name: seconds - seconds_per_step(t, pipeline) for name, t in without.items()}
    most = max(saved.values())
    limit = next(name for name, saving in saved.items() if saving >= most * (1 - 1e-9))
    too_few_chunks = limit == GENERATORS and pipeline.generators >= pipeline.chunks
    return CHUNKS if too_few_chunks else limit


def seconds_per_step(times: PhaseTimes, pipeline: Pipeline) -> float:
    """Simulate, and average over `MEASURED` steps after the warm-up."""
    ends = Simulation(times, pipeline).run(WARM_UP + MEASURED)
    return (ends[-1] - ends[WARM_UP - 1]) / MEASURED


@dataclass(slots=True)
class Simulation:
    """An event queue of jobs on shared cores.

    While n jobs run on k cores, each advances at the rate min(1, k / n). All have the same rate, so a
    job is described by the common progress at which it ends.
    """

    times: PhaseTimes
    pipeline: Pipeline
    now: float = 0.0
    progress: float = 0.0
    running: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    started: int = 0
    waiting: int = 0
    """Chunks that no generator has taken yet."""
    unfinished: int = 0
    """Chunks of this step that are not complete."""
    to_load: int = 0
    """Generators that have not yet loaded this step's weights."""
    idle: int = 0
    learned: bool = True
    ends: list[float] = field(default_factory=list)

    def run(self, steps: int) -> list[float]:
        """Return the time at which each step ended."""
        self.idle = self.pipeline.generators
        self._sample()
        while len(self.ends) < steps:
            self._advance()
        return self.ends

    def _advance(self) -> None:
        """Advance to the end of the job that ends next, and run its continuation."""
        cores, jobs = self.pipeline.cores, len(self.running)
        ending, _, then = heapq.heappop(self.running)
        rate = min(1.0, cores / jobs) if cores else 1.0
        self.now += (ending - self.progress) / rate
        self.progress = ending
        then()

    def _start(self, seconds: float, then: Callable[[], None]) -> None:
        self.started += 1
        heapq.heappush(self.running, (self.progress + seconds, self.started, then))

    def _sample(self) -> None:
        self._start(self.times.sample, self._submit)

    def _submit(self) -> None:
        """Queue the step's chunks; if off-policy, learn from the previous step at the same time."""
        self.waiting = self.unfinished = self.pipeline.chunks
        self.to_load = self.pipeline.generators
        while self.idle and self.waiting:
            self._take()
        if self.pipeline.max_offpolicy_steps and self.ends:
            self.learned = False
            self._learn()

    def _take(self) -> None:
        load = self.times.load if self.to_load else 0.0
        self.to_load -= bool(self.to_load)
        self.idle -= 1
        self.waiting -= 1
        self._start(load + self.times.chunk, self._finish)

    def _finish(self) -> None:
        self.idle += 1
        self.unfinished -= 1
        if self.waiting:
            self._take()
        self._reward_when_ready()

    def _reward_when_ready(self) -> None:
        if self.unfinished == 0 and self.learned:
            self._start(self.times.reward, self._rewarded)

    def _rewarded(self) -> None:
        if self.pipeline.max_offpolicy_steps:
            self.ends.append(self.now)
            self._sample()
        else:
            self._learn()

    def _learn(self) -> None:
        self._start(self.times.learn / self.pipeline.learners, self._sync)

    def _sync(self) -> None:
        further = (self.pipeline.hosts - 1) * self.times.send
        self._start(self.times.sync + further, self._log)

    def _log(self) -> None:
        self._start(self.times.log, self._logged)

    def _logged(self) -> None:
        if self.pipeline.max_offpolicy_steps:
            self.learned = True
            self._reward_when_ready()
        else:
            self.ends.append(self.now)
            self._sample()


def count_hosts(generators: int, per_host: int) -> int:
    """Return the number of hosts for a number of generators; `per_host` 0: all on one host."""
    return math.ceil(generators / per_host) if per_host else 1
