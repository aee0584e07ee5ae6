"""What each process did, and when: logged with the step, for the timeline of `glasshouse view`."""

from __future__ import annotations

import threading

MERGE_SECONDS = 0.05
"""Chunks of one process with a shorter break between them are one span."""
ProcessSpan = tuple[str, str, float, float]
"""Process, phase, start and end in seconds since 1970."""


class ProcessSpans:
    """Collects spans from any thread. All times are the controller's, so that lanes line up even if
    the clocks of several hosts differ.

    Example: `spans.add("generator 0", "generate", started, time.time()); spans.take()`
    """

    def __init__(self) -> None:
        self._spans: list[ProcessSpan] = []
        self._lock = threading.Lock()

    def add(self, process: str, phase: str, start: float, end: float) -> None:
        with self._lock:
            for place in range(len(self._spans) - 1, -1, -1):
                other, other_phase, first, last = self._spans[place]
                if other == process:  # the last span of the same process
                    if other_phase == phase and start - last < MERGE_SECONDS:
                        self._spans[place] = (process, phase, first, end)
                        return
                    break
            self._spans.append((process, phase, start, end))

    def take(self) -> list[ProcessSpan]:
        """The spans since the last call, to the millisecond."""
        with self._lock:
            spans, self._spans = self._spans, []
        return [(name, phase, round(a, 3), round(b, 3)) for name, phase, a, b in spans]
