"""What other projects write, as rows with columns and a default mapping of fields.

Each was written against files that the project itself wrote: tests/measurement/fixtures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from glasshouse.runs.foreign_fields import FIELDS

Row = Mapping[str, Any]
TRL_COLUMNS = {"step", "prompt", "completion", "advantage"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFormat:
    """How one project writes rollouts."""

    name: str
    description: str
    matches: Callable[[Row], bool]
    """Does this row look like the project's?"""
    mapping: Callable[[Row], dict[str, str]]
    """The default field mapping, from the first row."""
    expand: Callable[[Row], Iterator[Row]] = lambda row: iter((row,))
    """The rollouts of a row, with columns that the mapping names."""


def _map_trl(row: Row) -> dict[str, str]:
    mapping = {name: name for name in ("prompt", "completion")}
    mapping |= {"group": "prompt", "checkpoint": "step"}
    rewards = [name for name in row if name not in TRL_COLUMNS and name != "images"]
    return mapping | ({"reward": rewards[0]} if len(rewards) == 1 else {})


def _expand_verifiers(episode: Row) -> Iterator[Row]:
    """An episode holds a trace per agent; a trace holds a graph of messages."""
    for trace in episode["traces"]:
        nodes = trace.get("nodes") or []
        sampled = [node["message"] for node in nodes if node.get("sampled")]
        if not sampled:
            continue  # the rollout failed before the model answered
        prompt = []
        for node in nodes:
            if node.get("sampled"):
                break
            prompt.append(node["message"])
        task = trace.get("task") or {}
        rewards = trace.get("rewards") or {}
        work = (episode.get("run") or {}).get("work") or {}  # of a training with prime-rl
        row = {
            "id": trace.get("id"),
            "prompt": prompt,
            "completion": sampled,
            "reward": sum(r["score"] * r.get("weight", 1.0) for r in rewards.values()),
            "key": task.get("key") or str((task.get("data") or {}).get("idx")),
            "data": task.get("data") or {},
            "rewards": {name: r["score"] for name, r in rewards.items()},
            "info": trace.get("info") or {},
        }
        yield row | ({"step": work["step"]} if "step" in work else {})


def _expand_verifiers_results(row: Row) -> Iterator[Row]:
    if row["completion"]:  # an empty list: the rollout failed before the model answered
        yield row


def _map_verifiers(row: Row) -> dict[str, str]:
    mapping = {name: name for name in ("id", "prompt", "completion", "reward")} | {"group": "key"}
    mapping |= {"checkpoint": "step"} if "step" in row else {}
    return mapping | ({"gold": "data.answer"} if "answer" in row["data"] else {})


def _expand_inspect(sample: Row) -> Iterator[Row]:
    choices = (sample.get("output") or {}).get("choices") or []
    messages = [m for m in sample.get("messages") or [] if m.get("role") == "assistant"]
    if not choices and not messages:
        return  # the sample failed before the model answered
    target = sample.get("target")
    scores = {name: score.get("value") for name, score in (sample.get("scores") or {}).items()}
    row = {
        "sample": f"{sample.get('id')}, epoch {sample.get('epoch', 1)}",
        "id": sample.get("id"),
        "epoch": sample.get("epoch", 1),
        "prompt": sample.get("input"),
        "completion": choices[0]["message"] if choices else messages[-1],
        "metadata": sample.get("metadata") or {},
        "scores": scores,
    }
    if target is not None:
        row["target"] = target[0] if isinstance(target, list) and target else target
    grades = [value for value in scores.values() if value in ("C", "I", 0, 1, True, False)]
    if len(grades) == 1:
        row["correct"] = int(grades[0] in ("C", 1, True))
    yield row


def _map_inspect(row: Row) -> dict[str, str]:
    mapping = {"id": "sample", "prompt": "prompt", "completion": "completion", "group": "id"}
    mapping |= {"gold": "target"} if "target" in row else {}
    return mapping | ({"correct": "correct"} if "correct" in row else {})


def _map_by_name(row: Row) -> dict[str, str]:
    """Columns that are called like a field; a few other common names of the completion."""
    mapping = {name: name for name in FIELDS if row.get(name) is not None}
    if "completion" not in mapping and "answer" not in mapping:
        for name in ("response", "output", "completions"):
            if name in row:
                return mapping | {"completion": name}
        if "content" in row:
            mapping["answer"] = "content"
            if row.get("reasoning_content") is not None:
                mapping["reasoning"] = "reasoning_content"
    if "completion" in mapping and "answer" in mapping:
        mapping["gold"] = mapping.pop("answer") if "gold" not in mapping else mapping["gold"]
        mapping.pop("answer", None)  # beside a completion, it is the reference
    return mapping


GLASSHOUSE = "glasshouse"
GLASSHOUSE_MAPPING = {
    "prompt": "prompt", "completion": "text", "gold": "gold_answer", "correct": "correct",
    "reward": "reward", "group": "key", "checkpoint": "checkpoint",
}  # fmt: skip

FORMATS = (
    RolloutFormat(
        name=GLASSHOUSE,
        description="a run directory, or rows of `glasshouse rollouts --export`",
        matches=lambda row: {"key", "split", "text", "gold_answer", "checkpoint"} <= row.keys(),
        mapping=lambda row: dict(GLASSHOUSE_MAPPING),
    ),
    RolloutFormat(
        name="trl",
        description="TRL's completions table (log_completions)",
        matches=lambda row: row.keys() >= TRL_COLUMNS,
        mapping=_map_trl,
    ),
    RolloutFormat(
        name="verifiers",
        description="traces.jsonl of verifiers and prime-rl",
        matches=lambda row: isinstance(row.get("traces"), list) and "task" in row,
        mapping=_map_verifiers,
        expand=_expand_verifiers,
    ),
    RolloutFormat(
        name="verifiers-results",
        description="results.jsonl of verifiers before 0.2",
        matches=lambda row: {"example_id", "prompt", "completion", "reward"} <= row.keys(),
        mapping=lambda row: {
            "prompt": "prompt", "completion": "completion", "reward": "reward", "group": "example_id",
        } | ({"gold": "answer"} if row.get("answer") is not None else {}),
        expand=_expand_verifiers_results,
    ),
    RolloutFormat(
        name="inspect",
        description="an Inspect log, .eval",
        matches=lambda row: {"epoch", "input", "messages", "output"} <= row.keys(),
        mapping=_map_inspect,
        expand=_expand_inspect,
    ),
    RolloutFormat(
        name="columns",
        description="columns that are called like the fields",
        matches=lambda row: True,
        mapping=_map_by_name,
    ),
)  # fmt: skip


def detect_format(row: Row) -> RolloutFormat:
    """The first format that a row looks like."""
    return next(format for format in FORMATS if format.matches(row))
