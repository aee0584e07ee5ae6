"""A row is a rollout flattened by its fields: every field of its parts is a key, in declared order.

The rollout log, `glasshouse rollouts --json`, `open_run(…).rollouts()` and the page's `rollout.ts`
(`tools/rollout_type.py`) have these names, because all of them follow from the dataclasses.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from operator import attrgetter
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from glasshouse.types import Completion, Extracted, Grade, Problem, Rollout

Row = dict[str, Any]
PARTS = (Problem, Completion, Grade, Extracted)
"""What a rollout is flattened by."""
CONVERTED: Mapping[str, Callable[[Any], Any]] = {
    "meta": dict, "terms": dict, "messages": list, "prompt_tokens": list, "tokens": list, "logprobs": list,
    "span": list, "activations": list, "answer_kind": str, "finish_reason": str, "rule": str,
}  # fmt: skip
"""Fields whose values JSON does not have, and what makes JSON values of them. The enumerations are of texts."""


@cache
def field_types(cls: type) -> dict[str, tuple[Any, bool]]:
    """Each field's type and whether it may be None.

    Example: `field_types(Rollout)["advantage"]` is `(float, True)`
    """
    found = {}
    for name, kind in get_type_hints(cls).items():
        parts = [part for part in get_args(kind) if part not in (type(None), Any)]
        is_union = get_origin(kind) in (Union, UnionType)
        found[name] = (parts[0], True) if is_union else (kind, False)
    return found


@cache
def row_types(cls: type = Rollout) -> dict[str, tuple[Any, bool]]:
    """The same for each key of a row."""
    found: dict[str, tuple[Any, bool]] = {}
    for name, (kind, optional) in field_types(cls).items():
        found |= row_types(kind) if kind in PARTS else {name: (kind, optional)}
    return found


def to_row(rollout: Rollout, with_tokens: bool = True) -> Row:
    """Flatten a rollout to JSON values."""
    names, read = _leaves()
    row: Row = dict(zip(names, read(rollout), strict=True))
    if not with_tokens:
        row |= {"prompt_tokens": None, "tokens": None, "logprobs": None}
    for name, convert in CONVERTED.items():
        if (value := row[name]) is not None:
            row[name] = convert(value)
    if math.isnan(row["reward"]):
        row["reward"] = None
    return row


@cache
def _leaves() -> tuple[list[str], Callable[[Rollout], tuple[Any, ...]]]:
    """The keys of a row, and what reads their values from a rollout: one call for all of them."""

    def paths(cls: type, prefix: str = "") -> Iterator[str]:
        for name, (kind, _) in field_types(cls).items():
            if kind in PARTS:
                yield from paths(kind, f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}"

    found = list(paths(Rollout))
    return [path.rpartition(".")[2] for path in found], attrgetter(*found)


def from_row(row: Mapping[str, Any]) -> Rollout:
    """Build the rollout of a row, bit for bit."""
    rollout: Rollout = _build(Rollout, row)
    return rollout


def problem_from_row(row: Mapping[str, Any]) -> Problem:
    """Build the problem of a row."""
    problem: Problem = _build(Problem, row)
    return problem


def _build(cls: Any, row: Mapping[str, Any]) -> Any:
    return cls(
        **{
            name: _build(kind, row) if convert is None else convert(row[name])
            for name, kind, convert in _converters(cls)
        }
    )


@cache
def _converters(cls: type) -> list[tuple[str, Any, Callable[[Any], Any] | None]]:
    """The name and type of each field, and what makes its value of a row's; None for a part."""
    return [(name, kind, _converter(name, kind)) for name, (kind, _) in field_types(cls).items()]


def _converter(name: str, kind: Any) -> Callable[[Any], Any] | None:
    if kind in PARTS:
        return None
    if name == "reward":
        return lambda value: math.nan if value is None else value
    if name == "logprobs":  # back to float32
        return lambda value: None if value is None else tuple(array("f", value))
    if get_origin(kind) is tuple:
        return lambda value: None if value is None else tuple(value)
    return kind if isinstance(kind, type) and issubclass(kind, Enum) else lambda value: value


_ENCODE = json.JSONEncoder(ensure_ascii=False).encode


def encode_rows(rows: Iterable[Row]) -> bytes:
    """Encode rows as UTF-8 JSON lines; a lone surrogate, invalid in UTF-8, becomes its JSON escape."""
    return "".join(map(_encode_row, rows)).encode("utf-8", "backslashreplace")


def _encode_row(row: Row) -> str:
    """Log-probabilities stand last, with nine digits, which represent a float32 exactly: half the time of `json`."""
    numbers = row.get("logprobs")
    if not numbers or not all(map(math.isfinite, numbers)):
        return _ENCODE(row) + "\n"
    rest = {name: value for name, value in row.items() if name != "logprobs"}
    digits = ("%.9g, " * len(numbers) % tuple(numbers)).replace("-0, ", "-0.0, ")
    return f'{_ENCODE(rest)[:-1]}, "logprobs": [{digits[:-2]}]}}\n'


def decode_rows(data: bytes) -> list[Row]:
    """Decode JSON lines."""
    lines = data.decode("utf-8").split("\n")[:-1]  # str.splitlines also splits at U+2028
    return [json.loads(line) for line in lines]


# --- selection ---------------------------------------------------------------------------------


def kind_of(split: str) -> str:
    """Example: `kind_of("validation/greedy")` is `"validation"`"""
    return split.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFilter:
    """Selects rows; a field at its default selects all.

    Example: `RolloutFilter(splits=("train",), first_step=10, correct=False, text="carry")`
    """

    splits: tuple[str, ...] = ()
    """`validation` selects `validation/greedy` and every other part of it."""
    first_step: int = 0
    last_step: float = math.inf
    correct: bool | None = None
    min_reward: float = -math.inf
    max_reward: float = math.inf
    text: str = ""
    """Case-insensitive substring of the question or the completion."""

    def selects_frame(self, kind: str, step: int) -> bool:
        """Can a frame of this kind and step have matching rows?"""
        kinds = {kind_of(split) for split in self.splits}
        return (not kinds or kind in kinds) and self.first_step <= step <= self.last_step

    def matches(self, row: Row) -> bool:
        split = row["split"]
        if self.splits and not any(s == split or split.startswith(f"{s}/") for s in self.splits):
            return False
        if self.correct is not None and row["correct"] is not self.correct:
            return False
        if not self.min_reward <= row["reward"] <= self.max_reward:
            return False
        texts = (row["question"], row["text"])
        return any(self.text.casefold() in text.casefold() for text in texts)
