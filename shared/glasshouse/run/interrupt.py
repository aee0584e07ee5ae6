"""Ctrl-C and SIGTERM: a run stops at the next point where nothing is half done."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM, at a point where nothing is half done."""


@contextmanager
def interruptible(ask: Callable[[], None]) -> Iterator[None]:
    """The first SIGINT or SIGTERM asks for a stop at the next safe point; the second ends at once."""
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        ask()

    try:
        before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: the caller owns the signals
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
