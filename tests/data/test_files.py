"""Problems as JSON lines and as Parquet."""

import builtins

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glasshouse import randomness
from glasshouse.data import files
from glasshouse.errors import ConfigError
from glasshouse.tasks import TASKS, make
from glasshouse.types import AnswerKind, Problem


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", TASKS)
def test_problems_come_back_as_they_were_written(name, suffix, tmp_path):
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    task = make(name)
    problems = [task.draw(randomness.stream("files", name, i)) for i in range(20)]
    files.write(tmp_path / f"p.{suffix}", problems)
    assert files.read(tmp_path / f"p.{suffix}") == problems


@given(text=st.text(st.characters(codec="utf-8")))
def test_any_text_comes_back(text, tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "p.jsonl"
    problem = Problem(task="t", key=text, question=text, answer=text, kind=AnswerKind.TEXT)
    files.write(file, [problem])
    assert files.read(file) == [problem]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x1e"])
def test_a_line_ends_at_a_newline_only(separator, tmp_path):
    problem = Problem(task="t", key="k", question=f"a{separator}b", answer="1")
    files.write(tmp_path / "p.jsonl", [problem])
    assert files.read(tmp_path / "p.jsonl") == [problem]


def test_question_and_answer_are_enough(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text('\n{"question": "1+1?", "answer": 2, "source": "a book"}\r\n\n', "utf-8-sig")
    [problem] = files.read(file)
    assert problem == Problem(task="mine", key="1+1?", question="1+1?", answer="2")


GOOD = '{"question": "1+1?", "answer": "2"}'


@pytest.mark.parametrize(
    ("line", "says"),
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
    ],
)
def test_a_bad_line_is_a_sentence_with_file_and_line(line, says, tmp_path):
    file = tmp_path / "bad.jsonl"
    file.write_text(f"{GOOD}\n\n{line}\n{GOOD}\n")
    with pytest.raises(ConfigError, match=r"bad\.jsonl line 3 is not a problem") as error:
        files.read(file)
    assert says in str(error.value)


def test_a_missing_empty_or_unreadable_file_is_a_sentence(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.jsonl does not exist"):
        files.read(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match=r"empty\.jsonl holds no problem"):
        files.read(tmp_path / "empty.jsonl")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"binary\.jsonl could not be read"):
        files.read(tmp_path / "binary.jsonl")


def test_a_foreign_parquet_file_needs_questions_and_answers_only(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"question": "1+1?", "answer": 2, "level": None, "source": "a book"}]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "mine.parquet")
    [problem] = files.read(tmp_path / "mine.parquet")
    assert problem == Problem(task="mine", key="1+1?", question="1+1?", answer="2")


def test_a_bad_parquet_file_or_row_is_a_sentence(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "bad.parquet"
    file.write_text(GOOD)
    with pytest.raises(ConfigError, match=r"bad\.parquet is not Parquet"):
        files.read(file)
    for row, says in [
        ({"question": "1+1?", "answer": None}, 'no "answer"'),
        ({"question": "1+1?", "answer": 2.5}, 'its "answer" is 2.5'),
        ({"question": "1+1?", "answer": "2", "meta": "{"}, 'its "meta" is'),
    ]:
        parquet.write_table(arrow.Table.from_pylist([row]), file)
        with pytest.raises(ConfigError, match=r"bad\.parquet row 1 is not a problem") as error:
            files.read(file)
        assert says in str(error.value)
    with pytest.raises(ConfigError, match=r"none\.parquet does not exist"):
        files.read(tmp_path / "none.parquet")


def test_parquet_without_pyarrow_is_a_sentence_that_says_what_to_install(tmp_path, monkeypatch):
    plain = builtins.__import__

    def without(name, *rest):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return plain(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    (tmp_path / "p.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match=r"glasshouse\[parquet\]"):
        files.read(tmp_path / "p.parquet")
    with pytest.raises(ConfigError, match=r"glasshouse\[parquet\]"):
        files.write(tmp_path / "q.parquet", [])
