"""The learner's processes, seen from the controller: one mesh, one answer."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from glasshouse.backends.monarch import serialization
from glasshouse.backends.monarch.actors import LearnerActor, Setup
from glasshouse.backends.monarch.runtime import Died, Place, Processes
from glasshouse.config import Config
from glasshouse.errors import RunError


class Learners:
    """Starts in the background; the first call waits for it."""

    def __init__(
        self, place: Place, config: Config, path: str, version: int, stopped: Callable[[], bool]
    ) -> None:
        self.config, self.path, self.version = config, path, version
        self.processes = Processes.spawn(
            place, "learner", LearnerActor,
            count=config.monarch.learners, threads=config.threads, stopped=stopped,
        )  # fmt: skip
        self.error: Exception | None = None
        self.opening = threading.Thread(target=self._open, name="learner", daemon=True)
        self.opening.start()

    def call(self, endpoint: str, *what: Any) -> list[Any]:
        """What each rank answers; a user's mistake is raised, a death ends the run."""
        self.opening.join()
        if self.error:
            raise self.error
        try:
            answers = self.processes.wait(getattr(self.processes.actor, endpoint).call(*what))
        except Died as death:
            raise self._died(death) from None
        self._raise(answers)
        return answers

    def end(self) -> None:
        self.opening.join()
        self.processes.end()

    def _open(self) -> None:
        timeout = self.config.monarch.spawn_timeout
        try:
            with tempfile.TemporaryDirectory(prefix="glasshouse-") as folder:
                setup = Setup(
                    config=self.config, weights=self.path, version=self.version,
                    meeting=str(Path(folder) / "meeting"),
                )  # fmt: skip
                self.processes.answer(timeout)
                self._raise(self.processes.wait(self.processes.actor.open.call(setup), timeout))
        except Died as death:
            self.error = self._died(death)
        except Exception as error:
            self.error = error

    def _died(self, death: Died) -> RunError:
        words = self.processes.last_words()
        return RunError(
            f"The learner failed: {death}. Run the same command again to go on from the last "
            f"checkpoint. Its last words: {words or 'none'}"
        )

    @staticmethod
    def _raise(answers: list[Any]) -> None:
        for answer in answers:
            if isinstance(answer, serialization.Mistake):
                raise answer.error()
