"""A discrete-event simulation of the training pipeline: seconds per step for a number of generators.

    max_offpolicy_steps=0   sample ─ generate ─ reward ─ learn ─ sync ─ log ─ sample …
    max_offpolicy_steps=1   reward ─ sample ─┬─ generate ─────────────┬─ reward …
                                             └─ learn ─ sync ─ log ───┘

Chunks wait in a queue; whichever generator is free takes the next one. A generator loads the new
weights before its first chunk of a step. With `max_offpolicy_steps` of 2 or more, generators that have
no chunk of a step left take those of the next one. Hosts pass weights on to each other, so that the
number of hosts that have them doubles with each send. If there are fewer cores than jobs, the jobs
share the cores evenly. The simulation runs no model: it is deterministic arithmetic on measured
times.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

GENERATORS, CHUNKS, LEARNER, SYNC, CONTROLLER = (
    "generators", "chunks", "learner", "sync", "controller",
)  # fmt: skip
WARM_UP, MEASURED, MEASURED_WITH_SPREAD = 8, 8, 100
"""Steps until the pipeline is in a steady state, and steps that are averaged."""
MAX_OFFPOLICY_STEPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTimes:
    """Measured seconds per phase, on one core."""

    chunk: float
    """One chunk on one generator."""
    chunk_spread: float = 0.0
    """Standard deviation of the logarithm of a chunk's time, for completions whose lengths have a long tail;
    0: all chunks take the same time. The mean is `chunk` in any case."""
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
        return (
            self.learn, self.sync, self.send, self.load, self.sample, self.reward, self.log,
            self.chunk_spread,
        )  # fmt: skip


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
        if not 0 <= self.max_offpolicy_steps <= MAX_OFFPOLICY_STEPS:
            raise ValueError(f"max_offpolicy_steps must be 0 to {MAX_OFFPOLICY_STEPS}.")


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
    """Simulate, and average over some steps after the warm-up."""
    measured = MEASURED_WITH_SPREAD if times.chunk_spread else MEASURED
    ends = Simulation(times, pipeline).run(WARM_UP + measured)
    return (ends[-1] - ends[WARM_UP - 1]) / measured


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
    version: int = 0
    """Of the weights that generators get with the next chunks."""
    waiting: deque[tuple[int, int]] = field(default_factory=deque)
    """Step and version of the chunks that no generator has taken yet."""
    unfinished: Counter[int] = field(default_factory=Counter)
    """Chunks that are not complete, by step."""
    idle: list[int] = field(default_factory=list)
    """The version that each idle generator has loaded."""
    ends: list[float] = field(default_factory=list)
    lengths: random.Random = field(default_factory=lambda: random.Random(0))

    is_waiting: bool = False
    """Does the controller wait for chunks?"""
    controller: Iterator[float | None] = field(init=False)

    def run(self, steps: int) -> list[float]:
        """Return the time at which each step ended."""
        self.idle = [-1] * self.pipeline.generators
        self.controller = self._control()
        self._continue()
        while len(self.ends) < steps:
            self._advance()
        return self.ends

    def _control(self) -> Iterator[float | None]:
        """The training loop: yields the seconds of each phase, or None to wait for a chunk."""
        times, pipeline = self.times, self.pipeline
        submitted = 0
        for step in itertools.count():
            if submitted == step:
                yield times.sample
                submitted = self._submit(submitted)
            while self.unfinished[step]:
                yield None
            yield times.reward
            while submitted <= step + pipeline.max_offpolicy_steps:
                yield times.sample
                submitted = self._submit(submitted)
            yield times.learn / pipeline.learners
            yield times.sync + count_sends(pipeline.hosts) * times.send
            self.version += 1
            yield times.log
            self.ends.append(self.now)

    def _continue(self) -> None:
        """Run the controller up to its next phase."""
        seconds = next(self.controller)
        self.is_waiting = seconds is None
        if seconds is not None:
            self._start(seconds, self._continue)

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

    def _submit(self, step: int) -> int:
        """Queue a step's chunks; return the next step to submit."""
        self.unfinished[step] = self.pipeline.chunks
        self.waiting += [(step, self.version)] * self.pipeline.chunks
        while self.idle and self.waiting:
            self._take(self.idle.pop())
        return step + 1

    def _take(self, loaded: int) -> None:
        """A generator that has loaded this version takes the next chunk."""
        step, version = self.waiting.popleft()
        load = self.times.load if loaded != version else 0.0
        spread = self.times.chunk_spread
        length = self.lengths.lognormvariate(-(spread**2) / 2, spread) if spread else 1.0
        self._start(load + self.times.chunk * length, lambda: self._finish(step, version))

    def _finish(self, step: int, version: int) -> None:
        self.unfinished[step] -= 1
        if self.waiting:
            self._take(version)
        else:
            self.idle.append(version)
        if self.is_waiting:
            self._continue()


def count_sends(hosts: int) -> int:
    """Return how many sends follow one another until all hosts but the learner's have the weights."""
    return (hosts - 1).bit_length()


def count_hosts(generators: int, per_host: int) -> int:
    """Return the number of hosts for a number of generators; `per_host` 0: all on one host."""
    return math.ceil(generators / per_host) if per_host else 1
