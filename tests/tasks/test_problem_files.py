"""Problem files: read from JSON lines and Parquet, written, and created with their provenance."""

import hashlib
import json
import sys

import pyarrow as arrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from glasshouse.cli.app import main
from glasshouse.errors import ConfigError, GlasshouseError
from glasshouse.tasks.base import list_tasks, make_task
from glasshouse.tasks.problem_files import (
    create_problem_file,
    read_problem_file,
    write_problem_file,
)
from glasshouse.tasks.streams import FreshProblems, Split
from glasshouse.types import AnswerKind, Problem

TASKS = list_tasks(organisms=False)


@given(text=st.text(st.characters(codec="utf-8")) | st.sampled_from("\u2028\u2029\x85\x0b\x1e"))
def test_any_text_round_trips(text, tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "p.jsonl"
    problem = Problem(
        task="t",
        key=text,
        question=f"a{text}b",
        gold_answer=f"a{text}",
        answer_kind=AnswerKind.TEXT,
    )
    write_problem_file(file, [problem])
    assert read_problem_file(file) == [problem]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_question_and_answer_are_sufficient(suffix, tmp_path):
    file = tmp_path / f"mine.{suffix}"
    if suffix == "parquet":
        rows = [{"question": "1+1?", "answer": 2, "level": None, "source": "a book"}]
        parquet.write_table(arrow.Table.from_pylist(rows), file)
    else:
        line = '\n{"question": "1+1?", "answer": 2, "source": "a book"}\r\n\n'
        file.write_text(line, "utf-8-sig")
    [problem] = read_problem_file(file)
    assert problem == Problem(task="mine", key="1+1?", question="1+1?", gold_answer="2")


GOOD = '{"question": "1+1?", "answer": "2"}'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "Expecting"),
        ("[1]", "must be an object"),
        ('"x"', "must be an object"),
        ('{"answer": "2"}', 'no "question"'),
        ('{"question": "1+1?"}', 'no "answer"'),
        ('{"question": "1+1?", "answer": null}', 'no "answer"'),
        ('{"question": "1+1?", "answer": 2.5}', 'its "answer" is 2.5'),
        ('{"question": "1+1?", "answer": true}', 'its "answer" is True'),
        ('{"question": 3, "answer": "2"}', 'its "question" is 3'),
        ('{"question": "1+1?", "answer": "2", "kind": "colour"}', "colour"),
        ('{"question": "1+1?", "answer": "2", "decimals": "2"}', 'its "decimals" is'),
        ('{"question": "1+1?", "answer": "2", "decimals": -1}', 'its "decimals" is'),
        ('{"question": "2+1?", "answer": "many"}', "'many' is not a number"),
        ('{"question": "2+1?", "answer": "1 and 2", "kind": "sequence"}', "not a sequence"),
        ('{"question": "2+1?", "answer": "1/0", "kind": "math"}', "'1/0' has no value"),
        ('{"question": "2+1?", "answer": " . ", "kind": "text"}', "its answer is empty"),
        (
            '{"question": "1+1?", "answer": "3"}',
            "'3', but the same problem has the answer '2' in row 1",
        ),
        ('{"question": "1+1?", "answer": "2", "meta": []}', 'its "meta" is'),
        ('{"question": "1+1?\\ud800", "answer": "2"}', "'1+1?\\ud800'"),
        ('{"question": "1+1?", "answer": "2", "meta": {"a": ["\\udfff"]}}', "surrogates"),
        ('{"question": "1+1?", "answer": "2", "meta": {"a": NaN}}', 'its "meta" is'),
        pytest.param("[" * 100_000, "read", id="deep"),
        pytest.param(f'{{"question": "{"x" * 100_001}", "answer": "2"}}', "100000", id="question"),
        pytest.param(f'{{"question": "?", "answer": "{"1" * 10_001}"}}', "10000", id="answer"),
        pytest.param(f'{{"question": "?", "answer": {"1" * 5000}}}', "5000 digits", id="integer"),
        pytest.param(f'{{"question": "{"x" * 3_000_000}", "answer": "2"}}', "100000", id="row"),
    ],
)
def test_invalid_line_names_file_and_line(line, message, tmp_path):
    file = tmp_path / "bad.jsonl"
    file.write_text(f"{GOOD}\n\n{line}\n{GOOD}\n")
    with pytest.raises(ConfigError, match=r"bad\.jsonl, (row 2|after row 1)") as error:
        read_problem_file(file)
    assert message in str(error.value)
    assert len(str(error.value)) < 700


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_missing_empty_or_unreadable_file_is_a_config_error(suffix, tmp_path):
    for name, content in (("none", None), ("empty", b"\n"), ("binary", b"\xff\xfe\x00")):
        file = tmp_path / f"{name}.{suffix}"
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(ConfigError, match=rf"{name}\.{suffix}"):
            read_problem_file(file)


def test_invalid_parquet_row_is_a_config_error(tmp_path):
    file = tmp_path / "bad.parquet"
    for row, message in [
        ({"question": "1+1?", "answer": 2.5}, 'its "answer" is 2.5'),
        ({"question": "1+1?", "answer": "2", "meta": json.dumps(["x" * 10])}, 'its "meta" is'),
        ({"question": "1+1?", "answer": "2", "meta": {"a": "x" * 1_000_000}}, "1,000,000"),
    ]:
        parquet.write_table(arrow.Table.from_pylist([row]), file)
        with pytest.raises(ConfigError, match=r"bad\.parquet, row 1") as error:
            read_problem_file(file)
        assert message in str(error.value)


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "p.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match=r"\[parquet\]"):
        read_problem_file(tmp_path / "p.parquet")


@pytest.mark.parametrize("name", TASKS)
def test_file_has_the_first_problems_of_the_split_and_its_provenance(name, tmp_path):
    out = tmp_path / "new folder" / "v.jsonl"
    returned = create_problem_file(name, {}, Split.VALIDATION, 10, 1.1, 7, out)
    expected = FreshProblems(make_task(name), Split.VALIDATION, 7).take(11)
    assert read_problem_file(out) == expected
    written = json.loads(out.with_name(f"{out.name}.provenance.json").read_text())
    assert written == returned
    assert written["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    options = make_task(name).options.model_dump(mode="json")
    expected = {"task": name, "options": options, "split": "validation", "seed": 7}
    assert {**expected, "count": 10, "oversize": 1.1, "problems": 11}.items() <= written.items()
    assert len(list(out.parent.iterdir())) == 2


def test_command_does_not_overwrite_and_names_the_available_number(tmp_path, capsys):
    out, other = tmp_path / "v.jsonl", tmp_path / "none" / "v.jsonl"
    command = ["tasks", "generate", "--task", "multiplication", "--out"]
    few = [str(out), "--count", "36", "--oversize", "1.5"]
    few += ["--options", "left_digits=2", "right_digits=1"]
    assert main([*command, *few]) == 0
    assert "54 validation problems" in capsys.readouterr().out
    before = out.read_bytes()
    assert main([*command, *few]) == 2
    assert str(out) in capsys.readouterr().err
    assert out.read_bytes() == before
    out.unlink()
    assert main([*command, *few]) == 2, "its provenance still exists"
    capsys.readouterr()
    assert main([*command, str(other), "--count", "9000"]) == 2
    assert "8,063 validation problems" in capsys.readouterr().err
    assert not other.parent.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"out": "v.csv"}, ".jsonl"),
        ({"count": 0}, "at least 1"),
        ({"oversize": 0.5}, "at least 1"),
        ({"oversize": float("nan")}, "at least 1"),
        ({"task_name": "multiplicaton"}, '"multiplication"'),
        ({"options": {"left": 1}}, "left_digits"),
    ],
)
def test_invalid_argument_is_an_error_and_writes_nothing(change, message, tmp_path):
    arguments = {"task_name": "multiplication", "options": {}, "split": Split.TEST, "count": 5}
    arguments |= {"oversize": 1, "seed": 0, "out": "v.jsonl"} | change
    with pytest.raises(GlasshouseError, match=message):
        create_problem_file(**arguments | {"out": tmp_path / arguments["out"]})
    assert not list(tmp_path.iterdir())
