"""A learner that hangs ends the run, with an error that names the key and the last checkpoint. One
that has ranks on several hosts is called as one.

The processes here only sleep, and the actors are fakes. proofs/monarch_runs.py stops a real learner, and
proofs/hosts_sharding.py one on another host.
"""

from __future__ import annotations

import io
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("monarch")

from proofs.monarch_runs import small_config
from proofs.processes import wait_for_exit

from glasshouse.backends.local import LocalBackend
from glasshouse.backends.monarch.learners import LearnerProcesses
from glasshouse.backends.monarch.runtime import ActorProcesses, Host
from glasshouse.backends.monarch.serialization import RemoteUserError
from glasshouse.errors import ConfigError, RunError
from glasshouse.training import Trainer


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
    learners = LearnerProcesses([host], config, "", 0, lambda: False)
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
    learners = LearnerProcesses([host], config, "", 0, lambda: False)
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


@pytest.fixture
def two_hosts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[..., tuple[LearnerProcesses, list[HungActor], FakeMesh]]]:
    """Starts learners with two ranks here and one on another host; what the other answers to `open` is given."""
    processes = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    local, other = Host(None), Host(None, "other", is_local=False)
    config = small_config(
        tmp_path, "backend=monarch", "learn.sharding=fsdp", "monarch.learners=2", "hosts.kind=processes",
        "hosts.count=1", "hosts.learners=1", "monarch.update_timeout=0.2", "monarch.spawn_timeout=600",
    )  # fmt: skip

    def start(opened: list[Any] | None) -> tuple[LearnerProcesses, list[HungActor], FakeMesh]:
        mesh, actors = FakeMesh(), [HungActor([p.pid for p in processes]), HungActor([1])]
        actors[1].open = Endpoint(opened)
        if opened != [None]:
            actors[0].open = Endpoint(None)  # its ranks wait for the third one

        def spawn(host: Host, name: str, *_: Any, count: int, stopped: Any, **__: Any) -> Any:
            assert count == (2 if host is local else 1)
            actor = actors[0] if host is local else actors[1]
            return ActorProcesses(name, mesh, actor, io.BytesIO(b""), host, stopped)

        monkeypatch.setattr(ActorProcesses, "spawn", spawn)
        hosts = [local, other]
        return (
            LearnerProcesses(hosts, config, "", 0, lambda: False, "127.0.0.1"),
            actors,
            mesh,
        )

    yield start
    for process in processes:
        process.kill()
        process.wait()


def test_ranks_are_numbered_host_by_host_and_meet_at_the_address_of_the_controller(
    two_hosts: Any,
) -> None:
    learners, actors, _ = two_hosts([None])
    actors[0].state, actors[1].state = Endpoint(["rank 0", "rank 1"]), Endpoint(["rank 2"])
    assert learners.call("state") == ["rank 0", "rank 1", "rank 2"]
    first, other = (actor.open.arguments[0] for actor in actors)
    assert (first.first_rank, other.first_rank) == (0, 2)
    assert first.rendezvous == other.rendezvous
    assert socket.create_connection((other.rendezvous.host, other.rendezvous.port), 30)
    learners.kill()


def test_a_hung_rank_ends_the_ranks_of_all_hosts(two_hosts: Any) -> None:
    learners, actors, mesh = two_hosts([None])
    actors[1].update = Endpoint(["finished"])
    with pytest.raises(RunError, match=r"monarch\.update_timeout"):
        learners.call("update")
    assert wait_for_exit(actors[0].pids)
    assert mesh.stopped


def test_an_error_of_one_host_does_not_wait_for_the_ranks_that_wait_for_it(two_hosts: Any) -> None:
    error = RemoteUserError.from_error(ConfigError("There is no such model on this host."))
    learners, actors, _ = two_hosts([error])
    with pytest.raises(ConfigError, match="no such model"):
        learners.call("update")
    assert wait_for_exit(actors[0].pids)


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
        Trainer(config).train()
    assert (tmp_path / "run" / "checkpoints" / "step-000001").is_dir()
