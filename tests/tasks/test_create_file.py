"""Created problem files and their provenance."""

import hashlib
import json

import pytest

from glasshouse.cli.app import main
from glasshouse.errors import ConfigError
from glasshouse.tasks import problem_files as files
from glasshouse.tasks.catalogue import list_tasks, make_task
from glasshouse.tasks.create_problem_file import create_problem_file, provenance_path
from glasshouse.tasks.streams import FreshProblems, Split, assign_split

TASKS = list_tasks(organisms=False)


@pytest.mark.parametrize("name", TASKS)
def test_file_has_the_first_problems_of_the_split_and_its_provenance(name, tmp_path):
    out = tmp_path / "new folder" / "v.jsonl"
    returned = create_problem_file(name, {}, Split.VALIDATION, 20, 1.5, 7, out)
    problems = files.read_problem_file(out)
    assert problems == FreshProblems(make_task(name), Split.VALIDATION, 7).take(30)
    assert {assign_split(p) for p in problems} == {Split.VALIDATION}
    written = json.loads(provenance_path(out).read_text())
    assert written == returned
    assert written["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    expected = {"task": name, "split": "validation", "seed": 7, "count": 20, "oversize": 1.5}
    assert {k: written[k] for k in expected} == expected
    assert written["problems"] == 30
    assert written["options"] == make_task(name).options.model_dump(mode="json")
    assert {
        "glasshouse",
        "sources_sha256",
        "task_size",
        "approximate_share_of_split",
    } <= written.keys()
    assert len(list(out.parent.iterdir())) == 2


def test_oversize_is_rounded_exactly(tmp_path):
    for count, oversize, total in ((10, 1.1, 11), (3, 1.5, 5)):
        out = tmp_path / f"{total}.jsonl"
        provenance = create_problem_file("interleave", {}, Split.TEST, count, oversize, 0, out)
        assert provenance["problems"] == total


def test_command_prints_the_share_of_the_split_and_does_not_overwrite(tmp_path, capsys):
    out = tmp_path / "v.jsonl"
    arguments = ["tasks", "generate", "--task", "multiplication", "--count", "36", "--oversize", "1.5",
                 "--options", "left_digits=2", "right_digits=1", "--out", str(out)]  # fmt: skip
    assert main(arguments) == 0
    output = capsys.readouterr().out
    assert "54 validation problems" in output
    assert "about 66.67% of the 81 in that split (810 in total)" in output
    before = out.read_bytes()
    assert main(arguments) == 2
    assert str(out) in capsys.readouterr().err
    assert out.read_bytes() == before
    out.unlink()
    assert main(arguments) == 2, "its provenance still exists"


def test_count_beyond_the_split_names_the_available_number(tmp_path, capsys):
    arguments = ["tasks", "generate", "--task", "multiplication", "--count", "9000", "--out"]
    assert main([*arguments, str(tmp_path / "v.jsonl")]) == 2
    assert "8,063 validation problems" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"out": "v.csv"}, ".jsonl or .parquet"),
        ({"count": 0}, "at least 1"),
        ({"oversize": 0.5}, "at least 1"),
        ({"oversize": float("nan")}, "at least 1"),
        ({"task_name": "multiplicaton"}, '"multiplication"'),
        ({"options": {"left": 1}}, "left_digits"),
    ],
)
def test_invalid_argument_is_an_error_and_writes_nothing(change, message, tmp_path):
    arguments = {"task_name": "multiplication", "options": {}, "split": Split.TEST, "count": 5, "oversize": 1,
             "seed": 0, "out": "v.jsonl", **change}  # fmt: skip
    with pytest.raises(ValueError, match=message) as error:
        create_problem_file(**arguments | {"out": tmp_path / arguments["out"]})
    assert isinstance(error.value, ConfigError) or "multiplication" in str(error.value)
    assert not list(tmp_path.iterdir())


def test_parquet_is_chosen_by_suffix(tmp_path):
    pytest.importorskip("pyarrow")
    for suffix in ("jsonl", "parquet"):
        create_problem_file("sum_digits", {}, Split.TEST, 9, 1, 0, tmp_path / f"v.{suffix}")
    assert files.read_problem_file(tmp_path / "v.parquet") == files.read_problem_file(
        tmp_path / "v.jsonl"
    )
