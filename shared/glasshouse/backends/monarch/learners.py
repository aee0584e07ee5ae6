"""The learner processes as the controller sees them: one mesh per host, called as one."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

from glasshouse.backends.monarch import serialization
from glasshouse.backends.monarch.actors import ActorSetup, LearnerActor
from glasshouse.backends.monarch.process_group import Rendezvous, serve_store
from glasshouse.backends.monarch.runtime import (
    SPAWN_TIMEOUT,
    UPDATE_TIMEOUT,
    ActorProcesses,
    Host,
    ProcessDied,
    ProcessTimeout,
    wait_for_each,
)
from glasshouse.backends.monarch_sockets import own_socket_directory
from glasshouse.config import Config
from glasshouse.errors import RunError


class LearnerProcesses:
    """Starts in the background; the first call waits until all ranks have loaded the model.

    Ranks are numbered host by host. The first host is the controller's, whose rank 0 writes the
    shared weights.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        config: Config,
        weights_path: str,
        version: int,
        stopped: Callable[[], bool],
        controller_ip: str = "",
    ) -> None:
        """`controller_ip`: where several hosts reach this machine."""
        self.config, self.weights_path, self.version = config, weights_path, version
        self.controller_ip = controller_ip
        self.store = serve_store(controller_ip) if len(hosts) > 1 else None  # as long as the ranks
        counts = [config.monarch.learners, *[config.hosts.learners] * (len(hosts) - 1)]
        self.first_ranks = [sum(counts[:number]) for number in range(len(hosts))]
        self.meshes = [
            ActorProcesses.spawn(
                host, f"learner-{host.name}", LearnerActor,
                count=count, threads=config.threads, stopped=stopped,
            )
            for host, count in zip(hosts, counts, strict=True)
        ]  # fmt: skip
        self.error: Exception | None = None
        self.opening = threading.Thread(target=self._open, name="learner", daemon=True)
        self.opening.start()

    @property
    def pids(self) -> list[int]:
        return [pid for mesh in self.meshes for pid in mesh.pids]

    def call(self, endpoint: str, *arguments: Any) -> list[Any]:
        """Call an endpoint on every rank; raise the user's error or, if a process died or hangs,
        `RunError`. After that, every further call raises the same error at once."""
        self.opening.join()
        if self.error:
            raise self.error
        calls = [getattr(mesh.actor, endpoint).call(*arguments) for mesh in self.meshes]
        timeout = self.config.monarch.update_timeout
        try:
            replies = dict(wait_for_each(self.meshes, calls, timeout, UPDATE_TIMEOUT))
        except ProcessTimeout as error:
            self._fail(
                f"{error}, so its processes were killed. If an update can take longer, increase that key"
            )
        except ProcessDied as error:
            self._fail(str(error))
        answers = [answer for number in sorted(replies) for answer in replies[number]]
        self._raise_user_error(answers)
        return answers

    def kill(self) -> None:
        self.opening.join()
        self._kill_meshes()

    def _open(self) -> None:
        try:
            # in a directory that the next start removes if this process is killed
            with tempfile.TemporaryDirectory(dir=own_socket_directory()) as folder:
                rendezvous = Rendezvous(file=str(Path(folder) / "rendezvous"))
                if self.store:
                    rendezvous = Rendezvous(host=self.controller_ip, port=self.store.port)
                self._open_ranks(rendezvous)
        except ProcessTimeout as error:
            self.error = self._run_error(
                f"{error}. If starting and loading the model can take longer, increase that key"
            )
        except ProcessDied as error:
            self.error = self._run_error(str(error))
        except Exception as error:
            self.error = error
        if self.error and len(self.meshes) > 1:
            self._kill_meshes()  # ranks that opened wait for those that did not

    def _open_ranks(self, rendezvous: Rendezvous) -> None:
        timeout = self.config.monarch.spawn_timeout
        for mesh in self.meshes:
            try:
                mesh.wait_until_started(timeout)
            except ProcessDied as error:
                raise type(error)(f"{mesh.name}: {error}") from None
        calls = [
            mesh.actor.open.call(
                ActorSetup(
                    config=self.config, weights_path=self.weights_path, version=self.version,
                    first_rank=first_rank, rendezvous=rendezvous,
                )
            )
            for mesh, first_rank in zip(self.meshes, self.first_ranks, strict=True)
        ]  # fmt: skip
        for _, answers in wait_for_each(self.meshes, calls, timeout, SPAWN_TIMEOUT):
            self._raise_user_error(answers)

    def _kill_meshes(self) -> None:
        with ThreadPoolExecutor(len(self.meshes)) as pool:  # a lost host is waited for
            list(pool.map(ActorProcesses.kill, self.meshes))

    def _fail(self, reason: str) -> NoReturn:
        """Kill all ranks, also stopped ones, and raise."""
        self.error = self._run_error(reason)
        self._kill_meshes()
        raise self.error from None

    def _run_error(self, reason: str) -> RunError:
        output = " ".join(filter(None, (mesh.stderr_tail() for mesh in self.meshes)))
        return RunError(
            f"The learner failed: {reason}. Run the same command again to resume from the last "
            f"checkpoint. End of its output: {output or '(empty)'}"
        )

    @staticmethod
    def _raise_user_error(answers: list[Any]) -> None:
        for answer in answers:
            if isinstance(answer, serialization.RemoteUserError):
                raise answer.to_error()
