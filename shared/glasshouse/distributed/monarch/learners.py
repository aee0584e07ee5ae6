"""The learner processes as the controller sees them: one mesh, called as one."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from glasshouse.config.schema import Config
from glasshouse.distributed.monarch import messages
from glasshouse.distributed.monarch.actors import ActorSetup, LearnerActor
from glasshouse.distributed.monarch.runtime import (
    SPAWN_TIMEOUT,
    UPDATE_TIMEOUT,
    ActorProcesses,
    Host,
    ProcessDied,
    ProcessTimeout,
)
from glasshouse.distributed.monarch_sockets import own_socket_directory
from glasshouse.errors import RunError


class LearnerProcesses:
    """Starts in the background; the first call waits until all ranks have loaded the model."""

    def __init__(
        self,
        host: Host,
        config: Config,
        weights_path: str,
        version: int,
        stopped: Callable[[], bool],
    ) -> None:
        self.config, self.weights_path, self.version = config, weights_path, version
        self.mesh = ActorProcesses.spawn(
            host, "learner", LearnerActor,
            count=config.monarch.learners, threads=config.threads, stopped=stopped,
        )  # fmt: skip
        self.error: Exception | None = None
        self.opening = threading.Thread(target=self._open, name="learner", daemon=True)
        self.opening.start()

    @property
    def pids(self) -> list[int]:
        return list(self.mesh.pids)

    def call(self, endpoint: str, *arguments: Any) -> list[Any]:
        """Call an endpoint on every rank; raise the user's error or, if a process died or hangs,
        `RunError`. After that, every further call raises the same error at once."""
        self.opening.join()
        if self.error:
            raise self.error
        call = getattr(self.mesh.actor, endpoint).call(*arguments)
        try:
            answers = self.mesh.wait(call, self.config.monarch.update_timeout, UPDATE_TIMEOUT)
        except ProcessTimeout as error:
            self._fail(
                f"{error}, so its processes were killed. If an update can take longer, increase that key"
            )
        except ProcessDied as error:
            self._fail(str(error))
        self._raise_user_error(answers)
        return answers

    def kill(self) -> None:
        self.opening.join()
        self.mesh.kill()

    def _open(self) -> None:
        timeout = self.config.monarch.spawn_timeout
        try:
            # in a directory that the next start removes if this process is killed
            with tempfile.TemporaryDirectory(dir=own_socket_directory()) as folder:
                self.mesh.wait_until_started(timeout)
                setup = ActorSetup(
                    config=self.config, weights_path=self.weights_path, version=self.version,
                    rendezvous=str(Path(folder) / "rendezvous"),
                )  # fmt: skip
                answers = self.mesh.wait(self.mesh.actor.open.call(setup), timeout, SPAWN_TIMEOUT)
                self._raise_user_error(answers)
        except ProcessTimeout as error:
            self.error = self._run_error(
                f"{error}. If starting and loading the model can take longer, increase that key"
            )
        except ProcessDied as error:
            self.error = self._run_error(str(error))
        except Exception as error:
            self.error = error

    def _fail(self, reason: str) -> NoReturn:
        """Kill all ranks, also stopped ones, and raise."""
        self.error = self._run_error(reason)
        self.mesh.kill()
        raise self.error from None

    def _run_error(self, reason: str) -> RunError:
        return RunError(
            f"The learner failed: {reason}. Run the same command again to resume from the last "
            f"checkpoint. End of its output: {self.mesh.stderr_tail() or '(empty)'}"
        )

    @staticmethod
    def _raise_user_error(answers: list[Any]) -> None:
        for answer in answers:
            if isinstance(answer, messages.RemoteUserError):
                raise answer.to_error()
