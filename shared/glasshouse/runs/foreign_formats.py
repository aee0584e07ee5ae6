r"""What other projects write: how a row is recognised, which column holds which field, and how a completion is
split into its chain of thought and its answer.

Each was written against files that the project itself wrote: tests/measurement/fixtures. A new format is an entry
of `FORMATS`, with a function if a row holds several rollouts or hides its values.

These forms of a CoT are known; text in which the parser finds no answer is an answer without reasoning:

    message with reasoning_content, or content parts of type reasoning or thinking
    <|channel|>analysis<|message|> … <|channel|>final<|message|> …       harmony (gpt-oss)
    <think> … </think> …                                              DeepSeek, Qwen and others
    … [ANSWER] …, … \boxed{…}, … the answer is …                       the answer parser of Glasshouse
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from glasshouse.tasks.answers import split_completion

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
            "finish_reason": (trace.get("calls") or [{}])[-1].get("finish_reason"),
            # of a training with prime-rl
            "step": ((episode.get("run") or {}).get("work") or {}).get("step"),
        }


def _expand_inspect(row: Row) -> Iterator[Row]:
    """A sample of a log. The ids of samples repeat from log to log: the evaluation and the task tell them apart."""
    log, sample = row["log"], row["sample"]
    choices = (sample.get("output") or {}).get("choices") or []
    messages = [m for m in sample.get("messages") or [] if m.get("role") == "assistant"]
    if not choices and not messages:
        return  # the sample failed before the model answered
    target, facts = sample.get("target"), log.get("metadata") or {}
    scores = {name: score.get("value") for name, score in (sample.get("scores") or {}).items()}
    grades = [value for value in scores.values() if value in ("C", "I", 0, 1, True, False)]
    checkpoints = (facts.get("step"), facts.get("checkpoint"), log.get("model"))
    yield {
        "log": log,
        "rollout": f"{log.get('eval_id')}, {sample.get('id')}, epoch {sample.get('epoch', 1)}",
        "problem": f"{log.get('task')}, {sample.get('id')}",
        "checkpoint": next((name for name in checkpoints if name is not None), None),
        "seed": facts.get("seed"),
        "id": sample.get("id"),
        "epoch": sample.get("epoch", 1),
        "prompt": sample.get("input"),
        "completion": choices[0]["message"] if choices else messages[-1],
        "finish_reason": choices[0].get("stop_reason") if choices else None,
        "metadata": sample.get("metadata") or {},
        "scores": scores,
        "target": target[0] if isinstance(target, list) and target else target,
        "correct": int(grades[0] in ("C", 1, True)) if len(grades) == 1 else None,
    }


FORMATS = (
    RolloutFormat(  # a run directory, or rows of `glasshouse rollouts --json`
        name="glasshouse",
        columns="key split text gold_answer checkpoint",
        mapping="prompt completion=text gold=gold_answer correct reward group=key checkpoint finish_reason",
    ),
    RolloutFormat(  # TRL's completions table (log_completions)
        name="trl",
        columns="step prompt completion advantage",
        mapping="prompt completion group=prompt checkpoint=step",
    ),
    RolloutFormat(  # verl's rollout_data_dir and validation_data_dir
        name="verl",
        columns="input output gts score step",
        mapping="prompt=input completion=output gold=gts reward=score checkpoint=step",
    ),
    RolloutFormat(  # traces.jsonl of verifiers and prime-rl
        name="verifiers",
        columns="traces task",
        mapping="id prompt completion reward group=key checkpoint=step gold=data.answer finish_reason",
        expand=_expand_verifiers,
    ),
    RolloutFormat(  # an Inspect log, .eval or .json
        name="inspect",
        columns="log sample",
        mapping="id=rollout prompt completion group=problem gold=target correct finish_reason checkpoint seed",
        expand=_expand_inspect,
    ),
)
"""The first format whose columns a row has is its own; else columns are mapped by their names."""
COLUMNS = RolloutFormat(name="columns", columns="", mapping="")


# --- reasoning ---------------------------------------------------------------------------------

_HARMONY = re.compile(r"<\|channel\|>\s*(\w+)[^<]{0,200}<\|message\|>")
_HARMONY_END = re.compile(r"<\|(?:end|return|call|start|channel)\|>")
_THINK_END = re.compile(r"</think>", re.IGNORECASE)
_THINK_TAG = re.compile(r"</?think>", re.IGNORECASE)
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")


class SplitCompletion(NamedTuple):
    """The two parts that monitors see."""

    cot: str
    answer: str


def split_text(text: str) -> SplitCompletion:
    """Example: `split_text("<think>2+2=4</think>The answer is 4")` is ("2+2=4", "The answer is 4")."""
    if channels := list(_HARMONY.finditer(text)):
        return _split_channels(text, channels)
    if ends := list(_THINK_END.finditer(text)):
        cot = _THINK_TAG.sub("", text[: ends[-1].start()])
        return SplitCompletion(cot, text[ends[-1].end() :])
    if _THINK_TAG.search(text):  # opened and never closed: the token limit was reached
        return SplitCompletion(_THINK_TAG.sub("", text), "")
    sections = split_completion(text)
    if sections.answer.strip():
        return SplitCompletion(sections.cot, sections.answer)
    return SplitCompletion("", text)


def find_cot(text: str) -> tuple[int, int]:
    """Where the CoT stands in a text, without the markers around it; `text[start:end]` is empty without one.

    Example: `find_cot("<think>2+2=4</think>4")` is (7, 12).
    """
    if channels := list(_HARMONY.finditer(text)):
        thoughts = [channel for channel in channels if channel.group(1) != "final"]
        if not thoughts:
            return channels[0].start(), channels[0].start()
        end = _HARMONY_END.search(text, thoughts[-1].end())
        return thoughts[0].end(), end.start() if end else len(text)
    tags = list(_THINK_TAG.finditer(text))
    if tags:
        is_closed = tags[-1].group().startswith("</")
        start = 0 if tags[0].group().startswith("</") else tags[0].end()
        return start, tags[-1].start() if is_closed else len(text)
    sections = split_completion(text)
    return 0, sections.answer_start if sections.answer.strip() else 0


def parts_of(cot: str | None, text: str) -> SplitCompletion:
    """The two parts of a rollout's text, of which the CoT may be given apart."""
    return split_text(text) if cot is None else SplitCompletion(cot, text)


def read_completion(value: Any) -> tuple[str | None, str]:
    """A completion as text, as one message, or as a list of messages: the CoT if it is apart from the text,
    and the text. Of several messages of the assistant, the CoTs are joined and the last answer counts."""
    if isinstance(value, str):
        return None, value
    if isinstance(value, Mapping):
        return _read_message(value)
    messages = [
        _read_message(m)
        for m in value
        if isinstance(m, Mapping) and m.get("role", "assistant") == "assistant"
    ]
    if not messages:
        raise ValueError("it has no message of the assistant")
    if len(messages) == 1:
        return messages[0]
    parts = [parts_of(cot, text) for cot, text in messages]
    return "\n\n".join(part.cot for part in parts if part.cot), parts[-1].answer


def _read_message(message: Mapping[str, Any]) -> tuple[str | None, str]:
    """The reasoning of a chat message may be a separate field, or a part of its content."""
    reasoning = next((message[key] for key in REASONING_KEYS if message.get(key)), "")
    content = message.get("content") or ""
    if not isinstance(content, str):
        thoughts, content = _split_parts(content)
        reasoning = reasoning or thoughts
    return (str(reasoning), content) if reasoning else (None, content)


def message_text(value: Any) -> str:
    """A prompt as text: a text, or the contents of its messages."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        content = value.get("content") or ""
        return content if isinstance(content, str) else _split_parts(content)[1]
    return "\n\n".join(message_text(message) for message in value)


def _split_channels(text: str, channels: Sequence[re.Match[str]]) -> SplitCompletion:
    cot: list[str] = []
    answer: list[str] = []
    for channel in channels:
        end = _HARMONY_END.search(text, channel.end())
        body = text[channel.end() : end.start() if end else len(text)]
        (answer if channel.group(1) == "final" else cot).append(body)
    return SplitCompletion("\n".join(cot), "\n".join(answer))


def _split_parts(parts: Sequence[Any]) -> tuple[str, str]:
    """Reasoning and text of a message whose content is a list of parts."""
    reasoning, texts = [], []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Mapping):
            if part.get("type") in ("reasoning", "thinking"):
                thought = part.get("reasoning") or part.get("thinking") or part.get("text") or ""
                reasoning.append(str(thought))
            elif part.get("text"):
                texts.append(str(part["text"]))
    return "\n".join(reasoning), "\n".join(texts)
