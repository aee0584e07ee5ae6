"""What other projects write: how a row is recognised, and which column holds which field.

Each was written against files that the project itself wrote: tests/measurement/fixtures. A new format is an entry
of `FORMATS`, with a function if a row holds several rollouts or hides its values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFormat:
    """How one project writes rollouts."""

    name: str
    columns: str
    """A row with all of these is the project's."""
    mapping: str
    """FIELD=COLUMN as for --map, or the name of both; without columns that the first row lacks."""
    expand: Callable[[Row], Iterator[Row]] = lambda row: iter((row,))
    """The rollouts of a row, with columns that the mapping names; none if the model did not answer."""


def _expand_verifiers(episode: Row) -> Iterator[Row]:
    """An episode holds a trace per agent; a trace holds a graph of messages."""
    for trace in episode["traces"]:
        nodes = trace.get("nodes") or []
        first = next((i for i, node in enumerate(nodes) if node.get("sampled")), None)
        if first is None:
            continue  # the rollout failed before the model answered
        task, rewards = trace.get("task") or {}, trace.get("rewards") or {}
        yield {
            "id": trace.get("id"),
            "prompt": [node["message"] for node in nodes[:first]],
            "completion": [node["message"] for node in nodes if node.get("sampled")],
            "reward": sum(r["score"] * r.get("weight", 1.0) for r in rewards.values()),
            "key": task.get("key") or str((task.get("data") or {}).get("idx")),
            "data": task.get("data") or {},
            "rewards": {name: r["score"] for name, r in rewards.items()},
            "info": trace.get("info") or {},
            # of a training with prime-rl
            "step": ((episode.get("run") or {}).get("work") or {}).get("step"),
        }


def _expand_inspect(sample: Row) -> Iterator[Row]:
    choices = (sample.get("output") or {}).get("choices") or []
    messages = [m for m in sample.get("messages") or [] if m.get("role") == "assistant"]
    if not choices and not messages:
        return  # the sample failed before the model answered
    target = sample.get("target")
    scores = {name: score.get("value") for name, score in (sample.get("scores") or {}).items()}
    grades = [value for value in scores.values() if value in ("C", "I", 0, 1, True, False)]
    yield {
        "sample": f"{sample.get('id')}, epoch {sample.get('epoch', 1)}",
        "id": sample.get("id"),
        "epoch": sample.get("epoch", 1),
        "prompt": sample.get("input"),
        "completion": choices[0]["message"] if choices else messages[-1],
        "metadata": sample.get("metadata") or {},
        "scores": scores,
        "target": target[0] if isinstance(target, list) and target else target,
        "correct": int(grades[0] in ("C", 1, True)) if len(grades) == 1 else None,
    }


FORMATS = (
    RolloutFormat(  # a run directory, or rows of `glasshouse rollouts --export`
        name="glasshouse",
        columns="key split text gold_answer checkpoint",
        mapping="prompt completion=text gold=gold_answer correct reward group=key checkpoint",
    ),
    RolloutFormat(  # TRL's completions table (log_completions)
        name="trl",
        columns="step prompt completion advantage",
        mapping="prompt completion group=prompt checkpoint=step",
    ),
    RolloutFormat(  # traces.jsonl of verifiers and prime-rl
        name="verifiers",
        columns="traces task",
        mapping="id prompt completion reward group=key checkpoint=step gold=data.answer",
        expand=_expand_verifiers,
    ),
    RolloutFormat(  # an Inspect log, .eval
        name="inspect",
        columns="epoch input messages output",
        mapping="id=sample prompt completion group=id gold=target correct",
        expand=_expand_inspect,
    ),
)
"""The first format whose columns a row has is its own; else columns are mapped by their names."""
COLUMNS = RolloutFormat(name="columns", columns="", mapping="")
