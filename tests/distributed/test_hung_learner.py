"""A learner that hangs ends the run, with an error that names the key and the last checkpoint.

The processes here only sleep, and the actors are fakes. proofs/monarch_runs.py stops a real learner.
"""

from __future__ import annotations

import io
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("monarch")

from proofs.monarch_runs import small_config
from proofs.processes import wait_for_exit

from glasshouse.distributed.local import LocalBackend
from glasshouse.distributed.monarch.learners import LearnerProcesses
from glasshouse.distributed.monarch.runtime import ActorProcesses, Host
from glasshouse.errors import RunError
from glasshouse.training.run import TrainingRun


class Answer:
    """A future of Monarch's: answers of all ranks, or none as long as the process is stopped."""

    def __init__(self, values: list[Any] | None) -> None:
        self.values = values

    def get(self, timeout: float) -> dict[int, Any]:
        if self.values is None:
            raise TimeoutError
        return dict(enumerate(self.values))


class Endpoint:
    def __init__(self, values: list[Any] | None) -> None:
        self.values, self.calls = values, 0

    def call(self, *arguments: Any) -> Answer:
        self.calls += 1
        self.arguments = arguments
        return Answer(self.values)


class HungActor:
    """Starts and opens, but never finishes an update."""

    def __init__(self, pids: list[int]) -> None:
        self.pids = pids
        self.pid, self.open = Endpoint(list(pids)), Endpoint([None for _ in pids])
        self.update, self.state = Endpoint(None), Endpoint(None)


@pytest.fixture
def stopped() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two ranks, of which one is stopped."""
    processes = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    processes[0].send_signal(signal.SIGSTOP)
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def test_a_hung_learner_is_killed_and_the_error_names_the_key(
    stopped: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pids = [process.pid for process in stopped]
    actor, host = HungActor(pids), Host(None)
    monkeypatch.setattr(
        ActorProcesses, "spawn",
        lambda *_, stopped, **__: ActorProcesses(
            "learner", None, actor, io.BytesIO(b"its output"), host, stopped
        ),
    )  # fmt: skip
    config = small_config(tmp_path, "backend=monarch", "monarch.update_timeout=0.2")
    learners = LearnerProcesses(host, config, "", 0, lambda: False)
    with pytest.raises(RunError, match=r"0\.2 s \(monarch\.update_timeout\).*its output"):
        learners.call("update")
    assert wait_for_exit(pids)
    with pytest.raises(RunError, match=r"monarch\.update_timeout"):
        learners.call("state")  # fails at once instead of waiting again
    assert actor.state.calls == 0
    learners.kill()  # as the backend does when it is closed


@pytest.mark.parametrize("hangs", ["pid", "open"])
def test_a_learner_that_does_not_start_in_time_names_the_key(
    hangs: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    actor, host = HungActor([]), Host(None)
    setattr(actor, hangs, Endpoint(None))
    monkeypatch.setattr(
        ActorProcesses, "spawn",
        lambda *_, stopped, **__: ActorProcesses(
            "learner", FakeMesh(), actor, io.BytesIO(b"its output"), host, stopped
        ),
    )  # fmt: skip
    config = small_config(tmp_path, "backend=monarch", "monarch.spawn_timeout=0.2")
    learners = LearnerProcesses(host, config, "", 0, lambda: False)
    with pytest.raises(RunError, match=r"0\.2 s \(monarch\.spawn_timeout\).*increase that key"):
        learners.call("update")
    learners.kill()


class FakeMesh:
    """Monarch's mesh of another host."""

    def __init__(self) -> None:
        self.stopped = False

    def stop(self) -> Any:
        self.stopped = True
        return Answer([])


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
