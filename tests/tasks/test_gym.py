"""reasoning-gym's data sets as tasks: our seeds, keys and grading."""

import builtins
import random

import pytest

from glasshouse.data import Fresh, Split, split_of
from glasshouse.errors import TaskError
from glasshouse.rewards import grade
from glasshouse.rewards.self_check import validate
from glasshouse.tasks import gym, make
from glasshouse.types import AnswerKind, Style


def test_without_the_extra_the_error_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def absent(name, *args, **kwargs):
        if name.startswith("reasoning_gym"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(TaskError, match=r"pip install .*glasshouse\[gym\].*reasoning-gym==0.1.25"):
        make("gym.chain_sum")


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
def test_a_data_set_proves_itself_like_any_task(name, kind):
    task = make(name)
    proof = validate(task, count=30)
    assert proof.holds, str(proof)
    assert proof.right == 60
    assert proof.distinct > 20
    assert task.example().kind is kind
    assert task.size() is None


def test_a_wrong_answer_is_refused():
    problem = make("gym.chain_sum").example()
    verdict = grade(problem, f"[ANSWER] {int(problem.answer) + 1}")
    assert not verdict.lenient
    assert not verdict.strict


def test_a_problem_is_a_function_of_its_number():
    first = [make("gym.chain_sum").at("any", i) for i in range(20)]
    assert first == [make("gym.chain_sum").at("any", i) for i in range(20)]


def test_what_the_global_generator_did_before_changes_nothing_and_it_is_left_as_it_was():
    """`list_functions` draws from it."""
    task = make("gym.list_functions")
    random.seed(1)
    first = [task.at("any", i) for i in range(60)]
    here = random.random()
    random.seed(1)
    assert random.random() == here
    assert first == [task.at("any", i) for i in range(60)]


def test_what_a_data_set_prints_is_not_shown(capsys):
    make("gym.bf")
    assert capsys.readouterr().out == ""


def test_neighbouring_numbers_share_no_problem():
    """`Random(seed + idx)` would make item 1 of seed 4 item 0 of seed 5."""
    task = make("gym.basic_arithmetic", {"min_digits": 3, "max_digits": 4})
    assert len({task.at("any", i).key for i in range(200)}) == 200


def test_the_key_is_the_question_alone():
    task = make("gym.chain_sum")
    assert task.ask("1 + 1 = ?", "2").key == task.ask("1 + 1 = ?", "2").key
    assert task.ask("1 + 1 = ?", "2").key != task.ask("1 + 2 = ?", "2").key


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
def test_the_kind_follows_from_the_answer_and_the_gold_is_accepted(answer, kind, decimals, gold):
    problem = make("gym.chain_sum").ask("?", answer)
    assert (problem.kind, problem.decimals, problem.answer) == (kind, decimals, gold)
    assert grade(problem, f"[ANSWER] {answer}").strict


def test_answers_that_do_not_fit_on_a_line_are_passed_over(monkeypatch):
    answers = iter(["a\nb", "", None, "x" * 500, "fine"])
    task = make("gym.chain_sum")
    monkeypatch.setattr(task, "_item", lambda seed: {"question": "?", "answer": next(answers)})
    assert task.at("any", 0).answer == "fine"
    monkeypatch.setattr(task, "_item", lambda seed: {"question": "?", "answer": "a\nb"})
    with pytest.raises(TaskError, match="cannot be graded"):
        task.at("any", 0)


def test_options_are_the_data_sets_own():
    task = make("gym.chain_sum", {"min_terms": 2, "max_terms": 2})
    for i in range(20):
        question = task.at("any", i).question
        assert question.count(" + ") + question.count(" - ") == 1
    assert task.describe()["options"] == {"min_terms": 2, "max_terms": 2}


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("gym.chain_sums", {}, 'no data set "chain_sums".*Did you mean "chain_sum"'),
        ("gym.countdown", {}, "other answers than its gold ones are right too"),
        ("gym.sudoku", {}, "grids of several lines"),
        ("gym.ransom_note", {}, "in another process"),
        ("gym.composite", {}, "a mixture of others"),
        ("gym.chain_sum", {"max_term": 3}, 'no option "max_term".*Did you mean "max_terms"'),
        ("gym.chain_sum", {"max_terms": 1}, "max_terms must be >= min_terms"),
        ("gym.chain_sum", {"max_terms": "many"}, "could not make a problem.*many"),
        ("gym.chain_sum", {"seed": 1}, '"seed" is set by Glasshouse'),
    ],
)
def test_mistakes_are_sentences(name, options, says):
    with pytest.raises(TaskError, match=says):
        make(name, options)


def test_what_is_left_out_exists():
    """A name that reasoning-gym no longer has would hide a misspelling."""
    assert gym._registry().keys() >= gym.MANY_ANSWERS | gym.GRIDS | gym.UNSTABLE


def test_only_direct_answers_are_demonstrated_and_prompts_show_no_working():
    task = make("gym.chain_sum")
    assert list(task.modes) == ["direct"]
    system, _ = task.messages(task.example(), Style.COT)
    assert "step by step" in system["content"]
    assert "Example" not in system["content"]


def test_fresh_problems_of_a_space_without_numbers_never_repeat_nor_leak():
    stream = Fresh(make("gym.gcd"), Split.VALIDATION, seed=0)
    problems = stream.take(10)
    assert {split_of(p) for p in problems} == {Split.VALIDATION}
    state = stream.state()
    after = stream.take(10)
    assert len({p.key for p in problems + after}) == 20
    again = Fresh(make("gym.gcd"), Split.VALIDATION, seed=0)
    again.restore(state)
    assert again.take(10) == after
