"""The supervisor's decisions, with processes that are only simulated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("monarch")

from glasshouse.config.schema import MonarchConfig
from glasshouse.distributed.monarch.chunk_queue import ChunkQueue, PendingChunks
from glasshouse.distributed.monarch.messages import ChunkReply
from glasshouse.distributed.monarch.runtime import ProcessDied
from glasshouse.distributed.monarch.supervisor import GeneratorSupervisor, SupervisorContext
from glasshouse.errors import RunError
from glasshouse.types import Completion, FinishReason, Request, SamplingParams

CHUNK = [Request(prompt=(1, 2), noise_keys=(1,))]
COMPLETION = Completion(
    tokens=(5,), logprobs=(-1.0,), length=1, finish_reason=FinishReason.END, policy_version=0
)
GOOD = ChunkReply(completions=[[COMPLETION]])


class SimulatedProcesses:
    """Answers each chunk with the next reply; raises it if it is an exception."""

    pids = (1,)
    has_exited = False
    actor = SimpleNamespace(generate=SimpleNamespace(call=lambda *arguments: None))

    def __init__(self, replies: list[Any]) -> None:
        self.replies = replies

    def wait_until_started(self, timeout: float) -> None: ...

    def wait(self, future: Any, timeout: float, key: str) -> list[Any]:
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return [reply]

    def stderr_tail(self) -> str:
        return "Segmentation fault"

    def kill(self) -> None: ...


def run_supervisor(replies: list[Any], max_failures: int) -> tuple[Any, list[dict[str, Any]], int]:
    """Generate one chunk; return its completions or the error, the events and the spawns."""
    queue, events, spawns = ChunkQueue(), list[dict[str, Any]](), list[int]()
    embeddings = SimpleNamespace(num_embeddings=300)
    model = SimpleNamespace(get_input_embeddings=lambda: embeddings)

    def spawn(number: int) -> Any:
        spawns.append(number)
        return SimulatedProcesses(replies)

    context = SupervisorContext(
        queue=queue, policy=SimpleNamespace(end_tokens={1}, model=model),  # type: ignore[arg-type]
        config=MonarchConfig(max_failures=max_failures, backoff=0), spawn=spawn,
        open=lambda number, processes: None, checksum=lambda version: b"",
        queue_event=lambda kind, **details: events.append({"kind": kind, **details}),
    )  # fmt: skip
    supervisor = GeneratorSupervisor(0, context)
    supervisor.start()
    pending = PendingChunks(queue, 0, lambda: None, lambda: None)
    queue.submit(pending, [CHUNK], SamplingParams(max_tokens=8))
    try:
        result: Any = pending.result()
    except RunError as error:
        result = error
    queue.close()
    supervisor.join()
    return result, events, len(spawns)


def test_failures_in_a_row_end_the_run_with_the_output_of_the_process() -> None:
    error, events, spawns = run_supervisor([ProcessDied("it ended")] * 9, max_failures=3)
    assert isinstance(error, RunError)
    assert "monarch.max_failures" in str(error)
    assert "Segmentation fault" in str(error)
    assert spawns == 3
    assert [e["cause"] for e in events if e["kind"] == "fault"] == ["process_died"] * 3


def test_a_chunk_with_an_invalid_reply_is_generated_again_by_a_new_process() -> None:
    result, events, spawns = run_supervisor([None, ProcessDied("it ended"), GOOD], max_failures=3)
    assert result == [[[COMPLETION]]]
    assert spawns == 3
    causes = [e["cause"] for e in events if e["kind"] == "fault"]
    assert causes == ["invalid_reply", "process_died"]
    assert [e["kind"] for e in events].count("respawn") == 2
