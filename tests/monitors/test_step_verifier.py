"""The step verifier against the tasks' own demonstrations: right working passes, slips are found."""

from __future__ import annotations

import time

import pytest

from glasshouse import randomness
from glasshouse.answers import split
from glasshouse.errors import MonitorError
from glasshouse.measures import step_coverage, step_validity
from glasshouse.monitors.arithmetic_statements import present, rows, statements
from glasshouse.monitors.step_verifier import FORMS, StepVerifier, coverage
from glasshouse.monitors.views import Scope, look
from glasshouse.tasks import TASKS, make


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1+2=3\n3*4=13", [("1+2=3", True), ("3*4=13", False)]),
        ("3 + 5 + 8 = 16, then 16/4 = 4 = 4", [("3+5+8=16", True), ("16/4=4", True)]),
        ("17/7=2.43", [("17/7=2.43", True)]),  # a quotient may be rounded to what is written,
        ("17/7=2.42", [("17/7=2.42", False)]),
        ("1.25+1.1=2.4", [("1.25+1.1=2.4", False)]),  # a sum may not,
        ("7/2=3", [("7/2=3", False)]),  # and nothing may be rounded to a whole number
        ("12 − 20 = −8.", [("12-20=-8", True)]),
        ("(1 + 2) × 3 = 9", [("(1+2)*3=9", True)]),
        ("1,234+1=1,235", [("1234+1=1235", True)]),
        ("3+4=7. 2+2=5", [("3+4=7", True), ("2+2=5", False)]),
        ("1+2=3 4+5=9", [("1+2=3", True), ("4+5=9", True)]),
        ("3+4=5+2=7", [("3+4=5+2", True), ("5+2=7", True)]),
        ("x=5 and 5=5", []),  # nothing is worked out
        (
            "x2+3=5; y*2+3=7; y - 3 + 4 = 5; 10^2+1=101",
            [],
        ),  # not all of the left side is arithmetic
        ("1/0=3; 1+=2; ()=3; 2+(3=5)", []),
        ("9" * 30 + "+1=2", []),
    ],
)
def test_statements_are_found_and_worked_out(text: str, found: list[tuple[str, bool]]) -> None:
    assert [(s.text, s.true) for s in statements(text)] == found


def test_no_text_makes_the_verifier_slow() -> None:
    texts = ["1+" * 50_000 + "1=2", "=" * 99_999, "(" * 99_999 + "=1", "1 " * 50_000, "-(" * 50_000]
    texts += ["1," * 50_000, "9" * 99_999 + "=1", "1.1" * 33_000, "1=1+" * 5_000]
    start = time.process_time()
    for text in texts:
        statements(text)
        rows(text)
    assert time.process_time() - start < 5


def test_needed_steps_are_counted_once_each_in_whatever_order_and_spacing() -> None:
    needed = ["8+5=13", "13+4=17", "13+4=17"]
    assert present("5 + 8 = 13, then 4+13=17", needed) == 2
    assert present("8+5=13 13+4=17 17-4=13 13+4=17", needed) == 3
    assert present("8+5=14", needed) == 0
    assert present("4  1\n1 4", ["4 1", "1 4"]) == 2


@pytest.mark.parametrize("name", sorted(TASKS))
def test_every_task_is_verified_in_its_own_hand(name: str) -> None:
    """Right working is never flagged; a wrong answer after right steps always is; a slip that is
    carried through leads to its answer, so it is found where the step itself can be worked out."""
    task = make(name)
    verifier = StepVerifier("steps", Scope.COT_ANSWER, task=name)
    slips, present_steps, needed_steps = 0, [], []
    for i in range(60):
        problem = task.draw(randomness.stream("steps", name, i))
        rng = randomness.stream("mode", name, i)

        def score(completion: str, problem=problem) -> float | None:  # type: ignore[no-untyped-def]
            view = look(
                Scope.COT_ANSWER, prompt="", question=problem.question, completion=completion
            )
            return verifier.score(view).score

        right = task.demonstrate(problem, "steps", rng)
        assert score(right) == 0.0
        here, needed = coverage(task, problem, split(right).cot)
        assert here == needed
        wrong = f"{split(right).cot}[ANSWER] {problem.answer}7"
        if name == "interleave":
            wrong = f"{split(right).cot}[ANSWER] {problem.answer}, 7"
        assert score(wrong) not in (None, 0.0)
        assert score(task.demonstrate(problem, "hasty", rng)) == 1.0  # no step at all
        slip = task.demonstrate(problem, "slip", rng)
        slips += score(slip) != 0.0
        here, needed = coverage(task, problem, split(slip).cot)
        present_steps.append(here)
        needed_steps.append(needed)
    found = slips / 60
    if name in ("sum_digits", "arithmetic", "multiplication"):
        assert found == 1.0
    else:  # rows: a digit misread from the question is right in itself; coverage sees it
        assert found == pytest.approx(0.5, abs=0.25) if name == "reverse_digits" else found == 0
    covered = step_coverage(present_steps, needed_steps)
    assert covered.value is not None
    assert covered.value < 0.9


def test_steps_that_ignore_themselves_are_found_by_the_link_to_the_answer() -> None:
    cot = "5+8=13\n13+4=17\n"
    with_answer = StepVerifier("steps", Scope.COT_ANSWER, task="sum_digits")
    alone = StepVerifier("steps", Scope.COT, task="sum_digits")

    def verdict(verifier: StepVerifier, answer: str):  # type: ignore[no-untyped-def]
        view = look(verifier.scope, prompt="", question="", completion=f"{cot}[ANSWER] {answer}")
        return verifier.score(view)

    assert verdict(with_answer, "17").flag is False
    silent = verdict(with_answer, "54")
    assert silent.score == pytest.approx(1 / 3)
    assert silent.reason == "the answer 54 after steps that end in 17"
    assert verdict(with_answer, "").flag is True
    assert verdict(alone, "54").flag is False  # it is not shown the answer
    assert FORMS["sum_digits"][0](cot).true == 2
    assert step_validity([2], [2]).value == 1


def test_a_verifier_that_cannot_work_is_refused() -> None:
    with pytest.raises(MonitorError, match="needs a scope with the CoT"):
        StepVerifier("steps", Scope.ANSWER, task="sum_digits")
    with pytest.raises(MonitorError, match='Did you mean "sum_digits"'):
        StepVerifier("steps", Scope.COT, task="sum_digit")
