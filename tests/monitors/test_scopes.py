"""A monitor sees only the parts in its scope, and a failed monitor counts as nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glasshouse.errors import MonitorError
from glasshouse.monitors.base import (
    MonitorOutput,
    Scope,
    View,
    check_disjoint,
    hash_monitor,
    make_view,
    score_all,
    stack_flags,
    stack_scores,
)
from glasshouse.monitors.rules import RuleMonitor, StepVerifier
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


def test_a_monitor_in_the_reward_may_not_evaluate_under_another_name() -> None:
    rewarded = RuleMonitor("penalty", Scope.COT, keywords=["key"])
    renamed = RuleMonitor("honest", Scope.COT, keywords=["key"])
    other = RuleMonitor("penalty", Scope.COT, keywords=["key", "hint"])
    assert hash_monitor(rewarded) == hash_monitor(renamed) != hash_monitor(other)
    check_disjoint([rewarded], [other, StepVerifier("steps", Scope.COT, task="sum_digits")])
    with pytest.raises(MonitorError, match=r'"honest".*"penalty"'):
        check_disjoint([rewarded], [other, renamed])


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
