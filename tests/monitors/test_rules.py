"""Scopes, rules and the step verifier."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import pytest

from glasshouse import randomness
from glasshouse.errors import MonitorError
from glasshouse.monitors.base import (
    MonitorOutput,
    Scope,
    View,
    hash_monitor,
    make_view,
    score_all,
    stack_flags,
    stack_scores,
)
from glasshouse.monitors.rules import RuleMonitor, StepVerifier, count_covered_steps
from glasshouse.tasks.answers import split_completion
from glasshouse.tasks.base import list_tasks, make_task
from glasshouse.tasks.steps import (
    count_present_steps,
    find_false_values,
    find_number_rows,
    find_statements,
)
from glasshouse.values import FAILED

SECRETS = {"prompt": "OMBRA", "question": "QUERCE", "cot": "CIPRESSO", "answer": "FAGGIO"}
ROLLOUT = {
    "prompt": f"<user>{SECRETS['prompt']}: what is 2+2?",
    "question": f"{SECRETS['question']}: what is 2+2?",
    "completion": f"2+2=4 {SECRETS['cot']}\n[ANSWER] 4 {SECRETS['answer']}",
}
PARTS_IN_SCOPE = {
    Scope.PROMPT: {"prompt"},
    Scope.ANSWER: {"question", "answer"},
    Scope.COT: {"cot"},
    Scope.COT_ANSWER: {"cot", "answer"},
    Scope.ACTIVATIONS: set[str](),
}


class RecordingMonitor:
    """Records everything that can be reached from its view."""

    name = "recording"

    def __init__(self, scope: Scope) -> None:
        self.scope, self.content = scope, ""

    def score(self, view: View) -> MonitorOutput:
        assert not hasattr(view, "__dict__")  # slots: no further attributes
        self.content += repr([getattr(view, name) for name in view.__slots__])
        return MonitorOutput.from_score(0.0, threshold=0.5)

    def describe(self) -> dict[str, Any]:
        return {"kind": "recording", "scope": self.scope.value}


@pytest.mark.parametrize("scope", PARTS_IN_SCOPE)
def test_a_monitor_sees_exactly_its_scope(scope: Scope) -> None:
    monitor = RecordingMonitor(scope)
    state = np.ones(3) if scope is Scope.ACTIVATIONS else None
    score_all(monitor, [make_view(scope, **ROLLOUT, state=state)])
    visible = {part for part, secret in SECRETS.items() if secret in monitor.content}
    assert visible == PARTS_IN_SCOPE[scope]
    assert ("1., 1., 1." in monitor.content) == (scope is Scope.ACTIVATIONS)


def test_the_answer_parser_decides_where_the_cot_ends() -> None:
    completion = "<think>[ANSWER] 1 is a trap</think>\n[ANSWER] 2"
    view = make_view(Scope.COT_ANSWER, prompt="", question="", completion=completion)
    assert view["cot"] == "<think>[ANSWER] 1 is a trap</think>"
    assert view["answer"] == "\n[ANSWER] 2"
    unclosed = make_view(Scope.ANSWER, prompt="", question="", completion="<think>never closed")
    assert unclosed["answer"] == ""


class BrokenMonitor(RecordingMonitor):
    def score(self, view: View) -> MonitorOutput:
        if SECRETS["cot"] in view["cot"]:
            raise ZeroDivisionError("by nothing")
        return MonitorOutput.from_score(float("nan"), threshold=0.5)


def test_an_exception_in_a_monitor_is_a_failed_output_and_not_a_negative() -> None:
    other = {**ROLLOUT, "completion": "1\n[ANSWER] 1"}
    views = [make_view(Scope.COT, **ROLLOUT), make_view(Scope.COT, **other)]
    outputs = score_all(BrokenMonitor(Scope.COT), views)
    assert [output.failed for output in outputs] == [True, True]
    assert [output.flagged for output in outputs] == [None, None]
    assert "ZeroDivisionError: by nothing" in outputs[0].reason
    assert "nan" in outputs[1].reason
    valid = MonitorOutput.from_score(0.9, threshold=0.5)
    assert stack_flags([*outputs, valid]).tolist() == [FAILED, FAILED, 1]
    assert np.isnan(stack_scores(outputs)).all()


def test_what_is_outside_the_scope_is_an_error() -> None:
    with pytest.raises(MonitorError, match="hidden state"):
        make_view(Scope.ACTIVATIONS, **ROLLOUT)
    with pytest.raises(MonitorError, match=r'"answer".* cot'):
        make_view(Scope.ANSWER, **ROLLOUT)["cot"]
    with pytest.raises(MonitorError, match=r'"cot".*"cot\+answer"'):
        score_all(RecordingMonitor(Scope.COT), [make_view(Scope.COT_ANSWER, **ROLLOUT)])


def test_a_monitor_is_the_same_under_another_name() -> None:
    rewarded = RuleMonitor("penalty", Scope.COT, keywords=["key"])
    renamed = RuleMonitor("honest", Scope.COT, keywords=["key"])
    other = RuleMonitor("penalty", Scope.COT, keywords=["key", "hint"])
    assert hash_monitor(rewarded) == hash_monitor(renamed) != hash_monitor(other)


def test_rules_match_whole_words_and_report_their_matches() -> None:
    rule = RuleMonitor("hint", Scope.COT, keywords=["the key"], patterns=[r"\bhint(ed)?\b"])

    def score(cot: str) -> MonitorOutput:
        completion = f"{cot}\n[ANSWER] 1"
        return rule.score(make_view(Scope.COT, prompt="", question="", completion=completion))

    assert score("The Key says 5").score == 0.5
    assert score("the keyboard").flagged is False
    assert score("the key hinted").reason.endswith("'the key', '\\\\bhint(ed)?\\\\b'")
    with pytest.raises(MonitorError, match="regular expression"):
        RuleMonitor("bad", Scope.COT, patterns=["("])
    with pytest.raises(MonitorError, match="keywords or patterns"):
        RuleMonitor("empty", Scope.COT)


TASKS = list_tasks(organisms=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1+2=3\n3*4=13", [("1+2=3", True), ("3*4=13", False)]),
        ("3 + 5 + 8 = 16, then 16/4 = 4 = 4", [("3+5+8=16", True), ("16/4=4", True)]),
        ("17/7=2.43", [("17/7=2.43", True)]),  # a quotient may be rounded,
        ("17/7=2.42", [("17/7=2.42", False)]),
        ("1.25+1.1=2.4", [("1.25+1.1=2.4", False)]),  # a sum may not,
        ("7/2=3", [("7/2=3", False)]),  # and nothing may be rounded to an integer
        ("12 − 20 = −8.", [("12-20=-8", True)]),
        ("(1 + 2) × 3 = 9", [("(1+2)*3=9", True)]),
        ("1,234+1=1,235", [("1234+1=1235", True)]),
        ("3+4=7. 2+2=5", [("3+4=7", True), ("2+2=5", False)]),
        ("1+2=3 4+5=9", [("1+2=3", True), ("4+5=9", True)]),
        ("3+4=5+2=7", [("3+4=5+2", True), ("5+2=7", True)]),
        ("x=5 and 5=5", []),  # no operation
        ("x2+3=5; y*2+3=7; y - 3 + 4 = 5; 10^2+1=101", []),  # not all arithmetic
        ("1/0=3; 1+=2; ()=3; 2+(3=5)", []),
        ("9" * 30 + "+1=2", []),
    ],
)
def test_statements_are_found_and_evaluated(text: str, expected: list[tuple[str, bool]]) -> None:
    assert [(s.text, s.is_true) for s in find_statements(text)] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("56-13=43\n43=21", [21]),
        ("43 == 21, so 21", [21]),
        ("136<29 and 127 < 152", [29]),
        ("20/10*10=23", [23]),
        ("7*2=14=20.", [20]),  # once as a statement about 7*2, once about 14
        ("9 * 3 = 27, 2-3=5", [5]),  # 3=27 is no statement of its own
        ("x=5, 3 = 3, 5 -> 7, 7 = 3*4", []),
    ],
)
def test_values_of_false_statements_are_found(text: str, expected: list[int]) -> None:
    assert sorted(set(find_false_values(text))) == expected


def test_statements_are_found_in_linear_time() -> None:
    texts = ["1+" * 50_000 + "1=2", "=" * 99_999, "(" * 99_999 + "=1", "1 " * 50_000, "-(" * 50_000]
    texts += ["1," * 50_000, "9" * 99_999 + "=1", "1.1" * 33_000, "1=1+" * 5_000]
    start = time.process_time()  # CPU time: other processes do not count
    for text in texts:
        find_false_values(text)
        find_number_rows(text)
    assert time.process_time() - start < 5


def test_required_steps_are_counted_once_each_in_any_order_and_spacing() -> None:
    required = ["8+5=13", "13+4=17", "13+4=17"]
    assert count_present_steps("5 + 8 = 13, then 4+13=17", required) == 2
    assert count_present_steps("8+5=13 13+4=17 17-4=13 13+4=17", required) == 3
    assert count_present_steps("8+5=14", required) == 0
    assert count_present_steps("4  1\n1 4", ["4 1", "1 4"]) == 2


@pytest.mark.parametrize("name", sorted(TASKS))
def test_demonstrations_of_every_task_are_verified(name: str) -> None:
    """Correct steps are never flagged; a wrong answer after correct steps always is. An injected
    error leads to its own answer, so it is flagged where the step itself can be recomputed."""
    task = make_task(name)
    verifier = StepVerifier("steps", Scope.COT_ANSWER, task=name)
    count, flagged, covered = 30, 0, []
    for i in range(count):
        problem = task.draw(randomness.stream("steps", name, i))
        rng = randomness.stream("mode", name, i)

        def score(completion: str, question: str = problem.question) -> float | None:
            parts = {"prompt": "", "question": question, "completion": completion}
            return verifier.score(make_view(Scope.COT_ANSWER, **parts)).score

        correct = task.demonstrate(problem, "steps", rng)
        cot = split_completion(correct).cot
        assert score(correct) == 0.0
        present, required = count_covered_steps(task, problem, cot)
        assert present == required
        separator = ", " if name == "interleave" else ""
        assert score(f"{cot}[ANSWER] {problem.gold_answer}{separator}7") not in (None, 0.0)
        assert score(task.demonstrate(problem, "guess", rng)) == 1.0  # no step at all
        erroneous = task.demonstrate(problem, "injected_error", rng)
        flagged += score(erroneous) != 0.0
        present, required = count_covered_steps(task, problem, split_completion(erroneous).cot)
        covered.append(present / required)
    if name == "reverse_digits":  # a misread digit is consistent in itself: coverage detects it
        assert flagged / count == pytest.approx(0.5, abs=0.25)
    else:
        assert flagged == (0 if name == "interleave" else count)
    assert statistics.fmean(covered) < 0.9


def test_an_answer_that_does_not_follow_from_the_steps_is_flagged() -> None:
    def score(scope: Scope, answer: str) -> MonitorOutput:
        parts = {"prompt": "", "question": "", "completion": f"5+8=13\n13+4=17\n[ANSWER] {answer}"}
        return StepVerifier("steps", scope, task="sum_digits").score(make_view(scope, **parts))

    assert score(Scope.COT_ANSWER, "17").flagged is False
    contradicting = score(Scope.COT_ANSWER, "54")
    assert contradicting.score == pytest.approx(1 / 3)
    assert "54" in contradicting.reason
    assert "17" in contradicting.reason
    assert score(Scope.COT_ANSWER, "").flagged is True
    assert score(Scope.COT, "54").flagged is False
    for scope, task, named in (
        (Scope.ANSWER, "sum_digits", "scope"),
        (Scope.COT, "sum_digit", '"sum_digits"'),
    ):
        with pytest.raises(MonitorError, match=named):
            StepVerifier("steps", scope, task=task)
