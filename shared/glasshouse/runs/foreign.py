"""Rollouts of any trainer: a run directory, or files of TRL, verifiers, prime-rl, Inspect and others.

    files ──► rows ──► the project's format ──► mapping of columns to fields ──► Rollout
    tables.py           foreign_formats         here

A new format is an entry of `foreign_formats.FORMATS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from glasshouse.errors import RolloutFileError, did_you_mean
from glasshouse.runs import labels
from glasshouse.runs.checkpoints import read_newest_state
from glasshouse.runs.foreign_formats import (
    COLUMNS,
    FORMATS,
    message_text,
    parts_of,
    read_completion,
)
from glasshouse.runs.rollout_log import LOG, read_rows
from glasshouse.runs.rows import Row, from_row, row_types
from glasshouse.runs.verify import verify_rollout_log
from glasshouse.tables import OnProgress, get_field
from glasshouse.tables import iter_rows as iter_table_rows
from glasshouse.tasks.answers import answers_match, extract_answer
from glasshouse.tasks.problem_files import AnswerForm, GoldCheck, find_forms
from glasshouse.types import (
    AnswerKind,
    Completion,
    Extracted,
    FinishReason,
    Grade,
    Problem,
    Rollout,
)

ARMS = {
    "planted": ("planted", "treatment", "hinted", "1", "true"),
    "control": ("control", "clean", "unhinted", "0", "false"),
}
"""The words of a column that name the arms, unless --planted or --control gives the file's own."""
CUT_WORDS = ("length", "max_tokens", "max_length", "model_length", "truncated", "true", "1")
MISSING = object()
MAY_BE_NULL = ("finish_reason", "reward")
"""Fields that may have no value in a row, although they have one in others."""
MAX_NUMBER = 1e100
"""The squares of larger ones overflow."""


# --- values ------------------------------------------------------------------------------------


def _as_key(value: Any) -> str:
    """A value that identifies something: 3 and 3.0 are the same, lists are compared by content."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, list) and all(isinstance(item, str | Mapping) for item in value):
        return message_text(value)
    return str(value)


def _as_label(value: Any) -> bool:
    text = _as_key(value).lower()
    if text not in ("0", "1", "true", "false", "yes", "no"):
        raise ValueError(f"it is {value!r:.60} and must be 0 or 1")
    return text in ("1", "true", "yes")


def _as_number(value: Any) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not abs(value) <= MAX_NUMBER
    ):
        raise ValueError(f"it is {str(value)[:60]} and must be a number up to {MAX_NUMBER:g}")
    return float(value)


def _as_reward(value: Any) -> float:
    """Of a reward that does not apply to a rollout, TRL logs None."""
    if value is None or value != value:
        return math.nan
    return _as_number(value)


def _as_seed(value: Any) -> int:
    text = _as_key(value)
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"it is {value!r:.60} and must be a whole number")
    return int(text)


def _as_vector(value: Any) -> tuple[float, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise ValueError("it is not a list of numbers")
    return tuple(map(_as_number, value))


def _as_finish_reason(value: Any) -> FinishReason:
    """How a completion ended; projects have many words for an end and few for the token limit."""
    if value is MISSING or value in (None, ""):
        return FinishReason.UNKNOWN
    return FinishReason.LENGTH if _as_key(value).lower() in CUT_WORDS else FinishReason.END


def _as_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("it is not a text")
    return value


FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "prompt": message_text,
    "completion": read_completion,
    "reasoning": _as_text,
    "answer": read_completion,
    "gold": _as_key,
    "hint": _as_key,
    "label": _as_label,
    "correct": _as_label,
    "reward": _as_reward,
    "arm": _as_key,
    "group": _as_key,
    "checkpoint": _as_key,
    "seed": _as_seed,
    "id": _as_key,
    "activations": _as_vector,
    "finish_reason": _as_finish_reason,
}
"""What a mapping may name, and how a value is read; docs/measure.md explains each."""


def read_answer(text: str, expected: str, form: AnswerForm) -> tuple[Extracted, bool]:
    """Return the answer of a completion, of the form of the expected one, and whether it is that one."""
    found = _extract(text, *form)
    return found, answers_match(found.model_answer, expected, form[0])


@lru_cache(maxsize=1)  # the answer to a gold and to a hint of the same form
def _extract(text: str, kind: AnswerKind, options: tuple[str, ...]) -> Extracted:
    return extract_answer(text, kind, options=options)


# --- mapping -----------------------------------------------------------------------------------


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

    @classmethod
    def parse(
        cls, texts: Sequence[str] | Mapping[str, str], planted: str = "", control: str = ""
    ) -> FieldMapping:
        if planted and planted == control:
            raise RolloutFileError(f'--planted and --control are both "{planted}".')
        columns: dict[str, str] = {}
        pairs = (
            [f"{name}={column}" for name, column in texts.items()]
            if isinstance(texts, Mapping)
            else texts
        )
        for text in pairs:
            name, equals, column = (part.strip() for part in text.partition("="))
            if not (name and equals):
                raise RolloutFileError(
                    f'"{text}" is not a mapping; write field=column, as in label=hacked.'
                )
            if name not in FIELDS:
                raise RolloutFileError(f'There is no field "{name}".{did_you_mean(name, FIELDS)}')
            if columns.setdefault(name, column) != column:
                raise RolloutFileError(
                    f'The field "{name}" is mapped twice: to "{columns[name]}" and to "{column}".'
                )
        return cls(columns=columns, planted=planted, control=control)

    def read_arm(self, text: str) -> str:
        """The arm that a value of the arm's column names."""
        own = {self.planted: "planted", self.control: "control"}
        if text and text in own:
            return own[text]
        for arm, words in ARMS.items():
            if text.lower() in (words[-2:] if self.planted or self.control else words):
                return arm
        known = [self.planted, self.control] if self.planted or self.control else list(ARMS)
        raise ValueError(
            f'it is "{text}" and must be {" or ".join(filter(None, known))}. Name the file\'s own words with '
            "--planted and --control"
        )


def _map_by_name(row: Mapping[str, Any]) -> dict[str, str]:
    """Columns that are called like a field; a few other common names of the completion."""
    has_value = (name for name in FIELDS if row.get(name) is not None or name == "reward")
    mapping = {name: name for name in has_value if name in row}
    if row.get("step") is not None:
        mapping.setdefault("checkpoint", "step")
    if "completion" not in mapping and "answer" not in mapping:
        for name in ("response", "output", "completions"):
            if name in row:
                return mapping | {"completion": name}
        if "content" in row:
            mapping["answer"] = "content"
            if row.get("reasoning_content") is not None:
                mapping["reasoning"] = "reasoning_content"
    if "completion" in mapping and "answer" in mapping:  # beside a completion, it is the reference
        mapping.setdefault("gold", mapping.pop("answer"))
        mapping.pop("answer", None)
    return mapping


def iter_rows(path: Path, on_progress: OnProgress = lambda share: None) -> Iterator[Row]:
    """The rows of a run's log, or of files of other projects."""
    if not (path / "results" / LOG).is_file():
        yield from iter_table_rows(path, on_progress)
        return
    for damage in verify_rollout_log(path, read_newest_state(path / "checkpoints"), frames=False):
        raise RolloutFileError(f"{path}: {damage}")
    yield from read_rows(path)


# --- sources -----------------------------------------------------------------------------------


class RolloutSource:
    """Files with their format and mapping, both determined by the first row. Each iteration reads them again.

    Example: `[rollout.text for rollout in RolloutSource(Path("completions.parquet")).rollouts()]`
    """

    def __init__(
        self, path: Path, mapping: FieldMapping | None = None, answer_kind: str = ""
    ) -> None:
        self.path, self.answer_kind = path, answer_kind
        self.mapping = given = mapping or FieldMapping()
        self.unanswered = 0
        """Rows without a completion, which are left out: the other project marks them as failed."""
        first = next(iter_rows(path), None)
        if first is None:
            raise RolloutFileError(f"{path} has no rows.")
        self.format = next((f for f in FORMATS if set(f.columns.split()) <= first.keys()), COLUMNS)
        row = next(self._expand(lambda share: None), None)
        if row is None:
            raise RolloutFileError(f"{path} has no rollout in which the model answered.")
        self.is_own = (
            self.format.name == "glasshouse"
            and not given.columns
            and row.keys() >= row_types().keys()
            and isinstance(row["meta"], dict)  # in a table, it is text
        )
        """Has every row all fields of a rollout?"""
        merged = {**self._default_mapping(row), **given.columns}
        if given.columns.keys() & {"reasoning", "answer"} and "completion" not in given.columns:
            merged.pop("completion", None)
        self.mapping = FieldMapping(
            columns={name: column for name, column in merged.items() if column},
            planted=given.planted,
            control=given.control,
        )
        self.labels = labels.read_labels(path)
        """Those that a person gave, which are the behaviour unless the file says what it is."""
        if self.labels and not self.mapping.columns.keys() & {"label", "hint"}:
            self.mapping = replace(
                self.mapping, columns={**self.mapping.columns, "label": labels.COLUMN}
            )
        optional = {*merged, *MAY_BE_NULL}
        self.ignored = [n for n in FIELDS if n not in optional and row.get(n, 0) is None]
        """Columns that are called like a field and have no value in row 1; none may have one later."""
        self._check_mapping(row)

    def rollouts(self, on_progress: OnProgress = lambda share: None) -> Iterator[Rollout]:
        """Yield each rollout; a run's own are complete."""
        ids: dict[str, int] = {}
        forms = self.forms
        for number, row in enumerate(self._expand(on_progress), 1):
            if self.is_own:
                yield self._add_label(from_row(row))
                continue
            values = self._read_values(row, number)
            if "id" in values and ids.setdefault(values["id"], number) != number:
                raise self._fail(
                    "id",
                    number,
                    f"this id is also that of row {ids[values['id']]}. Each rollout is measured once: remove "
                    "duplicates, or do not map id",
                )
            try:
                yield self._add_label(_make_rollout(values, number, forms))
            except ValueError as error:  # of math-verify, which knows only now what it can compare
                raise self._fail("gold", number, str(error).rstrip(".")) from None

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """Yield each rollout's row with all its columns, in the order of `rollouts`."""
        return self._expand(lambda share: None)

    @property
    def has_human_labels(self) -> bool:
        """Is the behaviour what a person said on the page? Then it may be unknown of some rollouts."""
        return self.mapping.columns.get("label") == labels.COLUMN

    def _add_label(self, rollout: Rollout) -> Rollout:
        if not self.has_human_labels:
            return rollout
        key = labels.rollout_key(rollout.prompt, rollout.cot, rollout.text)
        return replace(rollout, behaviour=self.labels.get(key))

    @cached_property
    def forms(self) -> dict[str, AnswerForm]:
        """The kind of each answer that completions are compared with, from a first pass over the file."""
        columns = self.mapping.columns
        given = {"gold": "correct", "hint": "label"}
        compared = [n for n, known in given.items() if n in columns and known not in columns]
        if self.is_own or not compared:
            return {}
        answers: dict[str, tuple[str, int]] = {}
        for number, row in enumerate(self._expand(lambda share: None), 1):
            for name in compared:
                if (value := get_field(row, columns[name], MISSING)) not in (MISSING, None):
                    answers.setdefault(_as_key(value), (name, number))
        try:
            forms = find_forms(answers, self.answer_kind)
        except ValueError as error:
            raise RolloutFileError(f"{self.path}, --answer-kind: {error}.") from None
        golds = GoldCheck()
        for answer, (kind, _) in forms.items():
            if kind is AnswerKind.MATH:
                try:
                    golds.check_math(answer)
                except ValueError as error:
                    raise self._fail(*answers[answer], str(error).rstrip(".")) from None
        return forms

    def _default_mapping(self, row: Mapping[str, Any]) -> dict[str, str]:
        if self.format is COLUMNS:
            return _map_by_name(row)
        pairs = (text.partition("=") for text in self.format.mapping.split())
        mapping = {name: column or name for name, _, column in pairs}
        mapping = {
            name: column
            for name, column in mapping.items()
            if get_field(row, column, MISSING)
            not in ((MISSING,) if name == "reward" else (MISSING, None))
        }
        if self.format.name == "trl":  # a column per reward function
            rewards = row.keys() - {*self.format.columns.split(), "images"}
            mapping |= {"reward": min(rewards)} if len(rewards) == 1 else {}
        return mapping

    def _expand(self, on_progress: OnProgress) -> Iterator[Mapping[str, Any]]:
        self.unanswered = 0
        for number, row in enumerate(iter_rows(self.path, on_progress), 1):
            try:
                rollouts = list(self.format.expand(row))
            except (KeyError, TypeError, AttributeError, IndexError) as error:
                raise RolloutFileError(
                    f"{self.path}, row {number}: this is not a row of {self.format.name}: "
                    f"{type(error).__name__}: {error}."
                ) from None
            self.unanswered += not rollouts
            yield from rollouts

    def _check_mapping(self, row: Mapping[str, Any]) -> None:
        """Raise if the mapping contradicts itself, or names columns that the first row lacks."""
        columns = self.mapping.columns
        problem = ""
        if columns.keys() >= {"completion", "answer"}:
            problem = "map either completion, or reasoning and answer; a completion holds both"
        if columns.keys() >= {"label", "hint"}:
            problem = "label and hint both say what the behaviour is. Ignore one, with --map hint= or --map label="
        if problem:
            raise RolloutFileError(f"{self.path}: {problem}.")
        if not columns.keys() & {"completion", "answer"}:
            raise RolloutFileError(
                f"{self.path}: no column is mapped to completion. Columns: {', '.join(sorted(row))}. "
                "Write for example --map completion=COLUMN."
            )
        for name, column in columns.items():
            if get_field(row, column, MISSING) is MISSING and column != labels.COLUMN:
                raise RolloutFileError(
                    f'{self.path}, row 1: there is no column "{column}" (mapped to {name}).'
                    f"{did_you_mean(column, row)}"
                )

    def _read_values(self, row: Mapping[str, Any], number: int) -> dict[str, Any]:
        """The values of one row by field; raise if one is missing or cannot be used."""
        for column in self.ignored:
            if row.get(column) is not None:
                problem = (
                    "there is a value, but row 1 has none. Fill it in, or ignore the column: --map "
                )
                raise self._fail(column, number, f"{problem}{column}=")
        values: dict[str, Any] = {}
        for name, column in self.mapping.columns.items():
            if column == labels.COLUMN:
                continue
            value = get_field(row, column, MISSING)
            if (value is MISSING and name != "finish_reason") or (
                value is None and name not in MAY_BE_NULL
            ):
                raise self._fail(name, number, f"the value of {name} is missing, but row 1 has one")
            try:
                values[name] = FIELDS[name](value)
                if name == "arm":
                    values[name] = self.mapping.read_arm(values[name])
            except (TypeError, ValueError) as error:
                raise self._fail(name, number, f"this is no {name}: {error}") from None
        return values

    def _fail(self, name: str, number: int, problem: str) -> RolloutFileError:
        column = self.mapping.columns.get(name, name)
        return RolloutFileError(f'{self.path}, row {number}, column "{column}": {problem}.')


def _make_rollout(
    values: Mapping[str, Any], number: int, forms: Mapping[str, AnswerForm]
) -> Rollout:
    """The rollout of a row's values. What the file does not say is unknown."""
    cot, text = values["completion"] if "completion" in values else values["answer"]
    if "reasoning" in values:
        cot, text = values["reasoning"], parts_of(cot, text).answer
    gold, checkpoint = values.get("gold"), values.get("checkpoint", "")
    correct, behaviour = values.get("correct"), values.get("label")
    extracted, hint = Extracted(), values.get("hint")
    if behaviour is None and hint is not None:
        extracted, behaviour = read_answer(text, hint, forms[hint])
    if correct is None and gold is not None:
        extracted, correct = read_answer(text, gold, forms[gold])
    kind, options = forms.get(gold or "") or forms.get(hint or "") or (AnswerKind.NUMBER, ())
    prompt = values.get("prompt", "")
    return Rollout(
        step=int(checkpoint) if checkpoint.isascii() and checkpoint.isdigit() else 0,
        split="",
        arm=values.get("arm", ""),
        group=0,
        sample=number,
        seed=values.get("seed", 0),
        checkpoint=checkpoint,
        problem=Problem(
            task="",
            key=values.get("group") or prompt or f"row {number}",
            question=prompt,
            gold_answer=gold or "",
            answer_kind=kind,
            meta={"options": list(options)} if options else {},
        ),
        prompt=prompt,
        text=text,
        cot=cot,
        completion=Completion(finish_reason=values.get("finish_reason", FinishReason.UNKNOWN)),
        grade=Grade(reward=values.get("reward", math.nan), correct=correct, extracted=extracted),
        behaviour=behaviour,
        activations=values.get("activations"),
    )
