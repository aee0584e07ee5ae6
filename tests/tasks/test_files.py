"""Problem files: JSON lines and Parquet."""

import builtins
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glasshouse import randomness
from glasshouse.errors import ConfigError
from glasshouse.tasks import problem_files as files
from glasshouse.tasks.catalogue import list_tasks, make_task
from glasshouse.types import AnswerKind, Problem

TASKS = list_tasks(organisms=False)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", TASKS)
def test_problems_round_trip(name, suffix, tmp_path):
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    task = make_task(name)
    problems = [task.draw(randomness.stream("files", name, i)) for i in range(20)]
    files.write_problem_file(tmp_path / f"p.{suffix}", problems)
    assert files.read_problem_file(tmp_path / f"p.{suffix}") == problems


@given(text=st.text(st.characters(codec="utf-8")))
def test_any_text_round_trips(text, tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "p.jsonl"
    problem = Problem(
        task="t", key=text, question=text, gold_answer=text, answer_kind=AnswerKind.TEXT
    )
    files.write_problem_file(file, [problem])
    assert files.read_problem_file(file) == [problem]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x1e"])
def test_only_newline_ends_a_line(separator, tmp_path):
    problem = Problem(task="t", key="k", question=f"a{separator}b", gold_answer="1")
    files.write_problem_file(tmp_path / "p.jsonl", [problem])
    assert files.read_problem_file(tmp_path / "p.jsonl") == [problem]


def test_question_and_answer_are_sufficient(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text('\n{"question": "1+1?", "answer": 2, "source": "a book"}\r\n\n', "utf-8-sig")
    [problem] = files.read_problem_file(file)
    assert problem == Problem(task="mine", key="1+1?", question="1+1?", gold_answer="2")


GOOD = '{"question": "1+1?", "answer": "2"}'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "Expecting"),
        ("[1]", "not an object"),
        ('"x"', "not an object"),
        ('{"answer": "2"}', 'no "question"'),
        ('{"question": "1+1?"}', 'no "answer"'),
        ('{"question": "1+1?", "answer": null}', 'its "answer" is None'),
        ('{"question": "1+1?", "answer": 2.5}', 'its "answer" is 2.5'),
        ('{"question": "1+1?", "answer": true}', 'its "answer" is True'),
        ('{"question": 3, "answer": "2"}', 'its "question" is 3'),
        ('{"question": "1+1?", "answer": "2", "kind": "colour"}', "colour"),
        ('{"question": "1+1?", "answer": "2", "decimals": "2"}', 'its "decimals" is'),
        ('{"question": "1+1?", "answer": "2", "meta": []}', 'its "meta" is'),
        ("[" * 100_000, "problem"),
        (
            '{"question": "1+1?\\ud800", "answer": "2"}',
            'its "question" contains the lone surrogate U+D800',
        ),
        ('{"question": "1+1?", "answer": "2", "meta": {"a": ["\\udfff"]}}', "U+DFFF"),
        ('{"question": "1+1?", "answer": "2", "meta": {"a": NaN}}', 'its "meta" contains NaN'),
        (f'{{"question": "{"x" * 100_001}", "answer": "2"}}', "100,001"),
        (f'{{"question": "1+1?", "answer": "{"1" * 10_001}"}}', "10,001"),
        (f'{{"question": "1+1?", "answer": {"1" * 5000}}}', "problem"),
        (f'{{"question": "{"x" * 3_000_000}", "answer": "2"}}', "3,000,"),
    ],
)
def test_invalid_line_names_file_and_line(line, message, tmp_path):
    file = tmp_path / "bad.jsonl"
    file.write_text(f"{GOOD}\n\n{line}\n{GOOD}\n")
    with pytest.raises(ConfigError, match=r"bad\.jsonl, line 3") as error:
        files.read_problem_file(file)
    assert message in str(error.value)


def test_missing_empty_or_unreadable_file_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.jsonl"):
        files.read_problem_file(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match=r"empty\.jsonl"):
        files.read_problem_file(tmp_path / "empty.jsonl")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"binary\.jsonl"):
        files.read_problem_file(tmp_path / "binary.jsonl")


def test_parquet_with_only_question_and_answer_is_sufficient(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"question": "1+1?", "answer": 2, "level": None, "source": "a book"}]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "mine.parquet")
    [problem] = files.read_problem_file(tmp_path / "mine.parquet")
    assert problem == Problem(task="mine", key="1+1?", question="1+1?", gold_answer="2")


def test_invalid_parquet_file_or_row_is_a_config_error(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "bad.parquet"
    file.write_text(GOOD)
    with pytest.raises(ConfigError, match=r"bad\.parquet is not Parquet"):
        files.read_problem_file(file)
    for row, message in [
        ({"question": "1+1?", "answer": None}, 'no "answer"'),
        ({"question": "1+1?", "answer": 2.5}, 'its "answer" is 2.5'),
        ({"question": "1+1?", "answer": "2", "meta": "{"}, 'its "meta" is'),
        ({"question": "1+1?", "answer": "2", "meta": {"price": Decimal("1.5")}}, "Decimal"),
        ({"question": "x" * 100_001, "answer": "2"}, "100,001"),
    ]:
        parquet.write_table(arrow.Table.from_pylist([row]), file)
        with pytest.raises(ConfigError, match=r"bad\.parquet, row 1") as error:
            files.read_problem_file(file)
        assert message in str(error.value)
    with pytest.raises(ConfigError, match=r"none\.parquet"):
        files.read_problem_file(tmp_path / "none.parquet")


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    original_import = builtins.__import__

    def failing_import(name, *rest):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return original_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", failing_import)
    (tmp_path / "p.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match=r"\[parquet\]"):
        files.read_problem_file(tmp_path / "p.parquet")
    with pytest.raises(ConfigError, match=r"\[parquet\]"):
        files.write_problem_file(tmp_path / "q.parquet", [])
