"""`backend: monarch`: generators and a learner in processes of their own, on Monarch's actors.

controller (the loop)      data, grading, the record; holds the shared weights' file
  ├── learner              one mesh of `monarch.learners` processes; writes each version once
  ├── generator 0          a mesh each, so that a death is nobody else's
  └── generator 1 …        map the weights, take whichever chunk is next
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from glasshouse.backends.base import Chunk, Event
from glasshouse.backends.monarch import runtime, serialization
from glasshouse.backends.monarch.actors import GeneratorActor, Setup
from glasshouse.backends.monarch.chunk_queue import Batch, Pool
from glasshouse.backends.monarch.learners import Learners
from glasshouse.backends.monarch.runtime import Died, Place, Processes
from glasshouse.backends.monarch.shared_weights import WeightMap, size, trained
from glasshouse.backends.monarch.supervisor import Office, Seat
from glasshouse.backends.monarch.weight_sync import Messages, SharedMemory, Sync
from glasshouse.config import Config
from glasshouse.errors import RunError
from glasshouse.generate import Sampling
from glasshouse.learn import LearnerState, Sample
from glasshouse.models import Policy
from glasshouse.types import Completion


class Monarch:
    """Implements `Placement`.

    Example: `Monarch(policy, config, event).generate(chunks, sampling, between)`
    """

    def __init__(
        self,
        policy: Policy,
        config: Config,
        event: Event = lambda kind, **what: None,
        places: Callable[[int], Place] | None = None,
    ) -> None:
        """`places`: where generator n is to be put now; asked anew whenever it is respawned."""
        here = runtime.this_place()
        self.policy, self.config, self.event = policy, config, event
        self.places = places or (lambda number: here)
        self.events: deque[tuple[str, dict[str, Any]]] = deque()
        self.version = 0
        self.weights = WeightMap.create(size(policy))
        self.weights.write(0, trained(policy))
        self.routes: dict[str, Sync] = {}
        self.routing = threading.Lock()
        self.pool = Pool()
        self.timings: dict[str, float] = {}
        self.learners = Learners(here, config, self.weights.path, 0, lambda: self.pool.closed)
        office = Office(
            pool=self.pool, policy=policy, config=config.monarch, spawn=self._spawn,
            open=self._open, digest=self.weights.digest, tell=self._note,
        )  # fmt: skip
        self.seats = [Seat(number, office) for number in range(config.monarch.generators)]
        for seat in self.seats:
            seat.start()
        atexit.register(self.close)  # threads that wait on Monarch must end before the interpreter

    def start(
        self, chunks: Sequence[Chunk], sampling: Sampling, between: Callable[[], None]
    ) -> Batch:
        batch = Batch(self.pool, self.version, between, self._tell)
        self.pool.submit(batch, chunks, sampling)
        return batch

    def generate(
        self, chunks: Sequence[Chunk], sampling: Sampling, between: Callable[[], None]
    ) -> list[list[list[Completion]]]:
        return self.start(chunks, sampling, between).result()

    def update(self, samples: Sequence[Sample]) -> dict[str, float]:
        if any(batch.version < self.version for batch in self.pool.batches):
            raise RuntimeError("An update would overwrite weights that generators still need.")
        answers = self.learners.call("update", serialization.pack_samples(samples))
        metrics, seconds = answers[0]
        self._hand_over(self.version + 1, seconds)
        if self.version % self.config.monarch.verify_every == 0:
            self._verify_learners()
        self._tell()
        return dict(metrics)

    def timing(self) -> dict[str, float]:
        return self.timings

    def state(self) -> LearnerState:
        state: LearnerState = self.learners.call("state")[0]
        return state

    def restore(self, state: LearnerState) -> None:
        self.weights.write(state.version, trained(self.policy))
        self.learners.call("restore", state)
        self._hand_over(state.version, 0.0)
        for seat in self.seats:  # what they hold under that number may be another run's
            seat.reload, seat.checked = True, None

    def close(self) -> None:
        if self.pool.closed:
            return
        atexit.unregister(self.close)
        self.pool.close()
        for seat in self.seats:
            seat.join(30)
        self.learners.end()
        for route in self.routes.values():
            route.end()
        self._tell()
        self.weights.close()

    @property
    def pids(self) -> list[int]:
        """Every process that this placement has now."""
        return [pid for seat in self.seats for pid in seat.pids] + self.learners.processes.pids

    def _hand_over(self, version: int, seconds: float) -> None:
        """The run's own policy gets the new weights, and every other host."""
        started = time.perf_counter()
        self.weights.read(version, trained(self.policy))
        travelled = self.weights.volume
        with self.routing:
            for name, route in list(self.routes.items()):
                try:
                    travelled += route.publish(version)
                except Died as death:  # its generators will fail too, and come back elsewhere
                    self._note("fault", how="death", text=f"Host {name}: {death}.")
                    self.routes.pop(name).end()
            self.version = version
        loads = max(seat.load_seconds for seat in self.seats)
        self.timings = {
            "sync_bytes": float(travelled),
            "sync": round(seconds + time.perf_counter() - started, 6),
            "sync_load": round(loads, 6),
        }

    def _verify_learners(self) -> None:
        """All ranks hold what was handed over."""
        found = set(self.learners.call("checksum"))
        if found != {self.weights.digest(self.version)}:
            raise RunError(
                f"The learner's processes no longer hold the same weights (version {self.version}). "
                "Run the same command again to go on from the last checkpoint."
            )

    def _spawn(self, number: int) -> Processes:
        return Processes.spawn(
            self.places(number), f"generator-{number}", GeneratorActor,
            threads=self.config.threads, stopped=lambda: self.pool.closed,
        )  # fmt: skip

    def _open(self, processes: Processes) -> None:
        setup = Setup(
            config=self.config, weights=self._route(processes.place).path, version=self.version
        )
        timeout = self.config.monarch.spawn_timeout
        (answer,) = processes.wait(processes.actor.open.call(setup), timeout)
        if isinstance(answer, serialization.Mistake):
            self.pool.fail(answer.error())

    def _route(self, place: Place) -> Sync:
        """How weights get there, begun if nobody has yet."""
        with self.routing:
            if place.name not in self.routes:
                if place.local:
                    self.routes[place.name] = SharedMemory(self.weights)
                else:
                    route = Messages(place, self.weights, self.config.monarch.spawn_timeout)
                    for version in self.weights.versions():  # a chunk may still want the older one
                        route.publish(version)
                    self.routes[place.name] = route
            return self.routes[place.name]

    def _note(self, kind: str, **what: Any) -> None:
        """From any thread; told to the run when it next asks for something."""
        self.events.append((kind, what))

    def _tell(self) -> None:
        while self.events:
            kind, what = self.events.popleft()
            self.event(kind, **what)
