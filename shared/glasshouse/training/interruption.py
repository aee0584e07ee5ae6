"""Ctrl-C, SIGTERM and SIGHUP: end a run at a point where nothing is half done.

first signal ──► while generating or evaluating: end immediately
            └──► while learning or logging: at the end of the step, however long it takes
second signal ──► end at once; the last checkpoint remains
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType


class Interrupted(BaseException):
    """A signal arrived and nothing is half done: the last step can be saved."""


class ForcedStop(BaseException):
    """A second signal arrived: nothing is saved, the last checkpoint remains."""


class Interruption:
    """Handles SIGINT, SIGTERM and SIGHUP (unless it is ignored, as by nohup) while it is entered.

    Example:
        with Interruption(notify) as interruption:
            with interruption.interruptible():  # may end anywhere inside
                generate()
            learn()                             # is completed first
            interruption.check()                # may end here
    """

    def __init__(self, notify: Callable[[], None] = lambda: None) -> None:
        self.notify = notify
        self.is_requested = self.is_interruptible = False
        self.has_raised = False
        self.previous_handlers: dict[int, object] = {}
        self.terminals: list[int] = []

    def __enter__(self) -> Interruption:
        self.terminals = [output for output in (1, 2) if os.isatty(output)]
        hangup = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN else []
        for number in (signal.SIGINT, signal.SIGTERM, *hangup):
            try:
                self.previous_handlers[number] = signal.signal(number, self._handle_signal)
            except ValueError:  # not the main thread: the caller handles signals
                break
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self.previous_handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Inside, a signal may end the run anywhere."""
        self.check()
        self.is_interruptible = True
        try:
            yield
        finally:
            self.is_interruptible = False

    def check(self) -> None:
        """Raise `Interrupted` if a signal has arrived. It is raised once: saving the last step may wait
        for completions, and that must not be interrupted by the same signal."""
        if self.is_requested and not self.has_raised:
            self.has_raised, self.is_interruptible = True, False
            raise Interrupted

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        if self.is_requested:
            raise ForcedStop
        self.is_requested = True
        if number == signal.SIGHUP:  # a closed terminal: printing to it would raise
            for output in self.terminals:
                os.dup2(os.open(os.devnull, os.O_WRONLY), output)
        with suppress(OSError, RuntimeError):  # the signal may have come while something is printed
            self.notify()
        if self.is_interruptible:
            self.check()
