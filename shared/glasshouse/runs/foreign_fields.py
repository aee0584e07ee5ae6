"""The mapping of a file's columns to the fields of a rollout, and the checks of values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from glasshouse.errors import RolloutFileError, did_you_mean
from glasshouse.runs.foreign_reasoning import message_text, parts_of, read_completion
from glasshouse.tasks.answers.equality import answers_match, parse_number
from glasshouse.tasks.answers.extraction import extract_answer
from glasshouse.types import AnswerKind, Completion, Grade, Problem, Rollout

FIELDS: Mapping[str, str] = {
    "prompt": "the prompt: text, or a list of messages",
    "completion": "everything the model wrote: text, a message, or a list of messages",
    "reasoning": "the chain of thought, if the file has it in a separate column",
    "answer": "the model's final answer, if the file has it in a separate column",
    "gold": "the correct answer",
    "hint": "the planted answer: the behaviour is that the model's answer equals it",
    "label": "the behaviour, by construction and not by a judge: 0 or 1",
    "correct": "is the answer correct: 0 or 1",
    "reward": "the reward, a number",
    "arm": "planted or control; also 1 or 0",
    "group": "the problem; rollouts of one problem in both arms share it",
    "checkpoint": "the training step or name of the model that wrote it",
    "seed": "the seed of the training run",
    "id": "identifies the rollout; must not repeat",
    "activations": "hidden state at the end of the chain of thought: a list of numbers, for probes",
}
"""What a mapping may name, as `glasshouse measure --help` explains it."""
ARMS = {
    "planted": "planted", "treatment": "planted", "hinted": "planted",
    "control": "control", "clean": "control", "unhinted": "control",
}  # fmt: skip
MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldMapping:
    """Which column holds each field. A column may be a dotted path, as in `metadata.arm`; an empty one
    ignores the field.

    Example: `FieldMapping.parse(["completion=response", "arm=metadata.arm"])`
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    planted: str = ""
    """The value of the arm's column that means planted, if it is not one of ARMS."""
    control: str = ""
    ignored: tuple[str, ...] = ()
    """Columns that are called like a field and have no value in row 1; none may have one later."""

    @classmethod
    def parse(
        cls, texts: Sequence[str] | Mapping[str, str], planted: str = "", control: str = ""
    ) -> FieldMapping:
        pairs = (
            list(texts.items()) if isinstance(texts, Mapping) else [_parse_pair(t) for t in texts]
        )
        if planted and planted == control:
            raise RolloutFileError(f'--planted and --control are both "{planted}".')
        columns: dict[str, str] = {}
        for name, column in pairs:
            if name not in FIELDS:
                raise RolloutFileError(f'There is no field "{name}".{did_you_mean(name, FIELDS)}')
            if name in columns:
                raise RolloutFileError(
                    f'The field "{name}" is mapped twice: to "{columns[name]}" and to "{column}".'
                )
            columns[name] = column
        return cls(columns=columns, planted=planted, control=control)

    def over(self, defaults: Mapping[str, str]) -> FieldMapping:
        """This mapping, with a format's own for the fields that it does not name."""
        merged = {**defaults, **self.columns}
        if "reasoning" in self.columns or "answer" in self.columns:
            merged.pop("completion" if "completion" not in self.columns else "", None)
        return FieldMapping(columns=merged, planted=self.planted, control=self.control)

    def check(self, first: Mapping[str, Any], source: str) -> None:
        """Raise if the mapping contradicts itself, or names columns that the first row lacks."""
        if "completion" in self.columns and "answer" in self.columns:
            raise RolloutFileError(
                f"{source}: map either completion, or reasoning and answer; a completion holds both."
            )
        if "completion" not in self.columns and "answer" not in self.columns:
            raise RolloutFileError(
                f"{source}: no column is mapped to completion. Columns: {', '.join(sorted(first))}. "
                "Write for example --map completion=COLUMN."
            )
        if "label" in self.columns and "hint" in self.columns:
            raise RolloutFileError(
                f"{source}: label and hint both say what the behaviour is. Ignore one of them, with --map hint= "
                "or --map label=."
            )
        for name, column in self.columns.items():
            if _look_up(first, column) is MISSING:
                raise RolloutFileError(
                    f'{source}, row 1: there is no column "{column}" (mapped to {name}).'
                    f"{did_you_mean(column, first)}"
                )

    def read(self, values: Mapping[str, Any], row: int, source: str) -> tuple[Rollout, str | None]:
        """Check one row; returns its rollout and its id. What the file does not say is unknown."""

        def fail(name: str, problem: str) -> RolloutFileError:
            column = self.columns.get(name, name)
            return RolloutFileError(f'{source}, row {row}, column "{column}": {problem}')

        for column in self.ignored:
            if values.get(column) is not None:
                raise fail(
                    column,
                    f"there is a value, but row 1 has none. Fill it in, or ignore the column: --map {column}=",
                )
        found: dict[str, Any] = {}
        for name, column in self.columns.items():
            value = _look_up(values, column)
            if value is MISSING or value is None:
                raise fail(name, f"the value of {name} is missing, but row 1 has one.")
            found[name] = value

        def key(name: str) -> str | None:
            return _as_key(found[name]) if name in found else None

        cot, text = _read_completion(found, fail)
        answer = parts_of(cot, text).answer
        gold, hint, checkpoint = key("gold"), key("hint"), key("checkpoint") or ""
        correct = _as_label(found, "correct", fail)
        if correct is None and gold is not None:
            correct = gives(answer, gold)
        behaviour = _as_label(found, "label", fail)
        if behaviour is None and hint is not None:
            behaviour = gives(answer, hint)
        prompt = message_text(found["prompt"]) if "prompt" in found else ""
        rollout = Rollout(
            step=int(checkpoint) if checkpoint.isascii() and checkpoint.isdigit() else 0,
            split="",
            arm=self._as_arm(found["arm"], fail) if "arm" in found else "",
            group=0,
            sample=row,
            seed=_as_seed(found["seed"], fail) if "seed" in found else 0,
            checkpoint=checkpoint,
            problem=Problem(
                task="", key=key("group") or f"row {row}", question=prompt, gold_answer=gold or ""
            ),
            prompt=prompt,
            text=text,
            cot=cot,
            completion=Completion(),
            grade=Grade(
                reward=_as_number(found["reward"], fail) if "reward" in found else math.nan,
                correct=correct,
            ),
            behaviour=behaviour,
            activations=_as_vector(found["activations"], fail) if "activations" in found else None,
        )
        return rollout, key("id")

    def _as_arm(self, value: Any, fail: Any) -> str:
        text = str(value)
        if self.planted and text == self.planted:
            return "planted"
        if self.control and text == self.control:
            return "control"
        if isinstance(value, bool) or value in (0, 1, "0", "1"):
            return "planted" if int(value) else "control"
        if not (self.planted or self.control) and text.lower() in ARMS:
            return ARMS[text.lower()]
        known = (
            [self.planted, self.control] if self.planted or self.control else ["planted", "control"]
        )
        raise fail(
            "arm",
            f'the arm is "{text}"; it must be {" or ".join(k for k in known if k)}. '
            "Name the file's own words with --planted and --control.",
        )


def _read_completion(found: Mapping[str, Any], fail: Any) -> tuple[str | None, str]:
    """The chain of thought, if it is given apart, and the text."""
    name = "completion" if "completion" in found else "answer"
    try:
        cot, text = read_completion(found[name])
    except (TypeError, ValueError) as error:
        raise fail(name, f"it is not a text, a message or a list of messages: {error}.") from None
    if "reasoning" not in found:
        return cot, text
    if not isinstance(found["reasoning"], str):
        raise fail("reasoning", "the reasoning is not a text.")
    return found["reasoning"], parts_of(cot, text).answer


def gives(answer: str, expected: str) -> bool:
    """Does an answer give this value? Numbers are compared as numbers, anything else as text."""
    kind = AnswerKind.NUMBER if parse_number(expected) is not None else AnswerKind.TEXT
    return answers_match(extract_answer(answer, kind).model_answer, expected, kind)


def _parse_pair(text: str) -> tuple[str, str]:
    name, equals, column = text.partition("=")
    if not (name and equals):
        raise RolloutFileError(
            f'"{text}" is not a mapping; write field=column, as in label=hacked.'
        )
    return name.strip(), column.strip()


def _look_up(values: Mapping[str, Any], column: str) -> Any:
    """The value of a column, or of a dotted path into it."""
    if column in values:
        return values[column]
    name, dot, rest = column.partition(".")
    inner = values.get(name, MISSING)
    return _look_up(inner, rest) if dot and isinstance(inner, Mapping) else MISSING


def _as_key(value: Any) -> str:
    """A value that identifies something: 3 and 3.0 are the same, lists are compared by content."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, list) and all(isinstance(item, str | Mapping) for item in value):
        return message_text(value)
    return str(value)


def _as_label(found: Mapping[str, Any], name: str, fail: Any) -> bool | None:
    if name not in found:
        return None
    value = found[name]
    if isinstance(value, bool) or (isinstance(value, int | float) and value in (0, 1)):
        return bool(value)
    if isinstance(value, str) and value.lower() in ("0", "1", "true", "false", "yes", "no"):
        return value.lower() in ("1", "true", "yes")
    raise fail(name, f"the value of {name} is {value!r:.60}; it must be 0 or 1.")


def _as_number(value: Any, fail: Any) -> float:
    with suppress(OverflowError):
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    raise fail("reward", f"the reward is {str(value)[:60]}; it must be a finite number.")


def _as_seed(value: Any, fail: Any) -> int:
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdigit()):
        raise fail("seed", f"the seed is {value!r:.60}; it must be a whole number.")
    return int(text)


def _as_vector(value: Any, fail: Any) -> tuple[float, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise fail("activations", "it is not a list of numbers.")
    numbers = [v for v in value if isinstance(v, int | float) and math.isfinite(v)]
    if len(numbers) != len(value):
        raise fail("activations", "it holds a value that is not a finite number.")
    return tuple(map(float, numbers))
