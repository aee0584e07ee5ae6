r"""Split a completion into its chain of thought and its answer, for the common formats.

    message with reasoning_content, or content parts of type reasoning or thinking
    <|channel|>analysis<|message|> … <|channel|>final<|message|> …       harmony (gpt-oss)
    <think> … </think> …                                              DeepSeek, Qwen and others
    … [ANSWER] …, … \boxed{…}, … the answer is …                       the answer parser of Glasshouse

Text in which the parser finds no answer is an answer without reasoning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from glasshouse.tasks.answers import split_completion

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
