"""The Monarch backend with real processes and real kills: bitwise equal to the local backend.

A process that loads torch and transformers costs about 7 s of CPU, so all tests share one backend.
proofs/monarch_runs.py has the longer versions: other numbers of processes, resuming on Monarch, a
generator that crashes again and again, Ctrl-C in a terminal, and the limits on the time until a
crash is detected.
"""

from __future__ import annotations

import json
import os
import pwd
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("monarch")

from proofs.monarch_runs import assert_equal_runs, small_config, small_run
from proofs.processes import wait_for_exit, wait_until

from glasshouse import randomness
from glasshouse.cli.app import main
from glasshouse.config.loading import load_config
from glasshouse.config.schema import Config
from glasshouse.distributed.backend import Backend, EventSink, LocalBackend
from glasshouse.distributed.monarch.actors import trainable_tensors
from glasshouse.distributed.monarch.backend import MonarchBackend
from glasshouse.distributed.monarch.processes import ActorProcesses, local_host
from glasshouse.distributed.monarch.supervision import ChunkTask, PendingChunks
from glasshouse.errors import ConfigError, HostError, RunError
from glasshouse.learn.learner import LearnerState
from glasshouse.learn.microbatches import TrainingSample
from glasshouse.models.policy import Policy, load_policy
from glasshouse.rollout.collector import Chunk, ChunkCompletions
from glasshouse.training import run as training_run
from glasshouse.training.display import Display
from glasshouse.training.run import TrainingRun
from glasshouse.types import Request, SamplingParams

pytestmark = pytest.mark.xdist_group("monarch")  # the tests share one backend, in this order

SAMPLING = SamplingParams(max_tokens=64)


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
                noise_keys=tuple(randomness.key("test", salt, n, row, k) for k in range(64)),
            )
            for row in range(4)
        ]
        for n in range(count)
    ]


def generate(backend: Backend, chunks: list[Chunk]) -> ChunkCompletions:
    return list(backend.submit(chunks, SAMPLING, lambda: None))


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
    options = (
        "backend=monarch", "monarch.learners=2", "monarch.verify_every=1", "max_offpolicy_steps=2",
    )  # fmt: skip
    return small_config(tmp_path_factory.mktemp("runs") / "unused", *options)


@pytest.fixture(scope="module")
def events() -> EventLog:
    return EventLog()


class TwoHosts:
    """A host pool whose hosts are this machine, once under another name."""

    def __init__(self) -> None:
        self.mesh, self.stopping = local_host().mesh, threading.Event()

    def assign(self, number: int, event: EventSink) -> tuple[Any, str]:
        return self.mesh, ("local", "other")[number]

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def backend(config: Config, events: EventLog) -> Iterator[MonarchBackend]:
    """Two learners and two generators; generator 1 as if it were on another host."""
    backend = MonarchBackend(load_policy(config.model), config, events, TwoHosts())  # type: ignore[arg-type]
    yield backend
    backend.close()


@pytest.fixture
def local(config: Config, backend: MonarchBackend) -> LocalBackend:
    """A local backend with the starting weights; the Monarch backend is set to the same."""
    local = LocalBackend(load_policy(config.model), config)
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
    a.state()  # copies the learner's weights into the policy
    for one, other in zip(trainable_tensors(a.policy), trainable_tensors(b.policy), strict=True):
        assert one.equal(other)


def test_generation_overlaps_with_two_updates_and_keeps_the_old_weights(
    backend: MonarchBackend, local: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Completions, metrics, weights and learner state are bitwise those of the local backend."""
    samples = make_samples(generate(backend, make_chunks(1, 4)))
    chunks = make_chunks(6, 5)
    pending = backend.submit(chunks, SAMPLING, lambda: None)
    with monkeypatch.context() as patch:
        patch.setattr(backend.queue, "put", lambda task: None)  # no generator takes it
        waiting = backend.submit(chunks, SAMPLING, lambda: None)
    old = generate(local, chunks)
    assert backend.update(samples) == local.update(samples)
    pending_newer = backend.submit(chunks, SAMPLING, lambda: None)
    newer = generate(local, chunks)
    assert backend.update(samples) == local.update(samples)
    with pytest.raises(RuntimeError, match="overwrite"):
        backend.update(samples)
    waiting.cancel()
    assert list(pending) == old
    assert list(pending_newer) == newer != old
    assert {c.policy_version for chunk in old for group in chunk for c in group} == {0}
    assert backend.version == local.learner.version == 2
    newest = generate(backend, chunks)
    assert newest == generate(local, chunks) != newer
    # once to the shared file, and one message to the other host
    num_bytes = 4 * sum(p.numel() for p in trainable_tensors(local.policy))
    assert backend.timing()["sync_bytes"] == 2 * num_bytes

    state = backend.state()
    assert state.version == 2
    assert_equal_weights(backend, local)
    assert all(state.tensors[name].equal(value) for name, value in local.state().tensors.items())
    backend.update(samples)
    copy_weights(local, backend)
    backend.restore(state)  # back to version 2
    assert backend.update(samples) == local.update(samples)
    assert_equal_weights(backend, local)


def test_the_log_of_monarch_is_private(backend: MonarchBackend) -> None:
    log = Path("/tmp", pwd.getpwuid(os.getuid()).pw_name, "monarch_log.log")
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert log.stat().st_size  # the backend's processes wrote to it: the path is Monarch's


def intercept_next_chunk(
    monkeypatch: pytest.MonkeyPatch,
    backend: MonarchBackend,
    during: Callable[[int], AbstractContextManager[None]],
) -> None:
    """Enter `during(pid)` while generator 0 generates its next chunk. Generator 1 waits until
    generator 0 has a chunk, so that it does not take them all."""
    victim, other = backend.supervisors
    generate_victim, generate_other = victim._generate, other._generate
    has_chunk = threading.Event()

    def intercept(task: ChunkTask, processes: ActorProcesses) -> None:
        if has_chunk.is_set():
            generate_victim(task, processes)
            return
        with during(processes.pids[0]):
            has_chunk.set()
            generate_victim(task, processes)

    def wait(task: ChunkTask, processes: ActorProcesses) -> None:
        assert has_chunk.wait(120)
        generate_other(task, processes)

    monkeypatch.setattr(victim, "_generate", intercept)
    monkeypatch.setattr(other, "_generate", wait)


def test_a_hung_generator_is_killed_and_its_chunk_is_generated_by_another(
    backend: MonarchBackend, local: LocalBackend, events: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `monarch.chunk_timeout`; a new process replaces it."""
    victim = backend.supervisors[0]
    (pid,) = victim.pids
    short = backend.config.monarch.model_copy(update={"chunk_timeout": 1.0})

    @contextmanager
    def stop(pid: int) -> Iterator[None]:
        os.kill(pid, signal.SIGSTOP)
        assert victim.processes  # only this process waits so briefly
        victim.processes.config = backend.config.model_copy(update={"monarch": short})
        yield

    intercept_next_chunk(monkeypatch, backend, stop)
    chunks = make_chunks(4, 2)
    assert generate(backend, chunks) == generate(local, chunks)
    wait_until(lambda: victim.ready and victim.pids != [pid])
    backend.emit_events()
    assert events.has_fault("Generator 0: it did not answer within 1 s")
    assert wait_for_exit([pid])


def test_wrong_weights_are_detected(
    backend: MonarchBackend, local: LocalBackend, events: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their completions are discarded, and the process is replaced."""
    samples = make_samples(generate(backend, make_chunks(1, 4)))
    backend.update(samples)
    local.update(samples)
    weights = backend.weights.numbers[backend.version % backend.weights.slots]

    @contextmanager
    def corrupt_weights(pid: int) -> Iterator[None]:
        correct = weights[7].item()
        weights[7] += 1
        try:
            yield
        finally:
            weights[7] = correct

    intercept_next_chunk(monkeypatch, backend, corrupt_weights)
    chunks = make_chunks(6, 3)
    assert generate(backend, chunks) == generate(local, chunks)
    backend.emit_events()
    assert events.has_fault("its weights differ")


def test_an_interrupted_run_discards_its_chunks(backend: MonarchBackend) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(backend.submit(make_chunks(100, 6), SAMPLING, interrupt))
    assert not any(pending.is_open for pending in backend.queue.pending)


def test_a_user_error_in_another_process_has_the_same_message(
    backend: MonarchBackend, local: LocalBackend
) -> None:
    too_long = [[Request(prompt=(5,) * 5000, noise_keys=(1,))]]
    with pytest.raises(ConfigError) as expected:
        generate(local, too_long)
    with pytest.raises(ConfigError) as remote:
        generate(backend, too_long)
    assert str(remote.value) == str(expected.value)
    backend.queue.error = None  # it would end a run; the tests continue


def test_a_resumed_run_continues_with_the_weights_of_its_checkpoint(
    backend: MonarchBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def use_shared_backend(policy: Policy, config: Config, event: EventSink) -> MonarchBackend:
        backend.policy, backend.event = policy, event
        backend.restore(LearnerState(0, {}))  # a new process has the weights of the base
        return backend

    for steps in ("steps=1", "steps=2"):
        TrainingRun(small_config(tmp_path / "local", steps)).train()
        with monkeypatch.context() as patch:
            patch.setattr(training_run, "make_backend", use_shared_backend)
            patch.setattr(backend, "close", lambda: None)
            TrainingRun(small_config(tmp_path / "monarch", steps, "backend=monarch")).train()
    assert_equal_runs(tmp_path / "monarch", tmp_path / "local", steps=2)


class LearnerCrash(Display):
    """Crashes a learner after step 2."""

    def __init__(self, backend: MonarchBackend) -> None:
        self.backend = backend

    def step(self, row: dict[str, Any], groups: list[Any]) -> None:
        if row["step"] == 2:
            os.kill(self.backend.pids[-1], signal.SIGSEGV)


def test_interrupted_and_crashed_run_resumes_bitwise_equal_to_a_local_run(
    backend: MonarchBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C and a killed generator at step 2, a crashed learner after it, and a local backend for
    the rest. The last test of this file: it ends the processes of the backend."""
    overlapped = ("max_offpolicy_steps=2", "checkpoints.every=1", "steps=4")
    TrainingRun(small_config(tmp_path / "local", *overlapped)).train()
    out = tmp_path / "monarch"
    results, run = out / "results", small_run(out, *overlapped, "backend=monarch")

    def use_shared_backend(policy: Policy, config: Config, event: EventSink) -> MonarchBackend:
        for pending in backend.queue.pending:
            pending.cancel()
        backend.policy, backend.event = policy, event
        backend.restore(LearnerState(0, {}))
        return backend

    wait_until(lambda: all(supervisor.ready for supervisor in backend.supervisors))
    pids = backend.pids
    # as a terminal does: this process and its children, but no process of another host
    signalled = [*backend.supervisors[0].pids, *backend.learners.mesh.pids, os.getpid()]
    with monkeypatch.context() as patch:
        submit = backend.submit

        def press_ctrl_c(*arguments: Any) -> PendingChunks:
            pending = submit(*arguments)
            if backend.version == 1:
                for pid in signalled:
                    os.kill(pid, signal.SIGINT)
            return pending

        patch.setattr(training_run, "make_backend", use_shared_backend)
        patch.setattr(backend, "submit", press_ctrl_c)
        patch.setattr(backend, "close", lambda: None)
        assert main(["train", *run]) == 130
    summary = json.loads((results / "summary.json").read_text())
    assert Path(summary["checkpoint"], "model.safetensors").is_file()
    assert backend.pids == pids
    assert "fault" not in (results / "events.jsonl").read_text()

    killed: list[int] = []

    @contextmanager
    def kill(pid: int) -> Iterator[None]:
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)
        yield

    def wait_for_end(number: int) -> ActorProcesses:  # a new process would only cost CPU
        wait_until(lambda: backend.queue.closed)
        raise HostError("the run ended")

    with monkeypatch.context() as patch:
        patch.setattr(training_run, "make_backend", use_shared_backend)
        failing = TrainingRun(load_config([], run), LearnerCrash(backend))
        patch.setattr(backend, "spawn_generator", wait_for_end)
        intercept_next_chunk(patch, backend, kill)
        with pytest.raises(RunError, match=r"same command again(.|\n)*Segmentation fault"):
            failing.train()
    assert killed  # the learner's crash may end the run before the generator's death is logged
    assert wait_for_exit([*pids, *backend.pids])
    TrainingRun(small_config(out, *overlapped)).train()  # the backend may change when a run resumes
    assert_equal_runs(out, tmp_path / "local", steps=4)
