"""Problem files with a pedigree."""

import hashlib
import json

import pytest

from glasshouse.cli import main
from glasshouse.data import Fresh, Split, files, split_of
from glasshouse.data.create_file import generate, provenance_of
from glasshouse.errors import ConfigError
from glasshouse.tasks import TASKS, make


@pytest.mark.parametrize("name", TASKS)
def test_the_file_holds_the_first_problems_of_the_split_and_says_where_they_come_from(
    name, tmp_path
):
    out = tmp_path / "new folder" / "v.jsonl"
    about = generate(name, {}, Split.VALIDATION, 20, 1.5, 7, out)
    problems = files.read(out)
    assert problems == Fresh(make(name), Split.VALIDATION, 7).take(30)
    assert {split_of(p) for p in problems} == {Split.VALIDATION}
    written = json.loads(provenance_of(out).read_text())
    assert written == about
    assert written["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    expected = {"task": name, "split": "validation", "seed": 7, "count": 20, "oversize": 1.5}
    assert {k: written[k] for k in expected} == expected
    assert written["problems"] == 30
    assert written["options"] == make(name).options.model_dump(mode="json")
    assert {"glasshouse", "sources_sha256", "space", "share_of_split_about"} <= written.keys()
    assert len(list(out.parent.iterdir())) == 2


def test_oversizing_is_exact(tmp_path):
    assert (
        generate("interleave", {}, Split.TEST, 10, 1.1, 0, tmp_path / "a.jsonl")["problems"] == 11
    )
    assert generate("interleave", {}, Split.TEST, 3, 1.5, 0, tmp_path / "b.jsonl")["problems"] == 5


def test_the_command_says_how_much_of_the_space_it_takes_and_overwrites_nothing(tmp_path, capsys):
    out = tmp_path / "v.jsonl"
    arguments = ["data", "generate", "--task", "multiplication", "--count", "36", "--oversize", "1.5",
                 "--options", "left_digits=2", "right_digits=1", "--out", str(out)]  # fmt: skip
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "54 validation problems" in said
    assert "about 66.67% of the 81 in that split (810 in all)" in said
    before = out.read_bytes()
    assert main(arguments) == 2
    assert "nothing is overwritten" in capsys.readouterr().err
    assert out.read_bytes() == before
    out.unlink()
    assert main(arguments) == 2, "its provenance still stands there"


def test_more_than_the_split_holds_is_a_sentence_with_the_number_there_is(tmp_path, capsys):
    out = tmp_path / "v.jsonl"
    arguments = [
        "data",
        "generate",
        "--task",
        "multiplication",
        "--count",
        "9000",
        "--out",
        str(out),
    ]
    assert main(arguments) == 2
    assert "has only 8,063 validation problems" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"out": "v.csv"}, ".jsonl or .parquet"),
        ({"count": 0}, "not 1 or more"),
        ({"oversize": 0.5}, "not 1 or more"),
        ({"oversize": float("nan")}, "not 1 or more"),
        ({"name": "multiplicaton"}, 'Did you mean "multiplication"'),
        ({"options": {"left": 1}}, "left_digits"),
    ],
)
def test_a_mistake_is_a_sentence(change, says, tmp_path):
    given = {"name": "multiplication", "options": {}, "split": Split.TEST, "count": 5, "oversize": 1,
             "seed": 0, "out": "v.jsonl", **change}  # fmt: skip
    with pytest.raises(ValueError, match=says) as error:
        generate(**given | {"out": tmp_path / given["out"]})
    assert isinstance(error.value, ConfigError) or "multiplication" in str(error.value)
    assert not list(tmp_path.iterdir())


def test_parquet_is_chosen_by_suffix(tmp_path):
    pytest.importorskip("pyarrow")
    for suffix in ("jsonl", "parquet"):
        generate("sum_digits", {}, Split.TEST, 9, 1, 0, tmp_path / f"v.{suffix}")
    assert files.read(tmp_path / "v.parquet") == files.read(tmp_path / "v.jsonl")
