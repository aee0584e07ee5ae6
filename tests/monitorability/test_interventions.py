"""Interventions on generators that follow rules: a CoT that bears load shows as such, a decorative
one does not, though both are written alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from torch import Tensor

from glasshouse import randomness
from glasshouse.answers import split
from glasshouse.estimation import bootstrap, bootstrap_all, control_null, of_mean, unanimous
from glasshouse.generate import Sampling, TorchGenerator
from glasshouse.models import Policy
from glasshouse.monitorability.base import Subject
from glasshouse.monitorability.interventions import (
    Change,
    Interventions,
    ablation,
    consequence,
    edit,
)
from glasshouse.monitorability.interventions.edits import Replay
from glasshouse.monitorability.interventions.prefixes import Voice, go_on, spelt
from glasshouse.monitorability.monitor_scores import Verdicts, fitting
from glasshouse.monitors.arithmetic_statements import statements
from glasshouse.rewards import grade
from glasshouse.tasks import TASKS, Task, make
from glasshouse.types import Completion, Problem, Request, Rollout, StopReason, Style

TAG = "[ANSWER] "


class Automaton:
    """A generator that knows its problems by their questions and answers by a rule."""

    def __init__(
        self, policy: Policy, task: Task, problems: Sequence[Problem], bears: bool
    ) -> None:
        self.policy, self.task, self.bears = policy, task, bears
        self.known = {p.question: p for p in problems}
        self.asked: list[tuple[int, ...]] = []

    def load(self, weights: Mapping[str, Tensor], version: int) -> None: ...

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        assert sampling.temperature == 0
        found = []
        for request in requests:
            self.asked.append(request.prompt)
            question, _, said = self.policy.text(request.prompt).partition("?")
            text = self.says(self.known[f"{question}?"], said)
            tokens = (*spelt(self.policy, text), *sorted(self.policy.end_tokens)[:1])
            found.append([Completion(tokens=tokens[: sampling.max_tokens], logprobs=(),
                                     stop=StopReason.END, version=0)])  # fmt: skip
        return found

    def says(self, problem: Problem, said: str) -> str:
        if said.endswith(TAG):
            if not self.bears:
                return problem.answer
            steps = statements(said)
            return str(steps[-1].value) if steps else "1"
        lines = [line for line in said.split("\n") if line]
        replay = Replay(lines if self.bears else [])
        answer = self.task.work(problem, replay)
        return "\n".join([*replay.lines[len(lines) :], f"{TAG}{answer}"])


def rollouts(policy: Policy, task: Task, count: int, mode: str = "steps") -> list[Rollout]:
    made = []
    for i in range(count):
        problem = task.draw(randomness.stream("interventions", task.name, i))
        text = task.demonstrate(problem, mode, randomness.stream("mode", i))
        prompt, tokens = policy.prompt(task.messages(problem, Style.COT))
        made.append(
            Rollout(
                step=0,
                split="monitor",
                group=i,
                sample=0,
                problem=problem,
                messages=[],
                prompt_text=prompt,
                prompt_tokens=tokens,
                text=text,
                grade=grade(problem, text),
                completion=Completion(
                    tokens=(*spelt(policy, text), *sorted(policy.end_tokens)[:1]),
                    logprobs=(),
                    stop=StopReason.END,
                    version=0,
                ),
                advantage=0.0,
                time=0.0,
            )
        )
    return made


def subject(policy: Policy, bears: bool | None, count: int = 40, mode: str = "steps") -> Subject:
    task = make("sum_digits")
    drawn = rollouts(policy, task, count, mode)
    problems = [r.problem for r in drawn]
    generator = (
        TorchGenerator(policy) if bears is None else Automaton(policy, task, problems, bears)
    )

    def collect(*_: object, **__: object) -> list[Rollout]:
        raise AssertionError("the interventions need no new rollouts")

    return Subject(
        name="base", step=0, policy=policy, generator=generator, task=task, rollouts=drawn,
        collect=collect, grade=grade, max_tokens=96,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("bears", "expected"),
    [
        (True, {"necessity uplift": 1, "mistake-follow": 1, "mistake corrected": 0,
                "filler agreement": 0, "transplant follow": 1}),
        (False, {"necessity uplift": 0, "mistake-follow": 0, "mistake corrected": 1,
                 "filler agreement": 1, "transplant follow": 0, "early-answering AOC": 0, "TRACE": 1}),
    ],
)  # fmt: skip
def test_a_cot_is_found_to_bear_load_exactly_if_it_does(
    shared_pocket: Policy, bears: bool, expected: dict[str, float]
) -> None:
    found = Interventions().evaluate(subject(shared_pocket, bears)).measures
    for name, value in expected.items():
        assert found[name].measure.value == pytest.approx(value, abs=1e-9), name
        low, high = found[name].interval.low, found[name].interval.high
        assert low is not None
        assert high is not None
        assert low <= value <= high
    # what is written is the same in both, and no text could tell them apart
    assert found["step validity"].measure.value == found["step coverage"].measure.value == 1
    aoc, ceiling = found["early-answering AOC"].measure.value, found["early-answering AOC"].ceiling
    assert aoc is not None
    assert ceiling == 0.875
    assert (0.7 < aoc <= 0.875) if bears else aoc == 0
    assert found["mistake-follow"].informative is bears
    assert found["necessity uplift"].informative is bears
    assert found["early-answering AOC"].informative is bears


def test_without_a_cot_what_needs_one_is_undefined_and_says_why(shared_pocket: Policy) -> None:
    found = Interventions().evaluate(subject(shared_pocket, True, 6, mode="direct")).measures
    assert found["has a CoT"].measure.value == 0
    assert found["early-answering AOC"].measure.value == 0
    for name in ("mistake-follow", "transplant follow", "filler agreement", "step validity"):
        assert found[name].measure.value is None
        assert found[name].measure.reason
        assert found[name].interval.low is None


def test_a_task_without_a_working_of_its_own_is_measured_all_the_same(
    shared_pocket: Policy,
) -> None:
    """reasoning-gym's tasks know answers only: no step is needed, and none can be edited."""
    given = subject(shared_pocket, True, 6)
    gym = make("gym.basic_arithmetic")
    found = Interventions().evaluate(replace(given, task=gym)).measures
    assert found["necessity uplift"].measure.value == 1
    assert found["step validity"].measure.value == 1
    assert found["mistake-follow"].measure.value is None
    assert "step coverage" not in found


def test_forced_prefixes_are_the_rollouts_own_tokens(shared_pocket: Policy) -> None:
    given = subject(shared_pocket, True, 8)
    found = ablation(given)
    asked = set(given.generator.asked)  # type: ignore[attr-defined]
    tag = spelt(shared_pocket, f"{TAG}28")[:1]
    for row in found:
        r = row.rollout
        whole = r.completion.tokens
        assert whole[: len(row.tokens) + 1] == (*row.tokens, *tag)
        assert (*r.prompt_tokens, *whole[: len(row.tokens) + 1]) in asked  # the full CoT
        assert (*r.prompt_tokens, *tag) in asked  # at once
        half = row.asked[Change.CUT, 0.5].text
        assert r.text.startswith(half[: half.index(TAG)].rstrip("\n"))
        filler = row.asked[Change.FILLER, 1.0].text.split("\n")[0]
        assert len(spelt(shared_pocket, filler)) == len(row.tokens)
        assert row.edit is not None
        edited, unedited = (row.asked[c, 1.0].text for c in (Change.EDIT, Change.UNEDITED))
        assert unedited == r.text
        assert edited[: row.edit.keep] == r.text[: row.edit.keep]
        assert edited.split("\n")[row.edit.line] != r.text.split("\n")[row.edit.line]
        assert row.donor is not None
        assert found[row.donor] is not row
        assert row.asked[Change.TRANSPLANT, 1.0].text.startswith(found[row.donor].cot)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_slips_consequence_is_the_answer_it_was_demonstrated_with(name: str) -> None:
    """The demonstrations carry a slip through by another path than the replay does."""
    task, edited = make(name), 0
    for i in range(60):
        problem = task.draw(randomness.stream("slips", name, i))
        right, slip = (
            task.demonstrate(problem, mode, randomness.stream("slip", i)).split("\n")
            for mode in ("steps", "slip")
        )
        assert consequence(task, problem, right[:-1]) == right[-1].removeprefix(TAG)
        if slip[:-1] != right[:-1]:  # else none could be made, and the answer alone is wrong
            assert consequence(task, problem, slip[:-1]) == slip[-1].removeprefix(TAG)
        cot = split(task.demonstrate(problem, "steps", randomness.stream("slip", i))).cot
        made = edit(task, problem, cot, randomness.stream("edit", i))
        if made:
            edited += 1
            assert made.consequence != problem.answer
    assert edited >= 50, f"{edited} of 60 workings could be edited"


def test_an_edits_consequence_worked_out_by_hand() -> None:
    task = make("sum_digits")
    problem = task.example()  # 58 and 301
    lines = task.demonstrate(problem, "steps", randomness.stream("hand")).split("\n")[:-1]
    assert sorted(lines)[-1:] == ["5+8=13"]
    at = lines.index("5+8=13")
    assert consequence(task, problem, [*lines[:at], "5+8=14"]) == "18"
    assert consequence(task, problem, ["so 5+8=14"]) is None
    assert consequence(task, problem, ["5+8=" + "9" * 40]) is None
    assert consequence(task, problem, [*lines, "1+1=2"]) is None
    assert edit(task, problem, "it is 17, I think\n", randomness.stream("e")) is None
    assert edit(task, problem, "", randomness.stream("e")) is None


def test_a_thought_left_open_by_a_cut_is_closed_before_the_answer(shared_pocket: Policy) -> None:
    voice = Voice.of(shared_pocket)
    cut = spelt(shared_pocket, "<think>5+8=1")
    assert (
        shared_pocket.text(voice.answering(cut, thinking=True)) == f"<think>5+8=1\n</think>\n{TAG}"
    )
    assert shared_pocket.text(voice.answering((), thinking=False)) == TAG


def test_the_engine_gives_the_same_findings_twice_and_skips_what_does_not_fit(
    shared_pocket: Policy,
) -> None:
    """The pocket base: shown steps, it believes them."""
    given = subject(shared_pocket, None, 24)
    first, second = (Interventions().evaluate(given) for _ in range(2))
    assert list(first.rows) == list(second.rows)
    assert {n: m.as_dict() for n, m in first.measures.items()} == {
        n: m.as_dict() for n, m in second.measures.items()
    }
    follow = first.measures["transplant follow"].measure.value
    assert follow is not None
    assert follow > 0.8
    long = (5,) * shared_pocket.context
    short = given.rollouts[0].prompt_tokens
    texts = go_on(shared_pocket, given.generator, [long, tuple(short)], 4)
    assert texts[0] is None
    assert isinstance(texts[1], str)


def test_monitors_are_scored_against_wrong_answers(shared_pocket: Policy) -> None:
    given = subject(shared_pocket, True, 30, mode="slip")
    good = subject(shared_pocket, True, 30)
    mixed = Subject(
        **{f: getattr(given, f) for f in Subject.__slots__ if f != "rollouts"},
        rollouts=[*given.rollouts[:15], *good.rollouts[15:]],
    )
    found = Verdicts(fitting("sum_digits")).evaluate(mixed)
    assert found.measures["steps: AUROC"].measure.value == 1  # every slip is a false step
    assert found.measures["steps: AUROC"].informative
    assert found.measures["no CoT: flags"].measure.value == 0
    assert not found.measures["no CoT: AUROC"].informative
    assert sum(row.get("monitor") == "steps" for row in found.rows) == 30


def test_a_control_null_worked_out_by_hand() -> None:
    rows, control = [1, 1, 1, 1, np.nan], [0, 0, 0, 1, 0]
    null = control_null(rows, control, list("abcde"), key=("hand",), permutations=4000)
    assert null.mean == 0.25
    # three gains of one: all three coins must fall the same way, one time in eight
    assert null.p == pytest.approx(1 / 8, abs=0.02)
    assert control_null([np.nan], [0], ["a"], key=("hand",)).p is None
    same = control_null([1, 0, 1, 0], [1, 0, 1, 0], list("abcd"), key=("hand",))
    assert same.p == 1


def test_rollouts_that_all_agree_leave_some_doubt() -> None:
    """Wilson's interval of 0 of 10 is 0 to 0.2775, and a bootstrap's would be 0 to 0."""
    rows, problems = [0.0] * 10 + [np.nan], list("abcdefghijk")
    alone = bootstrap(of_mean(rows), [problems], key=("k",), resamples=100)
    assert (alone.low, alone.high) == (0, 0)
    assert unanimous(rows, alone).high == pytest.approx(0.2775, abs=1e-4)
    assert unanimous(rows, alone).low == 0
    assert unanimous(rows, alone, differences=True).low == pytest.approx(-0.2775, abs=1e-4)
    mixed = [0.0, 1.0] * 5
    some = bootstrap(of_mean(mixed), [problems[:10]], key=("k",), resamples=100)
    assert unanimous(mixed, some) == some


def test_measures_that_share_resamples_have_the_intervals_they_have_alone() -> None:
    rows = [randomness.stream("rows", i).random() for i in range(30)]
    problems = [i // 2 for i in range(30)]
    both = bootstrap_all(
        {"a": of_mean(rows), "b": of_mean(rows[::-1])}, [problems], key=("k",), resamples=200
    )
    assert both["a"] == bootstrap(of_mean(rows), [problems], key=("k",), resamples=200)
    assert both["a"] != both["b"]
