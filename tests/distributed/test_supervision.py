"""The supervisors' decisions, with processes that are only simulated. proofs/monarch_runs.py stops a real learner."""

from __future__ import annotations

import io
import math
import signal
import subprocess
import threading
from collections import Counter
from dataclasses import replace
from functools import partial
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
        starting=threading.Semaphore(),
        config=Config(monarch=MonarchConfig(max_failures=3, backoff=0)),
        policy=SimpleNamespace(model=SimpleNamespace(get_input_embeddings=lambda: embeddings)),
        spawn_generator=spawn,
        make_setup=lambda number, host: None,
        queue_event=lambda kind, **details: events.append({"kind": kind, **details}),
    )
    supervisor = GeneratorSupervisor(0, backend)
    supervisor.start()
    try:
        result: Any = list(queue.submit(0, [CHUNK], SAMPLING, lambda: None))
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


# --- the learner ---------------------------------------------------------------------------------


class HungProcesses(ActorProcesses):
    """Ranks of which one is stopped; some endpoints never answer."""

    def __init__(self, config: Config, hangs: str) -> None:
        self.processes = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
        self.processes[0].send_signal(signal.SIGSTOP)
        self.host, self.config, self.stopped = Host(None), config, lambda: False
        self.mesh = SimpleNamespace(stop=lambda: SimpleNamespace(get=lambda timeout: None))
        self.log, self.pids, self.pidfds = io.BytesIO(b"its output"), [], []
        self.reported_dead, self.calls = False, Counter[str]()
        values = {"pid": [process.pid for process in self.processes], "open": []}

        def call(name: str, *arguments: Any) -> Any:
            def get(timeout: float) -> dict[int, Any]:
                if name in (hangs, "update"):
                    raise TimeoutError
                return dict(enumerate(values[name]))

            self.calls[name] += 1
            return SimpleNamespace(get=get)

        names = ("pid", "open", "update", "state")
        endpoints = {name: SimpleNamespace(call=partial(call, name)) for name in names}
        self.actor: Any = SimpleNamespace(**endpoints)


@pytest.mark.parametrize(
    ("hangs", "key"),
    [("pid", "spawn_timeout"), ("open", "spawn_timeout"), ("update", "update_timeout")],
)
def test_a_hung_learner_is_killed_and_the_error_names_the_key(
    hangs: str, key: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = small_config(tmp_path, "backend=monarch", f"monarch.{key}=0.2")
    processes = HungProcesses(config, hangs)
    monkeypatch.setattr(supervision, "ActorProcesses", lambda *_, **__: processes)
    weights = SimpleNamespace(layout=None)
    backend: Any = SimpleNamespace(
        config=config,
        weights=weights,
        exact=weights,
        computed_by="torch",
        starting=threading.Semaphore(),
    )
    learners = LearnerProcesses(Host(None), backend)
    with pytest.raises(
        RunError, match=rf"0\.2 s \(monarch\.{key}\).*increase that key.*its output"
    ):
        learners.call("update")
    with pytest.raises(RunError, match=key):
        learners.call("state")  # fails at once instead of waiting again
    assert processes.calls["state"] == 0
    learners.kill()  # as the backend does when it is closed
    if hangs != "pid":  # else nobody knows their ids
        assert wait_for_exit([process.pid for process in processes.processes])
    for process in processes.processes:
        process.kill()
        process.wait()


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
