"""The rich console of commands and notebooks."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Callable

from rich.console import Console

HEARTBEAT_SECONDS = 30.0


def make_console(*, stderr: bool = False) -> Console:
    """A console that prints texts as they are: no highlighting, no emoji codes."""
    return Console(highlight=False, emoji=False, stderr=stderr)


def shows_bars(console: Console) -> bool:
    """Can the console redraw a progress bar? Yes on a terminal, and in a notebook with ipywidgets;
    elsewhere lines are printed."""
    if console.is_jupyter:
        return importlib.util.find_spec("ipywidgets") is not None
    return console.is_terminal


class Heartbeat:
    """Calls a function in a thread whenever nothing was printed for HEARTBEAT_SECONDS: a log without
    new lines looks like a run that hangs."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self.beat = beat
        self.stopped = threading.Event()
        self.postpone()

    def start(self) -> None:
        self.stopped.clear()
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def stop(self) -> None:
        self.stopped.set()

    def postpone(self) -> None:
        """Wait for the whole interval again."""
        self.due = time.monotonic() + HEARTBEAT_SECONDS

    def _run(self) -> None:
        while not self.stopped.wait(max(0.0, self.due - time.monotonic())):
            if time.monotonic() >= self.due:
                self.postpone()
                self.beat()

    def __enter__(self) -> Heartbeat:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
