"""Ctrl-C and SIGTERM: a run ends where nothing is half done, or, if that takes too long, at once.

the first signal ──► while generating or evaluating: ends there and then
                └──► while learning or recording: at the end of the step, within GRACE seconds
the second, or too long ──► ends at once; the last checkpoint stands
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

GRACE = 2.0
"""Seconds that a signalled run has for its last checkpoint."""


class Interrupted(BaseException):
    """Asked to end, at a point where nothing is half done: the last step can be saved."""


class TooLate(BaseException):
    """Asked to end, and there is no time to save: the last checkpoint stands."""


class Interruption:
    """Listens to SIGINT and SIGTERM while it is entered.

    Example:
        with Interruption(say) as interruption:
            with interruption.welcome():  # may end anywhere in here
                generate()
            learn()                       # is finished first
            interruption.here()           # or here
    """

    def __init__(self, say: Callable[[], None] = lambda: None) -> None:
        self.say, self.asked, self.open = say, False, False
        self.before: dict[int, object] = {}

    def __enter__(self) -> Interruption:
        wanted = {
            signal.SIGINT: self._asked,
            signal.SIGTERM: self._asked,
            signal.SIGALRM: self._too_late,
        }
        for number, handler in wanted.items():
            try:
                self.before[number] = signal.signal(number, handler)
            except ValueError:  # not the main thread: the caller owns the signals
                break
        return self

    def __exit__(self, *error: object) -> None:
        if self.before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self.before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @contextmanager
    def welcome(self) -> Iterator[None]:
        """In here a signal may end the run anywhere."""
        self.here()
        self.open = True
        try:
            yield
        finally:
            self.open = False

    def here(self) -> None:
        """End here, if that has been asked."""
        if self.asked:
            self.open = False
            raise Interrupted

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise TooLate
        self.asked = True
        signal.setitimer(signal.ITIMER_REAL, GRACE)
        self.say()
        if self.open:
            self.here()

    def _too_late(self, number: int, frame: FrameType | None) -> None:
        raise TooLate
