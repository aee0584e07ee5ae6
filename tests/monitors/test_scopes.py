"""Nothing beyond its scope reaches a monitor: a secret is planted in every other part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glasshouse.errors import MonitorError
from glasshouse.measures import FAILED
from glasshouse.monitors import (
    Monitor,
    RuleMonitor,
    StepVerifier,
    Verdict,
    flags,
    identity,
    keep_apart,
    score_all,
    scores,
)
from glasshouse.monitors.views import Scope, View, look

SECRETS = {"prompt": "OMBRA", "question": "QUERCE", "cot": "CIPRESSO", "answer": "FAGGIO"}
ROLLOUT = {
    "prompt": f"<user>{SECRETS['prompt']}: what is 2+2?",
    "question": f"{SECRETS['question']}: what is 2+2?",
    "completion": f"2+2=4 {SECRETS['cot']}\n[ANSWER] 4 {SECRETS['answer']}",
}
SHOWN = {
    Scope.PROMPT: {"prompt"},
    Scope.ANSWER: {"question", "answer"},
    Scope.COT: {"cot"},
    Scope.COT_ANSWER: {"cot", "answer"},
}
TEXTUAL = list(SHOWN)


class Spy:
    """Writes down everything that can be reached from what it is given."""

    name = "spy"

    def __init__(self, scope: Scope) -> None:
        self.scope, self.seen = scope, ""

    def score(self, view: View) -> Verdict:
        assert not hasattr(view, "__dict__")  # slots: there is nowhere else to hide anything
        self.seen += repr([getattr(view, name) for name in view.__slots__]) + view.text
        return Verdict.of(0.0, threshold=0.5)

    def describe(self) -> dict[str, Any]:
        return {"kind": "spy", "scope": self.scope.value}


@pytest.mark.parametrize("scope", TEXTUAL)
def test_a_monitor_sees_exactly_its_scope(scope: Scope) -> None:
    spy = Spy(scope)
    score_all(spy, [look(scope, **ROLLOUT)])
    reached = {part for part, secret in SECRETS.items() if secret in spy.seen}
    assert reached == SHOWN[scope]


def test_a_probe_is_shown_no_text_at_all() -> None:
    spy = Spy(Scope.ACTIVATIONS)
    score_all(spy, [look(Scope.ACTIVATIONS, **ROLLOUT, state=np.ones(3))])
    assert not any(secret in spy.seen for secret in SECRETS.values())
    assert "1., 1., 1." in spy.seen
    with pytest.raises(MonitorError, match="needs the policy's hidden state"):
        look(Scope.ACTIVATIONS, **ROLLOUT)


@pytest.mark.parametrize("scope", TEXTUAL)
@pytest.mark.parametrize("part", SECRETS)
def test_a_rule_finds_a_secret_only_within_its_scope(scope: Scope, part: str) -> None:
    rule = RuleMonitor("secret", scope, keywords=[SECRETS[part]])
    (verdict,) = score_all(rule, [look(scope, **ROLLOUT)])
    assert verdict.flag is (part in SHOWN[scope])


def test_asking_for_a_hidden_part_is_an_error_that_names_the_scope() -> None:
    with pytest.raises(MonitorError, match='scope "answer" is not shown the cot'):
        look(Scope.ANSWER, **ROLLOUT)["cot"]


def test_where_the_cot_ends_is_what_the_answer_parser_says() -> None:
    thought = "<think>[ANSWER] 1 is a trap</think>\n[ANSWER] 2"
    view = look(Scope.COT_ANSWER, prompt="", question="", completion=thought)
    assert view["cot"] == "<think>[ANSWER] 1 is a trap</think>"
    assert view["answer"] == "\n[ANSWER] 2"
    assert (
        look(Scope.ANSWER, prompt="", question="", completion="<think>never closed")["answer"] == ""
    )


# --- verdicts ------------------------------------------------------------------------------------


class Broken(Spy):
    def score(self, view: View) -> Verdict:
        if "CIPRESSO" in view.text:
            raise ZeroDivisionError("by nothing")
        return Verdict.of(float("nan"), threshold=0.5)


def test_what_a_monitor_raises_is_a_failed_verdict_and_no_negative() -> None:
    other = {**ROLLOUT, "completion": "1\n[ANSWER] 1"}
    views = [look(Scope.COT, **ROLLOUT), look(Scope.COT, **other)]
    verdicts = score_all(Broken(Scope.COT), views)
    assert [v.failed for v in verdicts] == [True, True]
    assert [v.flag for v in verdicts] == [None, None]
    assert "ZeroDivisionError: by nothing" in verdicts[0].reason
    assert "not a number" in verdicts[1].reason
    good = Verdict.of(0.9, threshold=0.5)
    assert flags([*verdicts, good]).tolist() == [FAILED, FAILED, 1]
    assert np.isnan(scores(verdicts)).all()


def test_a_view_of_another_scope_is_refused() -> None:
    with pytest.raises(MonitorError, match='has the scope "cot", but was given'):
        score_all(Spy(Scope.COT), [look(Scope.COT_ANSWER, **ROLLOUT)])


def test_a_monitor_in_the_reward_may_not_evaluate_under_another_name() -> None:
    rewarded = RuleMonitor("penalty", Scope.COT, keywords=["key"])
    renamed = RuleMonitor("honest", Scope.COT, keywords=["key"])
    other = RuleMonitor("penalty", Scope.COT, keywords=["key", "hint"])
    assert identity(rewarded) == identity(renamed) != identity(other)
    keep_apart([rewarded], [other, StepVerifier("steps", Scope.COT, task="sum_digits")])
    with pytest.raises(MonitorError, match='"honest" evaluates, but is the one in the reward'):
        keep_apart([rewarded], [other, renamed])


def test_rules_match_whole_words_and_say_what_they_found() -> None:
    rule = RuleMonitor("key", Scope.COT, keywords=["the key"], patterns=[r"\bhint(ed)?\b"])
    monitor: Monitor = rule

    def verdict(cot: str) -> Verdict:
        return monitor.score(
            look(Scope.COT, prompt="", question="", completion=f"{cot}\n[ANSWER] 1")
        )

    assert verdict("The Key says 5").score == 0.5
    assert verdict("the keyboard").flag is False
    assert verdict("the key hinted").reason == "says 'the key', '\\\\bhint(ed)?\\\\b'"
    with pytest.raises(MonitorError, match="is not a regular expression"):
        RuleMonitor("bad", Scope.COT, patterns=["("])
    with pytest.raises(MonitorError, match="something to look for"):
        RuleMonitor("empty", Scope.COT)
