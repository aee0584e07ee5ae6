"""The supervisors' decisions, with processes that are only simulated. proofs/monarch_runs.py stops a real learner."""

from __future__ import annotations

import io
import math
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("monarch")

from proofs.monarch_runs import small_config
from proofs.processes import wait_for_exit

from glasshouse.config.schema import Config, MonarchConfig
from glasshouse.distributed.backend import LocalBackend
from glasshouse.distributed.monarch import supervision
from glasshouse.distributed.monarch.processes import ActorProcesses, Host, ProcessDied
from glasshouse.distributed.monarch.supervision import (
    ChunkQueue,
    ChunkTask,
    GeneratorSupervisor,
    InvalidReply,
    LearnerProcesses,
    check_completions,
)
from glasshouse.errors import RunError
from glasshouse.training.run import TrainingRun
from glasshouse.types import Completion, FinishReason, Request, SamplingParams

CHUNK = [Request(prompt=(1, 2), noise_keys=(1, 2)), Request(prompt=(3,), noise_keys=(4,))]
SAMPLING = SamplingParams(max_tokens=8)
COMPLETION = Completion(
    tokens=(5,), logprobs=(-1.0,), length=1, finish_reason=FinishReason.END, policy_version=0
)
GOOD = [[COMPLETION, COMPLETION], [COMPLETION]]


# --- a generator ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy_version": 2}, "version 2"),
        ({"tokens": (), "logprobs": (), "length": 0}, "empty"),
        ({"tokens": (1,) * 9, "logprobs": (-1.0,) * 9, "length": 9}, "too long"),
        ({"tokens": (300,)}, "vocabulary"),
        ({"tokens": (-2,)}, "vocabulary"),
        ({"logprobs": (-1.0, -1.0)}, "do not match"),
        ({"logprobs": (math.nan,)}, "not finite"),
        (None, "2 completions instead of 3"),
    ],
)
def test_impossible_completions_are_refused(change: dict[str, Any] | None, message: str) -> None:
    task = ChunkTask(0, 0, CHUNK, SAMPLING)
    check_completions(GOOD, task, 300)
    changed = [] if change is None else [replace(COMPLETION, **change)]
    with pytest.raises(InvalidReply, match=message):
        check_completions([[COMPLETION, *changed], [COMPLETION]], task, 300)


class SimulatedProcesses:
    """Answers each chunk with the next reply; raises it if it is an exception."""

    pids, host, has_exited = (1,), None, False
    actor = SimpleNamespace(generate=SimpleNamespace(call=lambda *arguments: None))

    def __init__(self, replies: list[Any]) -> None:
        self.replies = replies

    def start(self, setup: Any) -> None: ...

    def wait(self, future: Any, timeout: str) -> list[Any]:
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return [reply]

    def read_output(self) -> str:
        return "Segmentation fault"

    def kill(self) -> None: ...


def run_supervisor(replies: list[Any]) -> tuple[Any, list[dict[str, Any]], int]:
    """Generate one chunk; return its completions or the error, the events and the spawns."""
    queue, events, spawns = ChunkQueue(), list[dict[str, Any]](), list[int]()
    embeddings = SimpleNamespace(num_embeddings=300)

    def spawn(number: int) -> Any:
        spawns.append(number)
        return SimulatedProcesses(replies)

    backend: Any = SimpleNamespace(
        queue=queue,
        config=Config(monarch=MonarchConfig(max_failures=3, backoff=0)),
        policy=SimpleNamespace(model=SimpleNamespace(get_input_embeddings=lambda: embeddings)),
        weights=SimpleNamespace(checksum=lambda version: b"right"),
        spawn_generator=spawn,
        make_setup=lambda number, host: None,
        queue_event=lambda kind, **details: events.append({"kind": kind, **details}),
    )
    supervisor = GeneratorSupervisor(0, backend)
    supervisor.start()
    try:
        result: Any = queue.submit(0, [CHUNK], SAMPLING, lambda: None).result()
    except RunError as error:
        result = error
    queue.closed = True
    supervisor.join()
    return result, events, len(spawns)


def test_failures_in_a_row_end_the_run_with_the_output_of_the_process() -> None:
    error, events, spawns = run_supervisor([ProcessDied("it ended")] * 9)
    assert isinstance(error, RunError)
    assert "monarch.max_failures" in str(error)
    assert "Segmentation fault" in str(error)
    assert spawns == 3
    assert [e["cause"] for e in events if e["kind"] == "fault"] == ["process_died"] * 3


def test_a_chunk_with_wrong_weights_is_generated_again_by_a_new_process() -> None:
    replies = [(GOOD, b"wrong"), ProcessDied("it ended"), (GOOD, b"right")]
    result, events, spawns = run_supervisor(replies)
    assert result == [GOOD]
    assert spawns == 3
    causes = [e["cause"] for e in events if e["kind"] == "fault"]
    assert causes == ["invalid_reply", "process_died"]
    assert [e["kind"] for e in events].count("respawn") == 2


# --- the learner ---------------------------------------------------------------------------------


class Endpoint:
    """An endpoint that answers for all ranks, or never."""

    def __init__(self, values: list[Any] | None) -> None:
        self.values, self.calls = values, 0

    def call(self, *arguments: Any) -> Any:
        self.calls += 1
        return self

    def get(self, timeout: float) -> dict[int, Any]:
        if self.values is None:
            raise TimeoutError
        return dict(enumerate(self.values))


class HungProcesses(ActorProcesses):
    """Ranks that start and open, but never finish an update."""

    def __init__(self, pids: list[int], config: Config) -> None:
        self.actor = SimpleNamespace(
            pid=Endpoint(list(pids)), open=Endpoint([]), update=Endpoint(None), state=Endpoint(None)
        )
        self.mesh = SimpleNamespace(stop=lambda: Endpoint([]))
        self.host, self.config, self.stopped = Host(None), config, lambda: False
        self.log, self.pids, self.pidfds, self.reported_dead = (
            io.BytesIO(b"its output"),
            [],
            [],
            False,
        )


def hung_learner(
    monkeypatch: pytest.MonkeyPatch, config: Config, pids: list[int], hangs: str = "update"
) -> tuple[LearnerProcesses, HungProcesses]:
    processes = HungProcesses(pids, config)
    setattr(processes.actor, hangs, Endpoint(None))
    monkeypatch.setattr(supervision, "ActorProcesses", lambda *_, **__: processes)
    backend: Any = SimpleNamespace(
        config=config, weights=SimpleNamespace(path=""), computed_by="torch"
    )
    return LearnerProcesses(Host(None), backend), processes


@pytest.fixture
def ranks() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes, of which one is stopped."""
    processes = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    processes[0].send_signal(signal.SIGSTOP)
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def test_a_hung_learner_is_killed_and_the_error_names_the_key(
    ranks: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pids = [process.pid for process in ranks]
    config = small_config(tmp_path, "backend=monarch", "monarch.update_timeout=0.2")
    learners, processes = hung_learner(monkeypatch, config, pids)
    with pytest.raises(RunError, match=r"0\.2 s \(monarch\.update_timeout\).*its output"):
        learners.call("update")
    assert wait_for_exit(pids)
    with pytest.raises(RunError, match=r"monarch\.update_timeout"):
        learners.call("state")  # fails at once instead of waiting again
    assert processes.actor.state.calls == 0
    learners.kill()  # as the backend does when it is closed


@pytest.mark.parametrize("hangs", ["pid", "open"])
def test_a_learner_that_does_not_start_in_time_names_the_key(
    hangs: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = small_config(tmp_path, "backend=monarch", "monarch.spawn_timeout=0.2")
    learners, _ = hung_learner(monkeypatch, config, [], hangs)
    with pytest.raises(RunError, match=r"0\.2 s \(monarch\.spawn_timeout\).*increase that key"):
        learners.call("update")
    learners.kill()


def test_a_failed_run_names_its_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = LocalBackend.update

    def fail(*_: Any) -> Any:
        raise RunError("The learner failed.")

    def fail_in_step_2(self: LocalBackend, samples: Any) -> dict[str, float]:
        if self.learner.version == 1:
            monkeypatch.setattr(LocalBackend, "state", fail)  # nothing more can be saved
            fail()
        return update(self, samples)

    monkeypatch.setattr(LocalBackend, "update", fail_in_step_2)
    options = ("steps=2", "checkpoints.every=1", "evaluate.problems=0", "generate.max_tokens=8")
    config = small_config(tmp_path / "run", *options)
    with pytest.raises(RunError, match=r"The learner failed\. .*step-000001"):
        TrainingRun(config).train()
    assert (tmp_path / "run" / "checkpoints" / "step-000001").is_dir()
