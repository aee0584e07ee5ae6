"""The task `dataset`: other people's problems, read right or refused."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from glasshouse.cli.app import main
from glasshouse.errors import TaskError
from glasshouse.rollout.grading import grade_completion
from glasshouse.tasks.base import make_task
from glasshouse.tasks.dataset import read_gold
from glasshouse.tasks.problem_files import describe_unchecked
from glasshouse.tasks.streams import FreshProblems, Split, assign_split
from glasshouse.types import AnswerKind, Style

MOCK = Path(__file__).resolve().parents[2] / "models" / "mock"
QUESTIONS = [f"Tom has {20 + i} clips and sells 3. How many are left?" for i in range(60)]
ANSWERS = [str(17 + i) for i in range(60)]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    if path.suffix == ".csv":
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def make(path: Path, rows: list[dict[str, Any]], **options: Any) -> Any:
    return make_task("dataset", {"file": write(path, rows), **options})


def plain_rows(question: str = "question", answer: str = "answer") -> list[dict[str, Any]]:
    return [{question: q, answer: a} for q, a in zip(QUESTIONS, ANSWERS, strict=True)]


GSM8K = [
    {"question": q, "answer": f"He has {a} = <<{a}={a}>>{a} left.\n#### {int(a) * 1000:,}"}
    for q, a in zip(QUESTIONS, ANSWERS, strict=True)
]
MATH = [
    {"problem": q, "level": "Level 1", "solution": rf"Halve it: $\boxed{{\frac{{{a}}}{{2}}}}$."}
    for q, a in zip(QUESTIONS, ANSWERS, strict=True)
]
MMLU = [
    {"question": q, "choices": ["one", "two", "three", "four"], "answer": i % 4}
    for i, q in enumerate(QUESTIONS)
]
ARC = [
    {"question": q, "choices": {"text": ["one", "two"], "label": ["1", "2"]}, "answerKey": "2"}
    for q in QUESTIONS
]
TRL = [
    {
        "prompt": [{"role": "system", "content": "Be short."}, {"role": "user", "content": q}],
        "ground_truth": a,
    }
    for q, a in zip(QUESTIONS, ANSWERS, strict=True)
]
VERL = [
    {
        "prompt": [{"role": "user", "content": q}],
        "reward_model": {"style": "rule", "ground_truth": a},
    }
    for q, a in zip(QUESTIONS, ANSWERS, strict=True)
]


@pytest.mark.parametrize(
    ("rows", "suffix", "kind", "columns", "gold", "wrong"),
    [
        (plain_rows(), ".csv", "number", ["question", "answer"], "17", "18"),
        (plain_rows("problem", "target"), ".parquet", "number", ["problem", "target"], "17", "1"),
        (GSM8K, ".jsonl", "number", ["question", "answer"], "17,000", "17"),
        (MATH, ".jsonl", "math", ["problem", "solution"], "8.5", "17"),
        (MMLU, ".jsonl", "choice", ["question", "answer", "choices"], "(A)", "B"),
        (ARC, ".jsonl", "choice", ["question", "answerKey", "choices"], "2", "1"),
        (TRL, ".jsonl", "number", ["prompt", "ground_truth"], "17", "3"),
        (VERL, ".parquet", "number", ["prompt", "reward_model.ground_truth"], "17", "3"),
    ],
)
def test_known_formats_need_no_option(
    tmp_path: Path,
    rows: list[dict[str, Any]],
    suffix: str,
    kind: str,
    columns: list[str],
    gold: str,
    wrong: str,
) -> None:
    task = make(tmp_path / f"problems{suffix}", rows)
    problem = task.problems[0]
    assert task.kind is AnswerKind(kind)
    assert list(task.columns.values()) == columns
    assert all(column in task.describe() for column in columns)
    assert problem.question.startswith(QUESTIONS[0])
    assert grade_completion(problem, f"[ANSWER] {gold}").strict
    assert not grade_completion(problem, f"[ANSWER] {wrong}").correct


def test_prompts_and_demonstrations_are_those_of_the_file(tmp_path: Path) -> None:
    task = make(tmp_path / "gsm8k.jsonl", GSM8K)
    problem = task.problems[0]
    system, user = task.messages(problem, Style.COT)
    assert "[ANSWER] <number>" in system["content"]
    assert user["content"] == QUESTIONS[0]
    steps = task.demonstrate(problem, "steps", None)
    assert steps == "He has 17 = 17 left.\n[ANSWER] 17000"  # without the calculator's marks
    assert (
        make(tmp_path / "trl.jsonl", TRL).messages(problem, Style.COT)[0]["content"] == "Be short."
    )
    own = make(tmp_path / "own.jsonl", TRL, system_prompt="Answer in \\boxed{}.")
    assert own.system_prompt(Style.COT) == "Answer in \\boxed{}."
    choices = make(tmp_path / "mmlu.jsonl", MMLU).problems[0]
    assert choices.question.endswith("A. one\nB. two\nC. three\nD. four")
    assert "steps" not in make(tmp_path / "plain.jsonl", plain_rows()).modes


def test_splits_are_by_question_or_by_file(tmp_path: Path) -> None:
    again = [row | {"question": row["question"].upper()} for row in plain_rows()]
    task = make(tmp_path / "a.jsonl", plain_rows() + again)
    assert (len(task.problems), task.repeated) == (60, 60)
    by_split = {split: task.count(split) for split in Split}
    assert sum(by_split.values()) == 60
    assert all(by_split.values())
    validation = write(tmp_path / "validation.jsonl", plain_rows()[50:])
    task = make(tmp_path / "train.jsonl", plain_rows()[:50], validation=validation)
    assert [task.count(split) for split in Split] == [50, 10, 0]
    drawn = FreshProblems(task, Split.VALIDATION, seed=0).take(10)
    assert {problem.question for problem in drawn} == set(QUESTIONS[50:])
    assert all(assign_split(problem) is Split.VALIDATION for problem in drawn)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a <<1+1=2>>2\n#### 1,000 ", ("1,000", "a 2")),
        (r"so \boxed{\frac12}.", (r"\frac12", r"so \boxed{\frac12}.")),
        (" Rome ", ("Rome", "")),
        (17.0, ("17", "")),
        (["17"], ("17", "")),
    ],
)
def test_gold_answers(value: Any, expected: tuple[str, str]) -> None:
    assert read_gold(value, "row 1") == expected


@pytest.mark.parametrize(
    ("rows", "options", "parts"),
    [
        ([{"question": "a", "note": "b"}], {}, ["no column for the answer", "question, note"]),
        (plain_rows(), {"answer": "anwser"}, ["'anwser'", '"answer"']),
        (plain_rows(), {"question": "answer"}, ["answer", "cannot be the question and"]),
        ([*plain_rows(), {"question": "Who?", "answer": "nobody"}], {}, ["row 61", "'nobody'"]),
        ([*plain_rows(), {"question": "Who?", "answer": ""}], {}, ["row 61", "no answer"]),
        ([*plain_rows(), {"question": "Why?", "answer": "1/0"}], {}, ["row 61", "'1/0'"]),
        (
            [*MATH, MATH[0] | {"problem": "Why?", "solution": r"\boxed{1/0}"}],
            {},
            [f"row {len(MATH) + 1}", "'1/0'"],
        ),
        (
            [*MATH, MATH[0] | {"problem": "Why?", "solution": r"\boxed{\frac{1}{}"}],
            {},
            [f"row {len(MATH) + 1}"],
        ),
        (plain_rows(), {"kind": "choice"}, ["row 1", "'17'", "choice"]),
        ([MMLU[0] | {"answer": "E"}], {}, ["row 1", "'E'", "A, B, C, D"]),
        ([MMLU[0] | {"choices": "one"}], {}, ["row 1", "choices"]),
        (
            [*plain_rows(), {"question": QUESTIONS[3], "answer": "9"}],
            {},
            ["row 61", "row 4", "'9'"],
        ),
        ([{"question": 3, "answer": 4}], {}, ["row 1", "neither a text nor chat messages"]),
        ([TRL[0], TRL[1] | {"prompt": TRL[1]["prompt"][1:]}], {}, ["2 different system messages"]),
        ([TRL[0] | {"prompt": TRL[0]["prompt"] * 2}], {}, ["row 1", "system, user, system, user"]),
        ([{"question": "a", "answer": {"b": 1}}], {}, ["row 1", "neither a text nor a number"]),
        (plain_rows()[:1], {}, ["split", "task.options.validation"]),
    ],
)
def test_what_cannot_be_asked_or_graded_is_refused(
    tmp_path: Path, rows: list[dict[str, Any]], options: dict[str, str], parts: list[str]
) -> None:
    with pytest.raises(TaskError) as caught:
        make(tmp_path / "problems.jsonl", rows, **options)
    assert all(part in str(caught.value) for part in parts), caught.value


def test_a_bounded_number_of_math_golds_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make(tmp_path / "problems.jsonl", MATH)
    assert describe_unchecked(task.problems) == ""
    monkeypatch.setattr("glasshouse.tasks.problem_files.MAX_CHECKED_GOLDS", 7)
    monkeypatch.setattr("glasshouse.tasks.problem_files._checked_golds", set())
    assert "7 of 60" in describe_unchecked(make(tmp_path / "problems.jsonl", MATH).problems)


def test_a_validation_problem_in_training_is_refused(tmp_path: Path) -> None:
    validation = write(tmp_path / "validation.jsonl", plain_rows()[40:])
    with pytest.raises(TaskError, match=r"validation.jsonl, row 1: .* also in training"):
        make(tmp_path / "train.jsonl", plain_rows()[:41], validation=validation)


def test_a_run_asks_the_problems_of_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "gsm2.jsonl", plain_rows())
    small = ["steps=1", "data.groups_per_step=2", "generate.group_size=2", "generate.max_tokens=8",
             "evaluate.problems=2", "evaluate.samples=1", f"model={MOCK}", f"out={tmp_path / 'run'}"]  # fmt: skip
    assert main(["train", "data.source=fixed", f"data.file={file}", *small]) == 2
    assert "task.name=dataset" in capsys.readouterr().err
    dataset = ["task.name=dataset", f"task.options.file={file}"]
    assert main(["train", "data.source=fixed", f"data.file={file}", *dataset, *small]) == 2
    assert "task.options.file" in capsys.readouterr().err
    assert main(["train", *dataset, "task.schedule={5: {}}", *small]) == 2
    assert "task.schedule" in capsys.readouterr().err
    assert main(["train", *dataset, *small]) == 0
    assert 'question from "question"' in capsys.readouterr().out
    assert main(["rollouts", str(tmp_path / "run"), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["question"] for row in rows} <= set(QUESTIONS)
    assert {row["split"].partition("/")[0] for row in rows} == {"train", "validation"}
    assert main(["eval", str(tmp_path / "run" / "checkpoints" / "step-000001")]) == 0
    assert "gsm2.jsonl" in capsys.readouterr().out
    assert main(["check", "audit", str(tmp_path / "run")]) == 0


def test_show_prints_what_the_model_is_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "problems.jsonl", plain_rows())
    options = ["--options", f"file={file}", "--show", "2", "--model", str(MOCK)]
    assert main(["tasks", "dataset", *options]) == 0
    shown = capsys.readouterr().out
    assert shown.count("gold answer: ") == 2
    assert shown.count("clips and sells 3. How many are left?<|assistant|>") == 2
    assert shown.count("lenient correct, strict correct") == 2


class Hub(BaseHTTPRequestHandler):
    """A stand-in for the hub with one dataset of one split, one missing and one gated."""

    parquet = b""

    def do_GET(self) -> None:
        if "/org/good/" not in self.path:
            is_gated = "gated" in self.path
            self.send_response(403 if is_gated else 404)
            self.send_header("X-Error-Code", "GatedRepo" if is_gated else "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = self.parquet
        if "/tree/" in self.path:
            names = [f"main/{split}/0000.parquet" for split in ("train", "test")]
            files = [{"type": "file", "path": n, "size": len(body), "oid": "0" * 40} for n in names]
            body = json.dumps(files).encode()
        self.send_response(200)
        self.send_header("X-Repo-Commit", "1" * 40)
        self.send_header("ETag", '"2"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *arguments: Any) -> None: ...


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[str]:
    write(tmp_path / "hub.parquet", plain_rows())
    Hub.parquet = (tmp_path / "hub.parquet").read_bytes()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


HUB_NAMES = {
    "org/good:main": (0, "60 problems"),
    "org/good:other": (2, "org/good:main:train"),
    "org/missing": (2, "no such dataset"),
    "org/gated": (2, "must grant you access"),
}


def test_hub_names(hub: str, tmp_path: Path) -> None:
    """In one other process: the library reads its settings when it is imported."""
    code = """
import sys
from glasshouse.cli.app import main
for name in sys.argv[2:]:
    print("code", main(["tasks", "dataset", "--options", f"file={name}", "--model", sys.argv[1]]))
"""
    environment = os.environ | {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-u", "-c", code, str(MOCK), *HUB_NAMES],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert "Traceback" not in done.stdout
    printed = re.split(r"code (\d)\n", done.stdout)
    for (code, said), output, found in zip(
        HUB_NAMES.values(), printed[::2], printed[1::2], strict=False
    ):
        assert (said in output, int(found)) == (True, code), output
    assert len(printed) == 2 * len(HUB_NAMES) + 1


def test_a_dataset_of_the_hub_is_read_from_the_cache_when_the_hub_cannot_be_reached(
    hub: str, tmp_path: Path
) -> None:
    code = (
        "from glasshouse.tasks.dataset import find_files; print(len(find_files('org/good:main')))"
    )
    for endpoint, cache, is_read in (
        (hub, "a", True),
        ("http://127.0.0.1:9", "a", True),
        ("http://127.0.0.1:9", "b", False),
    ):
        environment = os.environ | {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / cache)}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True
        )
        assert (done.returncode == 0) is is_read, done.stderr
        assert ("from its cache" in done.stderr) is (endpoint != hub and is_read)
    assert "could not be downloaded" in done.stderr
