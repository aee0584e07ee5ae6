"""A pool that trains in this process: for tests whose claim is not about worker processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from glasshouse.errors import RunError
from glasshouse.study.process_pool import PoolEvent, RunFinished, RunRequest
from glasshouse.study.worker import _handle


class InProcessPool:
    """Has the interface of `ProcessPool`; a worker process costs 8 s of CPU to start."""

    def __init__(self, size: int) -> None: ...

    def __enter__(self) -> InProcessPool:
        return self

    def __exit__(self, *error: object) -> None: ...

    def run(self, requests: Iterable[RunRequest]) -> Iterator[PoolEvent]:
        for request in requests:
            message = {
                "config": request.config.model_dump(mode="json"),
                "action": request.action,
                "monitor": request.monitor,
            }
            result = _handle(message, lambda step: None)
            if "finished" not in result:
                raise RunError(str(result))
            yield RunFinished(request, result["finished"])
