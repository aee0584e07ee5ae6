"""The task `dataset`: problems of a file, a folder or the Hugging Face hub.

    task.name=dataset task.options.file=gsm8k.jsonl

Columns are found by their usual names, gold answers are read as GSM8K and MATH write them, and the kind
of answers is detected. `describe` says what was found; an option sets what was found wrongly.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from glasshouse import randomness
from glasshouse.errors import TaskError, did_you_mean, import_extra
from glasshouse.tables import get_field, iter_rows, list_files
from glasshouse.tasks.answers import extract_answer, read_exactly, strip_markup
from glasshouse.tasks.base import MODES, Mode, OutsideTask, TaskOptions, format_completion, task
from glasshouse.tasks.problem_files import GoldCheck, detect_kind, normalize_question
from glasshouse.tasks.streams import Split, assign_split
from glasshouse.types import AnswerKind, ExtractionRule, Problem, Style

QUESTION_COLUMNS = ("question", "problem", "prompt", "messages", "instruction", "input")
ANSWER_COLUMNS = (
    "answer", "final_answer", "ground_truth", "reward_model.ground_truth", "gts", "target", "gold",
    "gold_answer", "expected_answer", "answerKey", "label", "solution", "output",
)  # fmt: skip
CHOICE_COLUMNS = ("choices", "options")
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(?::[\w.-]+){0,2}")
HUB_REVISION = "refs/convert/parquet"
"""Where the hub keeps every dataset as Parquet, in folders subset/split."""
LETTERS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
ANSWER_FORMATS = {
    AnswerKind.NUMBER: "<number>",
    AnswerKind.CHOICE: "<letter>",
    AnswerKind.SEQUENCE: "<numbers with commas between them>",
}
MIXED_SHARE = 0.9
"""If more of the gold answers than this are numbers, the others are errors, not a reason to compare texts."""
_GSM8K_ANSWER = re.compile(r"####[ \t]*(\S.*?)\s*$")
_GSM8K_CALCULATION = re.compile(r"<<[^<>\n]*>>")


class DatasetOptions(TaskOptions):
    file: str = ""
    """Problems: .jsonl, .csv or .parquet, a folder of these or of `Dataset.save_to_disk`, or a name on the hub
    with subset and split, as in openai/gsm8k:main:train."""
    validation: str = ""
    """Held-out problems, with the same columns. Empty: 10 % of `file`, by a hash of the question; another 10 %
    are kept for tests."""
    question: str = ""
    """Column of the question or its chat messages; a.b is the field b of column a. Empty: found by its name."""
    answer: str = ""
    """Column of the gold answer. Empty: found by its name."""
    choices: str = ""
    """Column with the texts of a multiple choice. Empty: found by its name, if there is one."""
    kind: Literal["", "number", "choice", "sequence", "text", "math"] = ""
    """Kind of the answers. Empty: detected from the gold answers."""
    system_prompt: str = ""
    """Empty: the system message of the rows, else one that asks for steps and the form of the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A row, before the kind of all answers is known."""

    place: str
    split: str
    question: str
    gold: str
    solution: str
    system: str
    labels: tuple[str, ...]
    """Of a multiple choice."""


@task("dataset")
class DatasetTask(OutsideTask[DatasetOptions]):
    """Problems of files. They have steps only if the file has solutions."""

    description: ClassVar[str] = "your own problems: a file, a folder or a dataset of the hub"
    role = "You solve a problem."
    Options = DatasetOptions
    example_options = None

    def __init__(self, options: DatasetOptions | None = None) -> None:
        super().__init__(options)
        given = self.options
        if not given.file:
            raise TaskError("The task dataset needs a file: task.options.file=problems.jsonl.")
        self.columns: dict[str, str] = {}
        self.sources: list[Path] = []
        """The files that were read."""
        split = Split.TRAIN.value if given.validation else ""
        drafts = [*self._read(given.file, split)]
        if given.validation:
            drafts += self._read(given.validation, Split.VALIDATION.value)
        self.kind, self.letters = self._find_kind(drafts)  # type: ignore[misc]
        self.answer_format = ANSWER_FORMATS.get(self.kind, "<answer>")  # type: ignore[misc]
        self.system = given.system_prompt or _only_system_message(given.file, drafts)
        self.solutions: dict[str, str] = {}
        self.repeated = 0
        self.problems = self._make_problems(drafts)
        for needed in (Split.TRAIN, Split.VALIDATION):
            if not self.count(needed):
                raise TaskError(
                    f"{given.file}: none of the {len(self.problems)} problems falls into the {needed} split. Name a "
                    "file of held-out problems with task.options.validation."
                )

    # --- reading ---------------------------------------------------------------------------

    def _read(self, source: str, split: str) -> Iterator[_Draft]:
        files = find_files(source)
        self.sources += files
        number = 0
        for file in files:
            for number, row in enumerate(iter_rows(file), 1):
                place = f"{file}, row {number}"
                if not self.columns:
                    self.columns = find_columns(row, self.options, str(file))
                yield self._read_row(row, place, split)
        if not number:
            raise TaskError(f"{source} holds no problems.")

    def _read_row(self, row: Mapping[str, Any], place: str, split: str) -> _Draft:
        values = {name: get_field(row, column) for name, column in self.columns.items()}
        for name, value in values.items():
            if value is None or value == "" or value == []:
                raise TaskError(
                    f'{place} has no {name}: its column "{self.columns[name]}" is empty. Remove the row.'
                )
        system, question = _read_question(values["question"], place)
        labels: tuple[str, ...] = ()
        if "choices" in values:
            labels, texts = _read_choices(values["choices"], place)
            listed = "\n".join(
                f"{label}. {text}" for label, text in zip(labels, texts, strict=True)
            )
            question = f"{question}\n\n{listed}"
            gold, solution = _find_choice(values["answer"], labels, texts, place), ""
        else:
            gold, solution = read_gold(values["answer"], place)
        return _Draft(
            place=place, split=split, question=question, gold=gold, solution=solution,
            system=system, labels=labels,
        )  # fmt: skip

    def _find_kind(self, drafts: Sequence[_Draft]) -> tuple[AnswerKind, tuple[str, ...]]:
        kind, letters = detect_kind(draft.gold for draft in drafts)
        if self.options.kind:
            return AnswerKind(self.options.kind), letters or LETTERS[:10]
        if drafts[0].labels:
            return AnswerKind.CHOICE, ()
        if kind in (AnswerKind.TEXT, AnswerKind.MATH):
            others = [
                d for d in drafts if read_exactly(strip_markup(d.gold), AnswerKind.NUMBER) is None
            ]
            if len(others) < (1 - MIXED_SHARE) * len(drafts):
                raise TaskError(
                    f"{others[0].place}: the gold answer {others[0].gold!r:.60} is not a number, unlike those of "
                    f"{len(drafts) - len(others):,} of {len(drafts):,} rows. Correct it, or set "
                    f"task.options.kind={kind.value}."
                )
        return kind, letters

    def _make_problems(self, drafts: Sequence[_Draft]) -> list[Problem]:
        """One problem per question. A question with two answers or in both files is an error."""
        problems: dict[str, Problem] = {}
        golds = GoldCheck()
        for draft in drafts:
            problem = self._make_problem(draft)
            try:
                place, first = golds.check(problem, draft.place)
            except TaskError:
                raise
            except ValueError as error:
                reason = str(error).rstrip(".")
                raise TaskError(f"{draft.place}: {reason}. Correct or remove the row.") from None
            if problem.meta.get("split") != first.meta.get("split"):
                raise TaskError(
                    f"{draft.place}: this validation problem is also in training ({place}). Remove it from one of the "
                    "files."
                )
            self.repeated += problem.key in problems
            problems.setdefault(problem.key, problem)
        return list(problems.values())

    def _make_problem(self, draft: _Draft) -> Problem:
        kind, gold = self.kind, strip_markup(draft.gold)
        options = draft.labels or self.letters if kind is AnswerKind.CHOICE else ()
        value = read_exactly(gold, kind, options)
        if value is None and kind is AnswerKind.MATH:  # a name among expressions
            kind, value = AnswerKind.TEXT, read_exactly(gold, AnswerKind.TEXT)
        if value is None:
            allowed = f" of {', '.join(options)}" if options else ""
            raise TaskError(
                f"{draft.place}: the gold answer {draft.gold!r:.60} is not a {kind.value}{allowed}. Correct it, or set "
                "task.options.kind."
            )
        key = f"{randomness.key(' '.join(normalize_question(draft.question))):016x}"
        self.solutions[key] = draft.solution
        meta: dict[str, Any] = {"options": list(options)} if options else {}
        return Problem(
            task=self.name,
            key=key,
            question=draft.question,
            gold_answer=value,
            answer_kind=kind,
            meta=meta | ({"split": draft.split} if draft.split else {}),
        )

    # --- what is shown ---------------------------------------------------------------------

    def count(self, split: Split) -> int:
        """The number of problems of a split."""
        return sum(assign_split(problem) is split for problem in self.problems)

    def describe(self) -> str:
        """What was read, in one line, for the start of a training."""
        columns = ", ".join(f'{name} from "{column}"' for name, column in self.columns.items())
        counts = ", ".join(f"{self.count(split):,} {split}" for split in Split if self.count(split))
        repeated = f", {self.repeated:,} repeated rows left out" if self.repeated else ""
        return f"dataset {self.options.file}: {counts}{repeated}; {columns}; answers of the kind {self.kind.value}"

    # --- Task ------------------------------------------------------------------------------

    def levels(self) -> Mapping[str, int | None]:
        return {"any": len(self.problems)}

    def problem_at(self, level: str, index: int) -> Problem:
        return self.problems[index]

    def draw_longest(self, rng: random.Random) -> Problem:
        return max(self.problems, key=lambda problem: len(problem.question))

    def example(self) -> Problem:
        return self.problems[0]

    def system_prompt(self, style: Style) -> str:
        return self.system or super().system_prompt(style)

    @property
    def modes(self) -> Mapping[str, Mode]:
        names = ("steps", "direct") if all(self.solutions.values()) else ("direct",)
        return {name: MODES[name] for name in names}

    def demonstrate(self, problem: Problem, mode: str, rng: random.Random) -> str:
        if mode == "steps" and mode in self.modes:
            return format_completion([self.solutions[problem.key]], problem.gold_answer)
        return super().demonstrate(problem, mode, rng)


def find_columns(row: Mapping[str, Any], options: DatasetOptions, file: str) -> dict[str, str]:
    """The column of the question, of the answer and, if there is one, of the choices."""
    columns: dict[str, str] = {}
    for name, usual in (
        ("question", QUESTION_COLUMNS),
        ("answer", ANSWER_COLUMNS),
        ("choices", CHOICE_COLUMNS),
    ):
        given = getattr(options, name)
        found = next((c for c in (given and [given]) or usual if get_field(row, c) is not None), "")
        if found in columns.values():
            raise TaskError(
                f'{file}: the column "{found}" cannot be the question and the {name}. Set task.options.{name}.'
            )
        if found:
            columns[name] = found
        elif given or name != "choices":
            raise TaskError(
                f"{file} has no column {f'{given!r}' if given else f'for the {name}'}; it has "
                f"{', '.join(map(str, row))}.{did_you_mean(given, map(str, row)) if given else ''} Name it: "
                f"task.options.{name}=COLUMN."
            )
    return columns


def read_gold(value: Any, place: str) -> tuple[str, str]:
    r"""The gold answer and the solution before it; empty if there is none.

    Example: `read_gold("48/2 = <<48/2=24>>24\n#### 1,000", "")` is `("1,000", "48/2 = 24")`.
    """
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TaskError(f"{place}: the gold answer {value!r:.60} is neither a text nor a number.")
    if not isinstance(value, str):
        return f"{value:.15g}", ""
    if match := _GSM8K_ANSWER.search(value):
        return match[1], _GSM8K_CALCULATION.sub("", value[: match.start()]).strip()
    found = extract_answer(value, AnswerKind.TEXT)
    if found.rule is ExtractionRule.BOXED and found.model_answer:
        return found.model_answer, value.strip()
    return value.strip(), ""


def _read_question(value: Any, place: str) -> tuple[str, str]:
    """The system message, empty if there is none, and the question: of a text, or of chat messages."""
    if isinstance(value, str):
        return "", value.strip()
    try:
        messages = [(message["role"], message["content"]) for message in value]
    except (TypeError, KeyError, IndexError):
        raise TaskError(
            f"{place}: the question {value!r:.60} is neither a text nor chat messages."
        ) from None
    if [role for role, _ in messages if role != "system"] != ["user"] or len(messages) > 2:
        roles = ", ".join(str(role) for role, _ in messages)
        raise TaskError(
            f"{place}: the messages are of {roles}; only one of the user, after one of the system, can be asked."
        )
    return (messages[0][1] if len(messages) == 2 else ""), str(messages[-1][1]).strip()


def _only_system_message(file: str, drafts: Sequence[_Draft]) -> str:
    found = {draft.system for draft in drafts}
    if len(found) > 1:
        raise TaskError(
            f"{file}: the rows have {len(found):,} different system messages. Set one for all rows: "
            "task.options.system_prompt=TEXT."
        )
    return found.pop()


def _read_choices(value: Any, place: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Labels and texts: of a list of texts, of ARC's {"label": […], "text": […]}, or of {"A": text, …}."""
    if isinstance(value, Mapping) and {"label", "text"} <= value.keys():
        labels, texts = value["label"], value["text"]
    elif isinstance(value, Mapping):
        labels, texts = list(value), list(value.values())
    else:
        labels, texts = LETTERS[: len(value)] if isinstance(value, list) else (), value
    if (
        not isinstance(texts, list)
        or len(labels) != len(texts)
        or not 2 <= len(texts) <= len(LETTERS)
    ):
        raise TaskError(
            f"{place}: the choices {value!r:.60} are not a list of 2 to {len(LETTERS)} texts."
        )
    return tuple(map(str, labels)), tuple(map(str, texts))


def _find_choice(answer: Any, labels: Sequence[str], texts: Sequence[str], place: str) -> str:
    """The label of the right choice, which is given as a label, an index from 0, or its text."""
    if type(answer) is int and 0 <= answer < len(labels):
        return labels[answer]
    if str(answer) in labels:
        return str(answer)
    if list(texts).count(str(answer)) == 1:
        return labels[list(texts).index(str(answer))]
    raise TaskError(
        f"{place}: the answer {answer!r:.60} is none of the choices {', '.join(labels)}."
    )


def find_files(source: str) -> list[Path]:
    """The files of a path, or of a name on the hub, which are downloaded once."""
    if not Path(source).exists() and HUB_NAME.fullmatch(source) and not Path(source).suffix:
        return _download(*source.split(":"))
    return list_files(Path(source))


@cache
def _download(name: str, *wanted: str) -> list[Path]:
    """The Parquet files of one split of a hub dataset. A run builds its task several times."""
    hub, errors = import_extra(
        "train", name, "huggingface_hub", "huggingface_hub.errors", error=TaskError
    )
    arguments: dict[str, Any] = {"repo_id": name, "repo_type": "dataset", "revision": HUB_REVISION}
    try:
        try:
            listed = hub.list_repo_files(**arguments)
        except (errors.RepositoryNotFoundError, errors.HfHubHTTPError):  # the hub answers
            raise
        except Exception as error:  # OSError or an error of its HTTP client
            arguments["local_files_only"] = True
            try:
                folder = Path(hub.snapshot_download(**arguments))
            except errors.LocalEntryNotFoundError:
                raise OSError(str(error)) from None
            listed = [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
            print(
                f"note: the hub cannot be reached; {name} is read from its cache.", file=sys.stderr
            )
        files = [file for file in listed if file.endswith(".parquet")]
        parts = {tuple(file.split("/")[:2]) for file in files}
        found = sorted(
            p for p in parts if {*wanted} <= {*p} and (p[1] == "train" or p[1] in wanted)
        )
        if len(found) != 1:
            known = ", ".join(f"{name}:{subset}:{split}" for subset, split in sorted(parts))
            raise TaskError(
                f"{':'.join((name, *wanted))} is not one split of a dataset. Name one of {known}."
            )
        prefix = "/".join(found[0]) + "/"
        return [
            Path(hub.hf_hub_download(filename=file, **arguments))
            for file in sorted(files)
            if file.startswith(prefix)
        ]
    except errors.GatedRepoError:
        reason = "its owner must grant you access, and HF_TOKEN must be set"
    except errors.RepositoryNotFoundError:
        reason = "the hub has no such dataset, or it is private and HF_TOKEN is not set"
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
    raise TaskError(f"The dataset {name} could not be downloaded: {reason}. Or name a local file.")
