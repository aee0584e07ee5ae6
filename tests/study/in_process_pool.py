"""A pool that trains in this process: for tests whose claim is not about worker processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from glasshouse.errors import RunError
from glasshouse.study.process_pool import PoolEvent, RunFinished, RunRequest, handle_request


class InProcessPool:
    """Has the interface of `ProcessPool`; a worker process costs 8 s of CPU to start."""

    def __init__(self, size: int) -> None: ...

    def __enter__(self) -> InProcessPool:
        return self

    def __exit__(self, *error: object) -> None: ...

    def run(self, requests: Iterable[RunRequest]) -> Iterator[PoolEvent]:
        for request in requests:
            kind, value = handle_request(request, lambda message: None)
            if kind != "finished":
                raise RunError(str(value))
            yield RunFinished(request, value)
