"""The Monarch backend with real processes and real kills: bitwise equal to the local backend.

proofs/monarch_runs.py has the longer versions: other numbers of processes, resuming on Monarch, a
generator that crashes again and again, and the limits on the time until a crash is detected.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("monarch")

from proofs.monarch_runs import assert_equal_runs, small_config
from proofs.processes import wait_for_exit, wait_until

from glasshouse import models, randomness
from glasshouse.backends.base import Backend, Chunk, ChunkCompletions
from glasshouse.backends.local import LocalBackend
from glasshouse.backends.monarch import Host, MonarchBackend
from glasshouse.backends.monarch.runtime import local_host
from glasshouse.backends.monarch.shared_weights import trainable_tensors
from glasshouse.config import Config
from glasshouse.errors import ConfigError, RunError
from glasshouse.generate import SamplingParams
from glasshouse.learn import LearnerState, TrainingSample
from glasshouse.train import Trainer
from glasshouse.train.display import Display
from glasshouse.types import Request

SAMPLING = SamplingParams(max_tokens=64)


class Killer(Display):
    """Kills a generator after step 1 and a learner after step 2."""

    trainer: Trainer
    killed = ""

    def step(self, row: dict[str, Any], groups: list[Any]) -> None:
        backend = self.trainer.backend
        assert isinstance(backend, MonarchBackend)
        if row["step"] == 1:
            wait_until(lambda: backend.supervisors[0].ready)
            os.kill(backend.supervisors[0].pids[0], signal.SIGKILL)
            self.killed = "generator"
        if row["step"] == 2:
            os.kill(backend.pids[-1], signal.SIGKILL)
            self.killed += ", learner"


def test_killed_run_on_several_processes_resumes_bitwise_equal_to_a_local_run(
    tmp_path: Path,
) -> None:
    """Two generators, two learners, and generation that overlaps with learning."""
    overlapped = ("steps=3", "max_offpolicy_steps=1", "checkpoints.every=1")
    Trainer(small_config(tmp_path / "local", *overlapped)).train()
    killer, out = Killer(), tmp_path / "monarch"
    processes = ("backend=monarch", "monarch.generators=2", "monarch.learners=2")
    config = small_config(out, *overlapped, *processes, "monarch.verify_every=1")
    killer.trainer = Trainer(config, killer)
    with pytest.raises(RunError, match="same command again"):
        killer.trainer.train()
    assert killer.killed == "generator, learner"
    Trainer(small_config(out, *overlapped)).train()  # the backend may change when a run resumes
    assert_equal_runs(out, tmp_path / "local", steps=3)


class EventLog:
    """Collects a backend's events."""

    def __init__(self) -> None:
        self.faults: list[dict[str, Any]] = []

    def __call__(self, kind: str, **details: Any) -> None:
        if kind == "fault":
            self.faults.append(details)

    def has_fault(self, text: str) -> bool:
        return any(text in fault["text"] for fault in self.faults)


def make_chunks(count: int, salt: int) -> list[Chunk]:
    """Chunks that take about a tenth of a second each."""
    return [
        [
            Request(
                prompt=tuple(range(5, 25)),
                keys=tuple(randomness.key("test", salt, n, row, k) for k in range(64)),
            )
            for row in range(4)
        ]
        for n in range(count)
    ]


def generate(backend: Backend, chunks: list[Chunk]) -> ChunkCompletions:
    return backend.submit(chunks, SAMPLING, lambda: None).result()


def make_samples(completions: ChunkCompletions) -> list[TrainingSample]:
    flat = [c for chunk in completions for group in chunk for c in group]
    return [
        TrainingSample(
            prompt=(5, 6), tokens=c.tokens, sampler_logprobs=c.logprobs, advantage=(-1.0) ** n
        )
        for n, c in enumerate(flat[:16])
    ]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    options = ("backend=monarch", "monarch.chunk_timeout=10", "monarch.max_failures=5")
    return small_config(tmp_path_factory.mktemp("runs") / "unused", *options)


@pytest.fixture(scope="module")
def events() -> EventLog:
    return EventLog()


@pytest.fixture(scope="module")
def backend(config: Config, events: EventLog) -> Iterator[MonarchBackend]:
    """One learner and two generators; generator 1 as if it were on another host."""
    mesh = local_host().mesh
    hosts = {0: Host(mesh), 1: Host(mesh, "other", is_local=False)}
    backend = MonarchBackend(models.load_policy(config.model), config, events, hosts.__getitem__)
    yield backend
    backend.close()


@pytest.fixture
def local(config: Config, backend: MonarchBackend) -> LocalBackend:
    """A local backend with the starting weights; the Monarch backend is set to the same."""
    local = LocalBackend(models.load_policy(config.model), config)
    copy_weights(local, backend)
    backend.restore(LearnerState(0, {}))
    wait_until(lambda: all(supervisor.ready for supervisor in backend.supervisors))
    return local


def copy_weights(source: LocalBackend, target: MonarchBackend) -> None:
    """Copy the policy's weights, as the trainer does before it restores a learner state."""
    for new, old in zip(
        trainable_tensors(source.policy), trainable_tensors(target.policy), strict=True
    ):
        old.data.copy_(new)


def assert_equal_weights(a: Any, b: Any) -> None:
    for one, other in zip(trainable_tensors(a.policy), trainable_tensors(b.policy), strict=True):
        assert one.equal(other)


def test_generation_overlaps_with_an_update_and_keeps_the_old_weights(
    backend: MonarchBackend, local: LocalBackend
) -> None:
    """Completions, metrics, weights and learner state are bitwise those of the local backend."""
    samples = make_samples(generate(backend, make_chunks(1, 4)))
    chunks = make_chunks(6, 5)
    pending = backend.submit(chunks, SAMPLING, lambda: None)
    old = generate(local, chunks)
    assert backend.update(samples) == local.update(samples)
    assert pending.result() == old
    assert {c.version for chunk in old for group in chunk for c in group} == {0}
    assert backend.version == local.learner.version == 1
    assert_equal_weights(backend, local)
    new = generate(backend, chunks)
    assert new == generate(local, chunks)
    assert new != old
    # once to the controller's own policy, and one message to the other host
    num_bytes = 4 * sum(p.numel() for p in trainable_tensors(local.policy))
    assert backend.timing()["sync_bytes"] == 2 * num_bytes

    state = backend.state()
    assert state.version == 1
    assert all(state.tensors[name].equal(value) for name, value in local.state().tensors.items())
    backend.update(samples)
    copy_weights(local, backend)
    backend.restore(state)  # back to version 1
    assert backend.update(samples) == local.update(samples)
    assert_equal_weights(backend, local)


def test_a_killed_generators_chunk_is_generated_by_another(
    backend: MonarchBackend, local: LocalBackend, events: EventLog
) -> None:
    pid = backend.supervisors[0].pids[0]
    chunks = make_chunks(8, 1)
    pending = backend.submit(chunks, SAMPLING, lambda: None)
    os.kill(pid, signal.SIGKILL)
    assert pending.result() == generate(local, chunks)
    wait_until(lambda: backend.supervisors[0].ready and backend.supervisors[0].pids != [pid])
    generate(backend, make_chunks(1, 2))  # emits the events
    assert events.has_fault("Generator 0: its process ended")


def test_a_hung_generator_is_killed_after_the_chunk_timeout(
    backend: MonarchBackend, local: LocalBackend, events: EventLog
) -> None:
    pid = backend.supervisors[0].pids[0]
    os.kill(pid, signal.SIGSTOP)
    chunks = make_chunks(4, 2)
    assert generate(backend, chunks) == generate(local, chunks)
    assert events.has_fault("did not answer within 10 s")
    assert wait_for_exit([pid])


def test_wrong_weights_are_detected_and_loaded_again(
    backend: MonarchBackend, local: LocalBackend, events: EventLog
) -> None:
    samples = make_samples(generate(backend, make_chunks(1, 4)))
    backend.update(samples)
    local.update(samples)
    weights = backend.weights._flat(backend.version)
    correct = weights[7].item()
    weights[7] += 1
    for supervisor in backend.supervisors:
        supervisor.verified_version = None  # verify at the next chunk
    chunks = make_chunks(6, 3)
    pending = backend.submit(chunks, SAMPLING, lambda: None)
    wait_until(lambda: any("its weights differ" in d["text"] for _, d in backend.pending_events))
    weights[7] = correct
    assert pending.result() == generate(local, chunks)
    assert events.has_fault("its weights differ")


def test_an_interrupted_run_discards_its_chunks(backend: MonarchBackend) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backend.submit(make_chunks(100, 6), SAMPLING, interrupt).result()
    assert not backend.queue.tasks


def test_a_user_error_in_another_process_has_the_same_message(
    backend: MonarchBackend, local: LocalBackend
) -> None:
    """It ends the run: the remaining test uses only the learner."""
    too_long = [[Request(prompt=(5,) * 5000, keys=(1,))]]
    with pytest.raises(ConfigError) as expected:
        generate(local, too_long)
    with pytest.raises(ConfigError) as remote:
        generate(backend, too_long)
    assert str(remote.value) == str(expected.value)


def test_a_crashed_learner_ends_the_run_with_its_output(
    backend: MonarchBackend, local: LocalBackend
) -> None:
    """The last test of this file: it ends the backend."""
    samples = make_samples(generate(local, make_chunks(1, 7)))
    os.kill(backend.learners.processes.pids[0], signal.SIGSEGV)
    with pytest.raises(RunError, match=r"same command again(.|\n)*Segmentation fault"):
        backend.update(samples)
