"""Was it trained on? Planted leaks are found, by every way in, and nothing else is."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from glasshouse import config, randomness
from glasshouse.cli import main
from glasshouse.data import Fresh, Split, files
from glasshouse.data.contamination import Audit, words
from glasshouse.errors import RunError
from glasshouse.evaluation.contamination import Guard
from glasshouse.store import rollout_reader
from glasshouse.store.rollout_rows import problem_of
from glasshouse.tasks import TASKS, make
from glasshouse.train import Run
from glasshouse.types import Problem

MOCK = Path(__file__).resolve().parents[2] / "models" / "mock"
SMALL = [
    f"model={MOCK}", "steps=2", "task.name=multiplication", "data.groups_per_step=4", "generate.group_size=2",
    "generate.max_tokens=16", "evaluate.problems=6", "evaluate.samples=0",
]  # fmt: skip


def asked(problem, step=1):
    """A training rollout's row, as far as the audit reads it."""
    return {
        "step": step,
        "task": problem.task,
        "key": problem.key,
        "question": problem.question,
        "gold": problem.answer,
    }


def found(problems, trained):
    audit = Audit(problems)
    audit.read([asked(p) for p in trained])
    return {place: leak.how for place, leak in audit.leaks.items()}


@pytest.mark.parametrize("name", TASKS)
def test_a_planted_leak_is_found_and_nothing_else(name):
    task = make(name)
    held_out = Fresh(task, Split.VALIDATION, 0).take(50)
    trained = Fresh(task, Split.TRAIN, 0).take(300)
    assert found(held_out, trained) == {}
    assert found(held_out, [*trained[:200], held_out[17], *trained[200:]]) == {17: "key"}


def test_commuted_factors_are_the_same_problem():
    task = make("multiplication")
    assert found([task.ask(345, 12)], [task.ask(12, 345)]) == {0: "key"}


@pytest.mark.parametrize(
    ("foreign", "how"),
    [
        ("What is 345 * 12?", "question"),
        ("what  is 345 × 12", "question"),
        ("What is 12 * 345?", "reordered"),
        ("What is 346 * 12?", None),
        ("What is 345 + 12?", None),
    ],
)
def test_a_foreign_problem_is_known_by_its_words(foreign, how):
    trained = make("multiplication").ask(345, 12)
    problem = Problem(task="somebody's", key=foreign, question=foreign, answer="4140")
    assert found([problem], [trained]) == ({0: how} if how else {})


def test_other_words_in_order_or_another_answer_are_another_problem():
    trained = Problem(task="t", key="7-5", question="What is 7 - 5?", answer="2")
    other = Problem(task="f", key="What is 5 - 7?", question="What is 5 - 7?", answer="-2")
    assert found([other], [trained]) == {}
    keyed = Problem(task="t", key="5-7", question="What is 5 - 7?", answer="2")
    assert found([keyed], [trained]) == {}, "a problem with a key of its own is not guessed at"


def test_keys_of_different_tasks_are_different_problems():
    ours = Problem(task="a", key="7", question="Double 7.", answer="14")
    theirs = Problem(task="b", key="7", question="Halve 7.", answer="3.5")
    assert found([ours], [theirs]) == {}


def test_where_the_key_is_the_question_to_the_letter_only_the_key_counts():
    def gym(question, task="gym.t"):
        key = f"{randomness.key(question):016x}"
        return Problem(task=task, key=key, question=question, answer="1")

    assert found([gym("How many a in 'aA'?")], [gym("How many A in 'aa'?")]) == {}
    assert found([gym("How many a in 'aA'?")], [gym("How many a in 'aA'?")]) == {0: "key"}
    assert found([gym("Count it!")], [gym("count it", task="theirs")]) == {0: "question"}


def test_words_are_what_a_question_says_without_its_dress():
    assert words("What is 1,234 × 5?") == ["what", "is", "1234", "*", "5"]
    assert " ".join(words("Interleave [1, 2] and [3].")) == "interleave [ 1 2 ] and [ 3 ]"
    assert words("0.5 - 3") == ["0.5", "-", "3"]


def test_the_record_is_read_once_and_in_memory_of_the_set_only():
    held_out = Fresh(make("multiplication"), Split.VALIDATION, 0).take(5)
    audit = Audit(held_out)
    assert audit.read(asked(p, 1) for p in held_out[:1] * 8) == 1  # eight samples of one group
    assert audit.last_step == 1
    assert audit.read(asked(p, 2) for p in held_out[1:3]) == 2
    assert [(leak.step, leak.problem) for leak in audit.leaks.values()] == [
        (1, held_out[0]),
        (2, held_out[1]),
        (2, held_out[2]),
    ]
    assert audit.clean(9) == held_out[3:]
    assert audit.clean(1) == held_out[3:4]


# --- in a run ------------------------------------------------------------------------------


def run(out, *overrides):
    return Run(config.load([], [*SMALL, f"out={out}", *overrides])).train()


def events(out, kind):
    lines = (out / "results" / "events.jsonl").read_text().splitlines()
    return [e for e in map(json.loads, lines) if e["event"] == kind]


def evaluated(out, step):
    rows = rollout_reader.read(out / "results" / "rollouts", "validation")
    return [r["key"] for r in rows if r["step"] == step]


@pytest.fixture
def leaky(tmp_path):
    """A training file that holds two of the first six validation problems, and eight others."""
    task = make("multiplication", {"right_digits": 1})
    held_out = Fresh(task, Split.VALIDATION, 0).take(6)
    planted = [held_out[1], held_out[4]]
    file = tmp_path / "leaky.jsonl"
    files.write(file, planted + Fresh(task, Split.TRAIN, 0).take(2))
    return [f"data.file={file}", "data.source=fixed", "task.options={right_digits: 1}"], planted


def test_what_a_run_was_trained_on_is_taken_out_of_its_evaluation_and_replaced(tmp_path, leaky):
    overrides, planted = leaky
    summary = run(tmp_path / "a", *overrides, "evaluate.oversize=1.5")
    keys = {p.key for p in planted}
    before, after = evaluated(tmp_path / "a", 0), evaluated(tmp_path / "a", 2)
    assert keys < set(before), "before training nothing has leaked"
    assert keys.isdisjoint(after)
    assert after[:4] == [key for key in before if key not in keys]
    assert len(after) == 6
    assert (summary["before"]["removed"], summary["after"]["removed"]) == (0, 2)
    audits = events(tmp_path / "a", "audit")
    assert [(a["step"], a["checked"], a["removed"], a["left"]) for a in audits] == [
        (0, 9, 0, 9),
        (2, 9, 2, 7),
    ]
    assert main(["data", "audit", str(tmp_path / "a")]) == 0


def test_too_few_problems_left_is_a_sentence_and_the_weights_are_kept(tmp_path, leaky):
    overrides, _ = leaky
    with pytest.raises(
        RunError, match=r"2 of the 6 evaluation problems have been trained on.*oversize"
    ):
        run(tmp_path / "a", *overrides, "evaluate.oversize=1")
    assert (tmp_path / "a" / "checkpoints" / "step-000002" / "model.safetensors").is_file()
    assert "trained on" in events(tmp_path / "a", "failed")[0]["text"]


def test_oversizing_changes_nothing_when_nothing_leaks(tmp_path):
    for name, oversize in (("a", 1), ("b", 3)):
        run(tmp_path / name, f"evaluate.oversize={oversize}")
    one, other = (
        [
            {k: v for k, v in row.items() if k != "time"}
            for row in rollout_reader.read(tmp_path / name / "results" / "rollouts", "validation")
        ]
        for name in ("a", "b")
    )
    assert one == other
    assert events(tmp_path / "a", "audit")[-1]["checked"] == 6
    assert events(tmp_path / "b", "audit")[-1]["checked"] == 18


def test_an_audit_after_the_fact_proves_a_planted_leak(tmp_path, leaky, monkeypatch, capsys):
    """As if the run had been made by code without the guard: it evaluates what it was trained on."""
    overrides, planted = leaky
    monkeypatch.setattr(Audit, "read", lambda audit, rows: 0)
    run(tmp_path / "a", *overrides)
    monkeypatch.undo()
    assert main(["data", "audit", str(tmp_path / "a")]) == 1
    said = capsys.readouterr().out
    for problem in planted:
        assert repr(problem.question) in said
    assert "2 of the 6 problems of its evaluations" in said
    assert main(["data", "audit", str(tmp_path / "a"), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert {leak["problem"]["key"] for leak in report["leaks"]} == {p.key for p in planted}


def test_any_problem_file_can_be_checked_against_any_run(tmp_path, capsys):
    run(tmp_path / "a")
    first = next(rollout_reader.read(tmp_path / "a" / "results" / "rollouts", "train"))
    clean = Fresh(make("multiplication"), Split.VALIDATION, 5).take(3)
    files.write(tmp_path / "clean.jsonl", clean)
    foreign = {"question": first["question"].upper(), "answer": first["gold"], "source": "the web"}
    (tmp_path / "foreign.jsonl").write_text(json.dumps(foreign) + "\n")
    audit = ["data", "audit", str(tmp_path / "a"), "--file"]
    assert main([*audit, str(tmp_path / "clean.jsonl")]) == 0
    assert "No leak: none of the 3 problems" in capsys.readouterr().out
    assert main([*audit, str(tmp_path / "foreign.jsonl")]) == 1
    assert "(question)" in capsys.readouterr().out
    assert main(["data", "audit", str(tmp_path)]) == 2
    assert "not a run directory" in capsys.readouterr().err
    assert main([*audit, str(tmp_path / "none.jsonl")]) == 2


def test_what_was_asked_and_then_replaced_counts_as_asked(tmp_path):
    """Dynamic sampling did not learn from it, but training has seen its answers."""
    alike = "reward.terms={format: 1}"  # now and then, for the mock model
    run(tmp_path / "a", "learn.algorithm=dapo", "evaluate.problems=0", alike)
    record = tmp_path / "a" / "results" / "rollouts"
    kinds = {
        kind: {r["key"] for r in rollout_reader.read(record, kind)}
        for kind in ("train", "replaced")
    }
    (only_replaced,) = list(kinds["replaced"] - kinds["train"])[:1]
    asked_once = next(
        r for r in rollout_reader.read(record, "replaced") if r["key"] == only_replaced
    )
    files.write(tmp_path / "one.jsonl", [problem_of(asked_once)])
    assert main(["data", "audit", str(tmp_path / "a"), "--file", str(tmp_path / "one.jsonl")]) == 1
    held_out = Guard([problem_of(asked_once)], wanted=0)
    assert held_out.check(record)[1]["removed"] == 1


def test_only_new_steps_of_the_record_are_read(tmp_path):
    run(tmp_path / "a")
    record = tmp_path / "a" / "results" / "rollouts"
    assert {r["step"] for r in rollout_reader.read(record, "train")} == {1, 2}
    assert {r["step"] for r in rollout_reader.read(record, "train", after=1)} == {2}
    assert list(rollout_reader.read(record, "train", after=2)) == []


def test_what_was_trained_on_only_after_its_last_evaluation_is_no_leak(tmp_path, leaky):
    """Evaluated at step 0, trained on at step 1, removed at step 2: nothing to report."""
    overrides, planted = leaky
    run(tmp_path / "a", *overrides, "evaluate.oversize=2")
    keys = {r["key"] for r in rollout_reader.read(tmp_path / "a" / "results" / "rollouts", "train")}
    assert {p.key for p in planted} <= keys
    assert main(["data", "audit", str(tmp_path / "a")]) == 0
    whole = replace(planted[0], meta={})
    files.write(tmp_path / "one.jsonl", [whole])
    assert main(["data", "audit", str(tmp_path / "a"), "--file", str(tmp_path / "one.jsonl")]) == 1
