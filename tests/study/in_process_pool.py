"""A pool that trains in this process: for tests whose claim is not about worker processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from glasshouse.errors import RunError
from glasshouse.study.process_pool import PoolEvent, handle_run
from glasshouse.study.spec import StudyRun


class InProcessPool:
    """Has the interface of `ProcessPool`; a worker process costs 8 s of CPU to start."""

    def __init__(self, size: int) -> None: ...

    def __enter__(self) -> InProcessPool:
        return self

    def __exit__(self, *error: object) -> None: ...

    def train(self, runs: Iterable[StudyRun], only_check: bool = False) -> Iterator[PoolEvent]:
        for run in runs:
            events: list[PoolEvent] = []
            send = lambda kind, value: events.append(PoolEvent(run, kind, value))  # noqa: B023, E731
            kind, value = handle_run(run, only_check, send)
            yield from events
            if kind != "finished":
                raise RunError(str(value))
            yield PoolEvent(run, "finished", value)
