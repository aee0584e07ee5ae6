"""Several runs at a time, each hand of the crew training one after another (`run.hand`).

    jobs ──► crew ──► hand ──► run directories
               └────► hand

A hand that dies is replaced, and its run goes on from its last checkpoint; if that one dies of the
same run, the run is given up. Interrupted once, the hands save what they have and all ends.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import IO, Any, Literal

from glasshouse.config import Config
from glasshouse.errors import ConfigError, RunError

TRIES = 2
"""So often may hands die of one and the same run."""
GRACE = 10.0
"""Seconds that a hand has to save its run when the crew is dismissed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """One run to be trained, or only to be checked: made, but not begun."""

    name: str
    """For sentences: `the run kl, seed 3`."""
    config: Config
    work: Literal["train", "check"] = "train"
    monitor: bool = False
    """After training, measure both ends as `glasshouse monitor --ends` does."""


@dataclass(frozen=True, slots=True)
class Stepped:
    job: Job
    step: int


@dataclass(frozen=True, slots=True)
class Done:
    job: Job
    summary: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Lost:
    """A hand died of this job; another one takes it up."""

    job: Job
    sentence: str


Heard = Stepped | Done | Lost


@dataclass(slots=True, eq=False)
class _Hand:
    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    job: Job | None = None
    unread: bytes = b""

    @classmethod
    def start(cls) -> _Hand:
        errors = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the process
        process = subprocess.Popen(
            [sys.executable, "-m", "glasshouse.study.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C reaches the crew alone, which passes it on once
        )
        return cls(process, errors)

    def give(self, job: Job) -> None:
        self.job = job
        told = {
            "work": job.work,
            "monitor": job.monitor,
            "config": job.config.model_dump(mode="json"),
        }
        assert self.process.stdin
        with suppress(BrokenPipeError):  # it died idle: its silence will be heard
            self.process.stdin.write(json.dumps(told).encode() + b"\n")
            self.process.stdin.flush()

    def fileno(self) -> int:
        assert self.process.stdout
        return self.process.stdout.fileno()

    def read(self) -> list[dict[str, Any]] | None:
        """Whole lines that have come; None: it is gone."""
        data = os.read(self.fileno(), 1 << 16)
        if not data:
            return None
        *lines, self.unread = (self.unread + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def last_words(self) -> str:
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace").strip()[-800:]

    def dismiss(self) -> None:
        """There is no more to do: idle it goes at once, busy it saves its run first."""
        assert self.process.stdin
        with suppress(OSError):
            self.process.stdin.close()

    def close(self) -> None:
        """Wait until it has gone; see that it does."""
        assert self.process.stdout
        self.dismiss()
        try:
            self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.errors.close()


@dataclass(slots=True)
class Crew:
    """So many processes.

    Example:
        with Crew(2) as crew:
            for heard in crew.work(jobs):
                if isinstance(heard, Done): print(heard.summary)
    """

    size: int
    hands: list[_Hand] = field(default_factory=list)
    asked: int = 0
    """How often it was asked to stop."""
    before: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(
                f"--jobs is {self.size}; at least one run must be under way at a time."
            )

    def __enter__(self) -> Crew:
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(ValueError):  # not the main thread: the caller owns the signals
                self.before[number] = signal.signal(number, self._stop)
        return self

    def __exit__(self, *error: object) -> None:
        try:
            for hand in self.hands:
                hand.dismiss()
            for hand in self.hands:
                hand.close()
        finally:
            for number, handler in self.before.items():
                signal.signal(number, handler)

    def work(self, jobs: Iterable[Job]) -> Iterator[Heard]:
        """Do all jobs; what is heard of them as it comes. KeyboardInterrupt at the end if asked to
        stop; the first job that fails ends it with a sentence."""
        waiting, tries = deque(jobs), dict[Job, int]()
        while True:
            while waiting and not self.asked and (hand := self._free()):
                hand.give(waiting.popleft())
            busy = [hand for hand in self.hands if hand.job]
            if not busy:
                break
            for hand in _ready(busy):
                job, answers = hand.job, hand.read()
                assert job
                if answers is None:
                    sentence = self._bury(hand)
                    tries[job] = tries.get(job, 0) + 1
                    if self.asked:
                        continue
                    if tries[job] >= TRIES:
                        raise RunError(
                            f"{job.name} failed: {sentence} twice. The same command goes on from its last "
                            "checkpoint; if memory ran out, --jobs 1 needs half of it."
                        )
                    waiting.appendleft(job)
                    yield Lost(job, f"{job.name}: {sentence}; it goes on in another one.")
                    continue
                for answer in answers:
                    if (heard := _heard(hand, job, answer)) is not None:
                        yield heard
        if self.asked:
            raise KeyboardInterrupt

    def _free(self) -> _Hand | None:
        for hand in self.hands:
            if hand.job is None:
                return hand
        if len(self.hands) == self.size:
            return None
        self.hands.append(_Hand.start())
        return self.hands[-1]

    def _bury(self, hand: _Hand) -> str:
        """Let go of a hand that has died; how it did, in words."""
        code = hand.process.wait()
        words = hand.last_words()
        hand.close()
        self.hands.remove(hand)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"its process {how}" + (f" ({words.splitlines()[-1]})" if words else "")

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Pass it on: once, the runs are saved; twice, they end where they are; then by force."""
        self.asked += 1
        for hand in self.hands:
            with suppress(ProcessLookupError):
                hand.process.send_signal(signal.SIGINT if self.asked <= 2 else signal.SIGKILL)


def _ready(busy: list[_Hand]) -> list[_Hand]:
    """Those of the hands that have something to say, or have fallen silent."""
    with selectors.DefaultSelector() as selector:
        for hand in busy:
            selector.register(hand, selectors.EVENT_READ, hand)
        return [key.data for key, _ in selector.select()]


def _heard(hand: _Hand, job: Job, answer: dict[str, Any]) -> Heard | None:
    if "step" in answer:
        return Stepped(job, answer["step"])
    hand.job = None
    if "done" in answer:
        return Done(job, answer["done"])
    if "stopped" in answer:
        return None
    if "broken" in answer:
        raise RunError(f"{job.name} failed: {answer['broken'].strip()[-800:]}")
    raise RunError(f"{job.name}: {answer['failed']}")
