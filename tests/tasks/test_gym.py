"""reasoning-gym's datasets as tasks."""

import random
import sys

import pytest

from glasshouse.errors import TaskError
from glasshouse.rollout.grading import grade_completion
from glasshouse.rollout.self_check import check_task
from glasshouse.tasks import gym
from glasshouse.tasks.base import make_task
from glasshouse.types import AnswerKind, Style


def test_without_the_extra_the_error_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(TaskError, match=r"\[gym\]"):
        make_task("gym.chain_sum")


@pytest.fixture(autouse=True)
def _installed(request):
    if "without_the_extra" not in request.node.name:
        pytest.importorskip("reasoning_gym")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gym.chain_sum", AnswerKind.NUMBER),
        ("gym.decimal_chain_sum", AnswerKind.NUMBER),
        ("gym.list_functions", AnswerKind.SEQUENCE),
        ("gym.number_sorting", AnswerKind.TEXT),
        ("gym.syllogism", AnswerKind.TEXT),
        ("gym.caesar_cipher", AnswerKind.TEXT),
        ("gym.family_relationships", AnswerKind.TEXT),
    ],
)
def test_dataset_passes_the_self_check(name, kind):
    task = make_task(name)
    proof = check_task(task, count=30)
    assert proof.passed, str(proof)
    assert proof.correct_completions == 60
    assert proof.distinct > 20
    assert task.example().answer_kind is kind
    assert task.size() is None


def test_global_random_state_has_no_effect_and_is_restored():
    """`list_functions` uses the global generator."""
    task = make_task("gym.list_functions")
    random.seed(1)
    first = [task.problem_at("any", i) for i in range(60)]
    expected = random.random()
    random.seed(1)
    assert random.random() == expected
    assert first == [task.problem_at("any", i) for i in range(60)]


@pytest.mark.parametrize(
    ("answer", "kind", "decimals", "gold"),
    [
        ("-61", AnswerKind.NUMBER, 0, "-61"),
        ("3.250", AnswerKind.NUMBER, 3, "3.250"),
        ("[2, 6,  9]", AnswerKind.SEQUENCE, 0, "2, 6, 9"),
        ("[-1]", AnswerKind.SEQUENCE, 0, "-1"),
        ("[]", AnswerKind.TEXT, 0, "[]"),
        ("[[1, 2], [3]]", AnswerKind.TEXT, 0, "[[1, 2], [3]]"),
        ("['1', '2']", AnswerKind.TEXT, 0, "['1', '2']"),
        ("007", AnswerKind.TEXT, 0, "007"),
        ("1e+19", AnswerKind.TEXT, 0, "1e+19"),
        ("1/2", AnswerKind.TEXT, 0, "1/2"),
        ("True", AnswerKind.TEXT, 0, "True"),
    ],
)
def test_answer_kind_follows_from_the_answer(answer, kind, decimals, gold):
    problem = make_task("gym.chain_sum").make_problem("?", answer)
    assert (problem.answer_kind, problem.decimals, problem.gold_answer) == (kind, decimals, gold)
    assert grade_completion(problem, f"[ANSWER] {answer}").strict


def test_items_with_long_or_multiline_answers_are_skipped(monkeypatch):
    answers = iter(["a\nb", "", None, "x" * 500, "fine"])
    task = make_task("gym.chain_sum")
    monkeypatch.setattr(task, "_item", lambda seed: {"question": "?", "answer": next(answers)})
    assert task.problem_at("any", 0).gold_answer == "fine"
    monkeypatch.setattr(task, "_item", lambda seed: {"question": "?", "answer": "a\nb"})
    with pytest.raises(TaskError, match="cannot be graded"):
        task.problem_at("any", 0)


def test_options_are_passed_to_the_dataset_and_its_output_is_suppressed(capsys):
    task = make_task("gym.chain_sum", {"min_terms": 2, "max_terms": 2})
    questions = [task.problem_at("any", i).question for i in range(20)]
    assert {q.count(" + ") + q.count(" - ") for q in questions} == {1}
    assert len(set(questions)) == 20  # item 1 of seed 4 is not item 0 of seed 5
    assert task.options.model_dump() == {"min_terms": 2, "max_terms": 2}
    assert list(task.modes) == ["direct"]
    system, _ = task.messages(task.example(), Style.COT)
    assert "step by step" in system["content"]
    assert "Example" not in system["content"]
    make_task("gym.bf")
    assert capsys.readouterr().out == ""
    # a misspelt name would exclude nothing
    assert gym._dataset_registry().keys() >= gym.WHY_EXCLUDED.keys()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gym.chain_sums", {}, '"chain_sums".*"chain_sum"'),
        ("gym.countdown", {}, "several answers"),
        ("gym.sudoku", {}, "grids"),
        ("gym.ransom_note", {}, "different processes"),
        ("gym.composite", {}, "mixture"),
        ("gym.chain_sum", {"max_term": 3}, '"max_term".*"max_terms"'),
        ("gym.chain_sum", {"max_terms": 1}, "max_terms must be >= min_terms"),
        ("gym.chain_sum", {"max_terms": "many"}, "many"),
        ("gym.chain_sum", {"seed": 1}, '"seed"'),
    ],
)
def test_invalid_dataset_or_option_is_a_task_error(name, options, message):
    with pytest.raises(TaskError, match=message):
        make_task(name, options)
