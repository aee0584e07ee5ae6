"""A generator's seat: a thread that keeps a generator process there and hands it chunks.

    spawn ──► open ──► take a chunk ──► generate ──► look at it ──► finish it ──► take …
      ▲                    │  died, hung, or nonsense
      └──── back off ◄─────┴── the chunk goes back to the pool, somebody else does it

The seat goes on respawning in the background while the others work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from glasshouse.backends.monarch import serialization
from glasshouse.backends.monarch.chunk_queue import Job, Pool
from glasshouse.backends.monarch.runtime import Died, Processes
from glasshouse.config import MonarchConfig
from glasshouse.errors import RunError
from glasshouse.models import Policy

Tell = Callable[..., None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Office:
    """What all seats share."""

    pool: Pool
    policy: Policy
    config: MonarchConfig
    spawn: Callable[[int], Processes]
    """Start the processes of seat n, wherever there is room."""
    open: Callable[[Processes], None]
    """Make them load what they need; blocks."""
    digest: Callable[[int], bytes]
    """The learner's checksum of a version."""
    tell: Tell


class Seat(threading.Thread):
    """One generator, respawned for as long as the run lasts."""

    def __init__(self, number: int, office: Office) -> None:
        super().__init__(name=f"generator-{number}", daemon=True)
        self.number, self.office = number, office
        self.processes: Processes | None = None
        self.deaths = 0
        """In a row, without a chunk done between."""
        self.spawned = 0
        self.ready = False
        """Its process is there and has loaded the model."""
        self.checked: int | None = None
        """The version at which its weights were last found right."""
        self.reload = False
        """Its weights were found wrong: it shall take them anew."""
        self.load_seconds = 0.0

    @property
    def pids(self) -> list[int]:
        return list(self.processes.pids) if self.processes else []

    def run(self) -> None:
        try:
            while not self.office.pool.closed:
                self._serve()
        except Exception as error:  # a bug of ours must not leave the run waiting for ever
            self.office.pool.fail(error)
        finally:
            self._end()

    def _serve(self) -> None:
        """A chunk, or the process that is to do it."""
        job: Job | None = None
        try:
            if self.processes is None:
                self._spawn()
            assert self.processes is not None
            if self.processes.ended:
                raise Died("its process ended")
            job = self.office.pool.take()
            if job:
                self._work(job, self.processes)
        except (Died, serialization.Garbage) as fault:
            if job:
                self.office.pool.give_back(job)
            self._fault(fault, job)

    def _spawn(self) -> None:
        office = self.office
        if self.deaths > 1:
            self._pause(office.config.backoff * 2 ** (self.deaths - 2))
        if office.pool.closed:
            raise Died("the run ended")
        started = time.monotonic()
        self.processes = office.spawn(self.number)
        self.processes.answer(office.config.spawn_timeout)
        office.open(self.processes)
        self.checked = None
        if self.spawned:
            office.tell(
                "respawn", generator=self.number, seconds=round(time.monotonic() - started, 3)
            )
        self.spawned += 1
        self.ready = True

    def _work(self, job: Job, processes: Processes) -> None:
        office, version = self.office, job.version
        check = self.checked is None or version - self.checked >= office.config.verify_every
        ends = sorted(office.policy.end_tokens)
        call = processes.actor.generate.call(
            version, job.chunk, job.sampling, ends, check, self.reload
        )
        (reply,) = processes.wait(call, office.config.chunk_timeout)
        if isinstance(reply, serialization.Mistake):
            office.pool.fail(reply.error())
            return
        vocabulary = office.policy.model.get_input_embeddings().num_embeddings
        completions = serialization.unpack(reply, job.chunk, job.sampling, version, vocabulary)
        if check:
            if reply.digest != office.digest(version):
                raise serialization.WrongWeights(
                    f"its weights are not version {version} of the learner's"
                )
            self.checked = version
        self.reload = False
        self.load_seconds = reply.load_seconds or self.load_seconds
        self.deaths = 0
        office.pool.finish(job, completions)

    def _fault(self, fault: Exception, job: Job | None) -> None:
        """Say so, make room for a new process, and give up after too many in a row."""
        office = self.office
        if office.pool.closed:
            return
        self.deaths += 1
        words = self.processes.last_words() if self.processes else ""
        if isinstance(fault, serialization.WrongWeights) and not self.reload:
            self.reload = True  # the process may stay if that mends it
        else:
            self._end()
        what: dict[str, Any] = {
            "generator": self.number,
            "how": "garbage" if isinstance(fault, serialization.Garbage) else "death",
            "text": f"Generator {self.number}: {fault}.",
        }
        if job:
            what |= {"chunk": job.number, "version": job.version}
        office.tell("fault", **what)
        if self.deaths >= office.config.max_failures:
            office.pool.fail(
                RunError(
                    f"Generator {self.number} failed {self.deaths} times in a row; the last time, {fault}. "
                    f"Its last words: {words or 'none'}"
                )
            )
            self._pause(float("inf"))

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.office.pool.closed:
            time.sleep(0.05)

    def _end(self) -> None:
        self.ready = self.reload = False
        if self.processes:
            self.processes.end()
        self.processes = None
