"""Problem files: JSON lines; to read, also Parquet and CSV, by suffix.

Each row has at least a question and an answer, whose kind follows from the gold answers of the file.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

import glasshouse
from glasshouse import randomness
from glasshouse.errors import ConfigError, RolloutFileError, TaskError, plain_reason
from glasshouse.files import compute_checksum, write_json
from glasshouse.tables import iter_rows
from glasshouse.tasks.answers import (
    DEFAULT_OPTIONS,
    answers_match,
    normalize_text,
    parse_number,
    parse_sequence,
    read_exactly,
    strip_markup,
)
from glasshouse.tasks.base import Task, make_task
from glasshouse.tasks.streams import FreshProblems, ProblemsExhausted, Split
from glasshouse.types import AnswerKind, Problem

_LETTER = re.compile(r"\(?([A-Ja-j])\)?")
_EXPRESSION = re.compile(
    r"\\(?:frac|dfrac|sqrt|pi|cdot|times|left|infty)|[0-9a-z)}][\^/][0-9a-z({]"
)

AnswerForm = tuple[AnswerKind, tuple[str, ...]]
"""A kind, and the options of a choice."""


def find_forms(golds: Iterable[str], kind: str = "") -> dict[str, AnswerForm]:
    """Return the kind of each gold answer of a file, or the given one, and the options of a choice.

    A file may hold several kinds, but all its letters are options of one choice, and a number beside
    expressions is one too. Raise a ValueError for an answer that is not of the given kind.

    Example: `find_forms(["7", "C"])` is `{"7": (NUMBER, ()), "C": (CHOICE, ("A", "B", "C", "D"))}`.
    """
    answers = list(dict.fromkeys(golds))
    if kind:
        form = AnswerKind(kind), detect_kind(answers)[1] or tuple(map(strip_markup, answers))
        for answer in answers:
            is_read = kind in ("text", "math") or read_exactly(strip_markup(answer), *form)
            if not is_read:
                raise ValueError(f"the answer {answer!r:.60} is not a {kind}")
        return dict.fromkeys(answers, form)
    forms = {answer: detect_kind([answer]) for answer in answers}
    letters = [answer for answer, (found, _) in forms.items() if found is AnswerKind.CHOICE]
    shared: dict[AnswerKind, AnswerForm] = {AnswerKind.CHOICE: detect_kind(letters)}
    if any(found is AnswerKind.MATH for found, _ in forms.values()):
        shared |= dict.fromkeys((AnswerKind.NUMBER, AnswerKind.SEQUENCE), (AnswerKind.MATH, ()))
    return {answer: shared.get(form[0], form) for answer, form in forms.items()}


def detect_kind(golds: Iterable[str]) -> AnswerForm:
    """Return the kind that fits all gold answers, and the options of a choice: A to D at least.

    Example: `detect_kind(["A", "C"])` is `(AnswerKind.CHOICE, ("A", "B", "C", "D"))`.
    """
    answers = [strip_markup(gold) for gold in golds]
    if not answers:
        return AnswerKind.TEXT, ()
    if all(parse_number(answer) is not None for answer in answers):
        return AnswerKind.NUMBER, ()
    letters = [_LETTER.fullmatch(answer) for answer in answers]
    if all(letters):
        last = max("D", *(letter[1].upper() for letter in letters if letter))
        return AnswerKind.CHOICE, tuple(map(chr, range(ord("A"), ord(last) + 1)))
    if all(parse_sequence(answer) for answer in answers):
        return AnswerKind.SEQUENCE, ()
    if any(_EXPRESSION.search(answer) for answer in answers):
        return AnswerKind.MATH, ()
    return AnswerKind.TEXT, ()


FILE_NAMES = {"gold_answer": "answer", "answer_kind": "kind"}
"""Fields of a problem that have a shorter name in a file."""
MAX_ROW_CHARACTERS = 1_000_000


_TOKEN = re.compile(r"[^\W\d_]+|\d+(?:\.\d+)?|[^\w\s]")
_EQUIVALENT = str.maketrans({"×": "*", "·": "*", "⋅": "*", "÷": "/", "−": "-", "–": "-"})
_PUNCTUATION = frozenset(".,;:!?\"'`")


def _check_json(meta: dict[str, Any]) -> dict[str, Any]:
    """Raises ValueError for what the rollout log could not hold: NaN, lone surrogates, dates of Parquet."""
    try:
        text = json.dumps(meta, ensure_ascii=False, allow_nan=False)
        text.encode()
    except TypeError as error:
        raise ValueError(f"it is not JSON ({error}); convert it to text") from None
    if len(text) > MAX_ROW_CHARACTERS:
        raise ValueError(f"it has more than {MAX_ROW_CHARACTERS:,} characters")
    return meta


Text = Annotated[str, Field(max_length=MAX_ROW_CHARACTERS)]


class Row(BaseModel):
    """A row of a problem file."""

    model_config = ConfigDict(strict=True)

    question: str = Field(max_length=100_000)
    answer: Annotated[
        str,
        Field(max_length=10_000),
        BeforeValidator(lambda answer: str(answer) if type(answer) is int else answer),
    ]
    task: Text
    key: Text
    kind: AnswerKind = Field(AnswerKind.NUMBER, strict=False)
    decimals: int = Field(0, ge=0, le=100)
    level: Text = ""
    meta: Annotated[dict[str, Any], AfterValidator(_check_json)] = {}


def read_problem_file(file: str | Path) -> list[Problem]:
    """Reads all problems of a file; an invalid row raises an error with its number, and so does one that contradicts
    an earlier row."""
    path, problems, golds = Path(file), list[Problem](), GoldCheck()
    try:
        for number, row in enumerate(iter_rows(path), 1):
            try:
                problem = _parse_row(row, path.stem)
                golds.check(problem, f"row {number}")
                problems.append(problem)
            except TaskError:
                raise
            except ValueError as error:
                raise ConfigError(
                    f"{path}, row {number} is not a problem: {str(error).rstrip('.')}. "
                    'Write {"task": …, "key": …, "question": …, "answer": …}.'
                ) from None
    except OSError as error:
        raise ConfigError(f"The problem file {path} could not be read: {error}.") from None
    except RolloutFileError as error:
        raise ConfigError(str(error)) from None
    if not problems:
        raise ConfigError(f"The problem file {path} contains no problems.")
    return problems


def read_task_problems(file: str, task: Task[Any]) -> list[Problem]:
    """Reads a file of a task's own problems; `{task}` in its name is the task's."""
    path = file.format(task=task.name)
    problems = read_problem_file(path)
    # an organism plants its behaviour into the problems of another task
    own = {task.name, task.draw(randomness.stream("own problems")).task}
    for row, problem in enumerate(problems, 1):
        if problem.task not in own:
            raise ConfigError(
                f"{path}, problem {row} is of the task {problem.task!r:.60}, and task.name={task.name} would ask it "
                f"with the prompt of another task. For problems of your own: task.name=dataset task.options.file={path}"
            )
    return problems


def _parse_row(row: Mapping[str, Any], default_task: str) -> Problem:
    """The problem of a row. A table has null fields, and `meta` as JSON text."""
    row = {name: value for name, value in row.items() if value is not None}
    if isinstance(row.get("meta"), str):
        with suppress(ValueError):  # invalid JSON is reported below as a wrong type
            row["meta"] = json.loads(row["meta"])
    try:
        valid = Row.model_validate({"task": default_task, "key": row.get("question")} | row)
    except ValidationError as error:
        first = error.errors()[0]
        name = first["loc"][0]
        if first["type"] == "missing":
            raise ValueError(f'it has no "{name}"') from None
        raise ValueError(
            f'its "{name}" is {first["input"]!r:.200}: {plain_reason(first["msg"])}'
        ) from None
    fields = dict(valid)
    return Problem(**{name: fields[FILE_NAMES.get(name, name)] for name in Problem.__slots__})


MAX_CHECKED_GOLDS = 200
"""Gold answers of the kind math that are checked at the start; one may take 50 ms."""
_checked_golds: set[str] = set()


class GoldCheck:
    """Checks the gold answers of a file, row by row."""

    def __init__(self) -> None:
        self.first: dict[tuple[str, str], tuple[str, Problem]] = {}
        self.checks_left = MAX_CHECKED_GOLDS

    def check(self, problem: Problem, place: str) -> tuple[str, Problem]:
        """Raises ValueError if no answer could be correct, or if the same problem had another answer in an earlier
        place; returns the first place of the problem, and the problem there."""
        gold, kind, decimals = problem.gold_answer, problem.answer_kind, problem.decimals
        if not normalize_text(gold):
            raise ValueError("its answer is empty")
        if kind is AnswerKind.MATH:
            self.check_math(gold)
        else:
            answers_match(None, gold, kind, decimals)
        options = problem.meta.get("options") or DEFAULT_OPTIONS
        if kind is AnswerKind.CHOICE and read_exactly(strip_markup(gold), kind, options) is None:
            raise ValueError(
                f"its answer {gold!r:.100} is not among the options {', '.join(options)}"
            )
        key = (problem.task, problem.key)
        first, earlier = self.first.setdefault(key, (place, problem))
        known = earlier.gold_answer
        if gold != known and not answers_match(known, gold, kind, decimals):
            raise ValueError(
                f"its answer is {gold!r:.100}, but the same problem has the answer {known!r:.100} in {first}; keep one "
                "of them, or give them different keys"
            )
        return first, earlier

    def check_math(self, gold: str) -> None:
        """An expression without a value, such as 1/0, equals nothing, not even itself."""
        if gold in _checked_golds or not self.checks_left:
            return
        self.checks_left -= 1
        if not answers_match(gold, gold, AnswerKind.MATH):
            raise ValueError(f"its answer {gold!r:.100} has no value that could be compared")
        _checked_golds.add(gold)


def describe_unchecked(problems: Iterable[Problem]) -> str:
    """Say how many gold answers of the kind math were checked; empty if all were."""
    golds = {p.gold_answer for p in problems if p.answer_kind is AnswerKind.MATH}
    if not golds - _checked_golds:
        return ""
    return (
        f"{len(golds & _checked_golds):,} of {len(golds):,} gold answers of the kind math were checked; "
        "another one that is no expression stops the run when it is graded."
    )


def write_problem_file(file: str | Path, problems: Iterable[Problem]) -> None:
    """Writes JSON lines, one per problem."""
    with open(file, "w", encoding="utf-8") as out:
        for problem in problems:
            row = {FILE_NAMES.get(name, name): value for name, value in asdict(problem).items()}
            out.write(json.dumps(row, ensure_ascii=False) + "\n")


def create_problem_file(
    task_name: str,
    options: Mapping[str, Any],
    split: Split,
    count: int,
    oversize: float,
    seed: int,
    out: Path,
) -> dict[str, Any]:
    """Draws `count * oversize` problems, each once, and writes them to `out`; returns the provenance, which
    it writes to `<out>.provenance.json`: how to draw them again, and the sha256 of the file.

    Example: `create_problem_file("multiplication", {}, Split.TEST, 1000, 1.5, 0, Path("v.jsonl"))`
    """
    provenance_file = out.with_name(f"{out.name}.provenance.json")
    if out.suffix != ".jsonl":
        raise ConfigError(f"--out is {out}; the file name must end in .jsonl.")
    if count < 1 or not math.isfinite(oversize) or oversize < 1:
        raise ConfigError(f"--count is {count} and --oversize {oversize}; both must be at least 1.")
    for path in (out, provenance_file):
        if path.exists():
            raise ConfigError(f"{path} already exists; choose another --out or delete it.")
    task = make_task(task_name, options)
    total = math.ceil(round(count * oversize, 6))  # 10 × 1.1 is 11, not 12
    stream = FreshProblems(task, split, seed, on_exhausted="stop")
    try:
        problems = stream.take(total)
    except ProblemsExhausted:
        raise ConfigError(
            f"{task_name} has only {stream.drawn:,} {split} problems with these options, not {count:,} × "
            f"{oversize:g} = {total:,}. Lower --count, or choose --options with more problems."
        ) from None
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.stem}.tmp{out.suffix}")
    write_problem_file(temporary, problems)
    provenance = {
        "task": task_name,
        "options": task.options.model_dump(mode="json"),
        "split": split.value,
        "seed": seed,
        "count": count,
        "oversize": oversize,
        "problems": len(problems),
        "glasshouse": glasshouse.__version__,
        "sha256": compute_checksum(temporary)["sha256"],
    }
    os.replace(temporary, out)
    write_json(provenance_file, provenance)
    return provenance


def normalize_question(question: str) -> list[str]:
    """The words, numbers and signs of a question, without case, spacing and punctuation.

    Example: `normalize_question("What is 1,234 × 5?")` is `["what", "is", "1234", "*", "5"]`
    """
    text = question.translate(_EQUIVALENT).casefold()
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    return [token for token in _TOKEN.findall(text) if token not in _PUNCTUATION]
