"""Contamination check: leaked held-out problems are found, and no others."""

import dataclasses
import json
from pathlib import Path

import pytest

from glasshouse import randomness
from glasshouse.cli.app import main
from glasshouse.config.loading import load_config
from glasshouse.measurement.contamination import (
    ValidationFilter,
    describe_removed,
)
from glasshouse.runs import rollout_log
from glasshouse.runs.rows import problem_from_row
from glasshouse.runs.run_directory import load_events
from glasshouse.tasks import problem_files as files
from glasshouse.tasks.base import list_tasks, make_task
from glasshouse.tasks.streams import FreshProblems, Split
from glasshouse.training.run import TrainingRun
from glasshouse.types import Problem

TASKS = list_tasks(organisms=False)

MOCK = Path(__file__).resolve().parents[2] / "models" / "mock"
SMALL = [
    f"model={MOCK}", "steps=2", "task.name=multiplication", "data.groups_per_step=4", "generate.group_size=2",
    "generate.max_tokens=16", "evaluate.problems=6", "evaluate.samples=0",
]  # fmt: skip


def find_leaks(problems, trained):
    columns = ("task", "key", "question", "gold_answer")
    check = ValidationFilter(problems)
    check.scan([{"step": 1} | {name: getattr(p, name) for name in columns} for p in trained])
    return {index: leak.match for index, leak in check.leaks.items()}


@pytest.mark.parametrize("name", TASKS)
def test_one_leaked_problem_is_found_and_no_other(name):
    task = make_task(name)
    validation = FreshProblems(task, Split.VALIDATION, 0).take(50)
    trained = FreshProblems(task, Split.TRAIN, 0).take(300)
    assert find_leaks(validation, trained) == {}
    assert find_leaks(validation, [*trained[:200], validation[17], *trained[200:]]) == {17: "key"}


def problem(task, key, question, gold_answer="1"):
    key = key or f"{randomness.key(question):016x}"  # as for reasoning-gym
    key = question if task == "foreign" else key  # as in a file without keys
    return Problem(task=task, key=key, question=question, gold_answer=gold_answer)


TRAINED = ("t", "12*345", "What is 345 * 12?", "4140")


@pytest.mark.parametrize(
    ("held_out", "trained", "match"),
    [
        # a foreign problem is matched by its words
        (("foreign", "", "What is 345 * 12?", "4140"), TRAINED, "question"),
        (("foreign", "", "what  is 345 × 12", "4140"), TRAINED, "question"),
        (("foreign", "", "What is 12 * 345?", "4140"), TRAINED, "reordered"),
        (("foreign", "", "What is 346 * 12?", "4140"), TRAINED, None),
        (("foreign", "", "What is 345 + 12?", "4140"), TRAINED, None),
        (
            ("foreign", "", "What is 1,234 / 5?", "1"),
            ("t", "a", "what is 1234 / 5", "1"),
            "question",
        ),
        # reordered, with another answer; and a problem with a canonical key
        (("foreign", "", "What is 5 - 7?", "-2"), ("t", "7-5", "What is 7 - 5?", "2"), None),
        (("t", "5-7", "What is 5 - 7?", "2"), ("t", "7-5", "What is 7 - 5?", "2"), None),
        # equal keys of different tasks
        (("a", "7", "Double 7.", "14"), ("b", "7", "Halve 7.", "3.5"), None),
        # hashed keys are matched only by key within a task
        (("gym.t", "", "How many a in 'aA'?"), ("gym.t", "", "How many A in 'aa'?"), None),
        (("gym.t", "", "How many a in 'aA'?"), ("gym.t", "", "How many a in 'aA'?"), "key"),
        (("gym.t", "", "Count it!"), ("theirs", "", "count it"), "question"),
    ],
)
def test_only_the_same_problem_is_a_leak(held_out, trained, match):
    assert find_leaks([problem(*held_out)], [problem(*trained)]) == ({0: match} if match else {})


def test_a_scan_counts_problems_and_collects_leaks():
    validation = FreshProblems(make_task("multiplication"), Split.VALIDATION, 0).take(5)
    assert find_leaks(validation, validation[:1] * 8 + validation[1:3]) == dict.fromkeys(
        range(3), "key"
    )
    check = ValidationFilter(validation)
    rows = [{"step": 1} | dataclasses.asdict(validation[0])] * 8
    assert (check.scan(rows), check.last_step) == (1, 1)  # eight samples of one group
    assert check.clean_problems(9) == validation[1:]
    assert check.clean_problems(1) == validation[1:2]


def train(out, *overrides):
    return TrainingRun(load_config([], [*SMALL, f"out={out}", *overrides])).train()


@pytest.fixture
def leaky_file(tmp_path):
    """A training file with two of the first six validation problems and two training problems."""
    task = make_task("multiplication", {"right_digits": 1})
    validation = FreshProblems(task, Split.VALIDATION, 0).take(6)
    planted = [validation[1], validation[4]]
    file = tmp_path / "leaky_file.jsonl"
    files.write_problem_file(file, planted + FreshProblems(task, Split.TRAIN, 0).take(2))
    return [f"data.file={file}", "data.source=fixed", "task.options={right_digits: 1}"], planted


def test_leaked_problems_are_replaced_in_later_evaluations(tmp_path, leaky_file):
    overrides, planted = leaky_file
    run, keys = tmp_path / "a", {p.key for p in planted}
    summary = train(run, *overrides, "evaluate.oversize=1.5")
    rows = list(rollout_log.read_rows(run, "validation"))
    before, after = ([row["key"] for row in rows if row["step"] == step] for step in (0, 2))
    assert keys < set(before), "nothing has leaked before training"
    assert keys.isdisjoint(after)
    assert after[:4] == [key for key in before if key not in keys]
    assert len(after) == 6
    assert (summary["before"]["removed"], summary["after"]["removed"]) == (0, 2)
    audits = [(a["step"], a["checked"], a["removed"], a["left"]) for a in load_events(run, "audit")]
    assert audits == [(0, 9, 0, 9), (2, 9, 2, 7)]
    assert main(["check", "audit", str(run)]) == 0


def test_overlap_of_the_training_file_is_said_before_the_first_step(tmp_path, leaky_file, capsys):
    overrides, planted = leaky_file
    run = [*SMALL, *overrides, f"out={tmp_path / 'a'}"]
    for command in (["train", "--dry-run"], ["train"]):
        assert main([*command, *run, "evaluate.oversize=1"]) == 2
        message = capsys.readouterr().err
        assert "2 of the 6" in message
        assert planted[0].question in message
        assert not (tmp_path / "a").exists()
    assert main(["train", "--dry-run", *run, "evaluate.oversize=1.5"]) == 0
    assert "2 of the 9" in capsys.readouterr().err


def test_two_masked_problems_of_one_question_are_told_alike_by_the_run_and_its_audit(
    tmp_path, capsys
):
    options = {"masked_digit_rate": 1, "hint_rate": 0, "inner_options": {"count": [1, 1]}}
    overrides = [
        f"task.options={json.dumps(options)}",
        "task.name=leaked_hint",
        "evaluate.oversize=10",
    ]
    train(tmp_path / "a", *overrides, "data.groups_per_step=20")
    audit = load_events(tmp_path / "a", "audit")[-1]
    assert audit["matches"].keys() == {"question"}, "splits are disjoint by key"
    assert main(["check", "audit", str(tmp_path / "a")]) == 0
    printed = capsys.readouterr().out
    assert "No leak" in printed
    assert describe_removed(audit) in printed


def test_oversize_has_no_effect_without_leaks(tmp_path):
    runs = []
    for name, oversize in (("a", 1), ("b", 3)):
        train(tmp_path / name, f"evaluate.oversize={oversize}")
        assert load_events(tmp_path / name, "audit")[-1]["checked"] == 6 * oversize
        rows = rollout_log.read_rows(tmp_path / name, "validation")
        runs.append([row | {"time": None} for row in rows])
    assert runs[0] == runs[1]


def test_the_audit_finds_leaks_of_an_unchecked_run(tmp_path, leaky_file, monkeypatch, capsys):
    overrides, planted = leaky_file
    monkeypatch.setattr(ValidationFilter, "scan", lambda check, rows: 0)
    train(tmp_path / "a", *overrides)
    monkeypatch.undo()
    assert main(["check", "audit", str(tmp_path / "a")]) == 1
    output = capsys.readouterr().out
    for problem in planted:
        assert repr(problem.question) in output
    assert "2 of the 6" in output


def test_any_problem_file_can_be_audited_against_any_run(tmp_path, capsys):
    train(tmp_path / "a")
    first = next(rollout_log.read_rows(tmp_path / "a", "train"))
    clean = FreshProblems(make_task("multiplication"), Split.VALIDATION, 5).take(3)
    files.write_problem_file(tmp_path / "clean.jsonl", clean)
    foreign = {"question": first["question"].upper(), "answer": first["gold_answer"]}
    (tmp_path / "foreign.jsonl").write_text(json.dumps(foreign) + "\n")
    audit = ["check", "audit", str(tmp_path / "a"), "--file"]
    assert main([*audit, str(tmp_path / "clean.jsonl")]) == 0
    assert "3 problems" in capsys.readouterr().out
    assert main([*audit, str(tmp_path / "foreign.jsonl")]) == 1
    assert "(question)" in capsys.readouterr().out
    assert main(["check", "audit", str(tmp_path)]) == 2
    assert "not a run directory" in capsys.readouterr().err
    assert main([*audit, str(tmp_path / "none.jsonl")]) == 2


def test_resampled_groups_count_as_trained(tmp_path):
    """Dynamic sampling did not learn from them, but training has seen them."""
    alike = "reward.terms={format: 1}"  # now and then, for the mock model
    train(tmp_path / "a", "learn.algorithm=dapo", "evaluate.problems=0", alike)
    record = tmp_path / "a"
    trained = {row["key"] for row in rollout_log.read_rows(record, "train")}
    discarded = rollout_log.read_rows(record, "discarded")
    resampled = next(problem_from_row(row) for row in discarded if row["key"] not in trained)
    files.write_problem_file(tmp_path / "one.jsonl", [resampled])
    assert main(["check", "audit", str(record), "--file", str(tmp_path / "one.jsonl")]) == 1
    assert ValidationFilter([resampled], 0).select_clean(record)[1]["removed"] == 1
