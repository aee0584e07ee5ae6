"""The pipeline as a small discrete-event model: how fast would a step be with so many generators?

    lag 0   draw ─ generate ─ grade ─ learn ─ sync ─ record ─ draw …
    lag 1   grade ─ draw ─┬─ generate ────────────────┬─ grade …     one version behind
                          └─ learn ─ sync ─ record ───┘

Chunks wait in a queue; whichever generator is free takes the next. A generator reads the new weights
before its first chunk of a step. Weights reach each further host one after the other. Where there
are fewer cores than work, the work shares them evenly. Nothing here runs a model: it is arithmetic
on measured times, pure and deterministic.
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
"""Steps until the pipeline runs evenly, and steps that are measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds of one core, as measured."""

    chunk: float
    """One generator, one chunk."""
    learn: float = 0.0
    """One learner, one step's rollouts."""
    sync: float = 0.0
    """Publish new weights on the learner's own host."""
    send: float = 0.0
    """Bring them to one further host."""
    load: float = 0.0
    """A generator reads the new weights."""
    draw: float = 0.0
    grade: float = 0.0
    record: float = 0.0

    def __post_init__(self) -> None:
        if self.chunk <= 0 or min(self.parts()) < 0:
            raise ValueError("A chunk takes time, and nothing takes less than none.")

    def parts(self) -> tuple[float, ...]:
        return (self.learn, self.sync, self.send, self.load, self.draw, self.grade, self.record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """How the work is spread."""

    chunks: int
    """In a step."""
    generators: int
    max_offpolicy_steps: int = 0
    learners: int = 1
    """Each takes its share of learning."""
    hosts: int = 1
    cores: int = 0
    """That all of it shares; 0: enough."""

    def __post_init__(self) -> None:
        if min(self.chunks, self.generators, self.learners, self.hosts) < 1 or self.cores < 0:
            raise ValueError("Chunks, generators, learners and hosts are at least one each.")
        if self.max_offpolicy_steps not in (0, 1):
            raise ValueError("The lag is 0 or 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What the model says."""

    seconds: float
    """A step, when it runs evenly."""
    limit: str
    """What would help most if it took no time: generators, chunks, learner, sync, controller."""
    busy: float
    """Share of their time that generators generate."""


def forecast(times: Times, pipeline: Pipeline) -> Forecast:
    """Seconds a step and what limits it.

    Example: `forecast(Times(chunk=1.0, learn=0.5), Pipeline(chunks=8, generators=4)).seconds`, 2.5
    """
    seconds = seconds_per_step(times, pipeline)
    work = pipeline.chunks * times.chunk
    return Forecast(
        seconds=seconds,
        limit=limit(times, pipeline, seconds),
        busy=min(1.0, work / (pipeline.generators * seconds)),
    )


def limit(times: Times, pipeline: Pipeline, seconds: float) -> str:
    """Whose absence would save most; ties go to the one named first."""
    without = {
        GENERATORS: replace(times, chunk=1e-12, load=0.0),
        LEARNER: replace(times, learn=0.0),
        SYNC: replace(times, sync=0.0, send=0.0),
        CONTROLLER: replace(times, draw=0.0, grade=0.0, record=0.0),
    }
    saved = {name: seconds - seconds_per_step(t, pipeline) for name, t in without.items()}
    most = max(saved.values())
    found = next(name for name, saving in saved.items() if saving >= most * (1 - 1e-9))
    too_few = found == GENERATORS and pipeline.generators >= pipeline.chunks
    return CHUNKS if too_few else found


def seconds_per_step(times: Times, pipeline: Pipeline) -> float:
    """Simulated: the mean over some steps after a warm-up."""
    ends = Simulation(times, pipeline).run(WARM_UP + MEASURED)
    return (ends[-1] - ends[WARM_UP - 1]) / MEASURED


@dataclass(slots=True)
class Simulation:
    """Jobs on shared cores, in order of time.

    While n jobs run on k cores each advances at the rate min(1, k / n). All at the same rate: so it
    is enough to know at how much progress of the common clock each one ends.
    """

    times: Times
    pipeline: Pipeline
    now: float = 0.0
    progress: float = 0.0
    running: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    started: int = 0
    waiting: int = 0
    """Chunks nobody has taken yet."""
    undone: int = 0
    fresh: int = 0
    """Generators that have not yet read this step's weights."""
    idle: int = 0
    learned: bool = True
    ends: list[float] = field(default_factory=list)

    def run(self, steps: int) -> list[float]:
        """When each step ended."""
        self.idle = self.pipeline.generators
        self._draw()
        while len(self.ends) < steps:
            self._advance()
        return self.ends

    def _advance(self) -> None:
        """To the end of the job that ends next."""
        cores, jobs = self.pipeline.cores, len(self.running)
        ending, _, then = heapq.heappop(self.running)
        rate = min(1.0, cores / jobs) if cores else 1.0
        self.now += (ending - self.progress) / rate
        self.progress = ending
        then()

    def _start(self, seconds: float, then: Callable[[], None]) -> None:
        self.started += 1
        heapq.heappush(self.running, (self.progress + seconds, self.started, then))

    def _draw(self) -> None:
        self._start(self.times.draw, self._submit)

    def _submit(self) -> None:
        """The step's chunks into the queue; with a lag, the step before is learned meanwhile."""
        self.waiting = self.undone = self.pipeline.chunks
        self.fresh = self.pipeline.generators
        while self.idle and self.waiting:
            self._take()
        if self.pipeline.max_offpolicy_steps and self.ends:
            self.learned = False
            self._learn()

    def _take(self) -> None:
        load = self.times.load if self.fresh else 0.0
        self.fresh -= bool(self.fresh)
        self.idle -= 1
        self.waiting -= 1
        self._start(load + self.times.chunk, self._finish)

    def _finish(self) -> None:
        self.idle += 1
        self.undone -= 1
        if self.waiting:
            self._take()
        self._grade_when_ready()

    def _grade_when_ready(self) -> None:
        if self.undone == 0 and self.learned:
            self._start(self.times.grade, self._graded)

    def _graded(self) -> None:
        if self.pipeline.max_offpolicy_steps:
            self.ends.append(self.now)
            self._draw()
        else:
            self._learn()

    def _learn(self) -> None:
        self._start(self.times.learn / self.pipeline.learners, self._sync)

    def _sync(self) -> None:
        further = (self.pipeline.hosts - 1) * self.times.send
        self._start(self.times.sync + further, self._record)

    def _record(self) -> None:
        self._start(self.times.record, self._recorded)

    def _recorded(self) -> None:
        if self.pipeline.max_offpolicy_steps:
            self.learned = True
            self._grade_when_ready()
        else:
            self.ends.append(self.now)
            self._draw()


def hosts_for(generators: int, per_host: int) -> int:
    """How many hosts so many generators need; 0 a host: all on one."""
    return math.ceil(generators / per_host) if per_host else 1
