"""Interventions on rule-based generators: a load-bearing CoT is measured as such, a decorative one,
although written alike, is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from torch import Tensor

from glasshouse import randomness
from glasshouse.errors import TaskError
from glasshouse.generate.torch_engine import TorchGenerator
from glasshouse.measurement.columns import own_monitors
from glasshouse.measurement.evaluations import EvaluatedCheckpoint
from glasshouse.measurement.interventions.edits import Replay, implied_answer, make_edit
from glasshouse.measurement.interventions.evaluation import InterventionEvaluation
from glasshouse.measurement.interventions.prefixes import PrefixBuilder, greedy_continue, tokenize
from glasshouse.measurement.interventions.truncation import InterventionKind, ablate
from glasshouse.measurement.monitor_evaluation import MonitorEvaluation
from glasshouse.models.policy import Policy
from glasshouse.rollout.grading import grade
from glasshouse.tasks.answers.extraction import split_completion
from glasshouse.tasks.base import Task, list_tasks, make_task
from glasshouse.tasks.steps import Scratchpad, find_statements
from glasshouse.types import (
    Completion,
    FinishReason,
    Problem,
    Request,
    Rollout,
    SamplingParams,
    Style,
)

TASKS = list_tasks(organisms=False)

TAG = "[ANSWER] "


class RuleGenerator:
    """Recognises problems by their questions. With `uses_cot` it continues from the steps in the
    prefix; otherwise it ignores them."""

    def __init__(
        self, policy: Policy, task: Task, problems: Sequence[Problem], uses_cot: bool
    ) -> None:
        self.policy, self.task, self.uses_cot = policy, task, uses_cot
        self.problems = {p.question: p for p in problems}
        self.prompts: list[tuple[int, ...]] = []

    def load(self, weights: Mapping[str, Tensor], version: int) -> None: ...

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams
    ) -> list[list[Completion]]:
        assert sampling.temperature == 0
        groups = []
        for request in requests:
            self.prompts.append(request.prompt)
            question, _, prefix = self.policy.decode(request.prompt).partition("?")
            text = self.complete(self.problems[f"{question}?"], prefix)
            tokens = (*tokenize(self.policy, text), *sorted(self.policy.end_tokens)[:1])
            groups.append(
                [
                    Completion(
                        tokens=tokens[: sampling.max_tokens],
                        logprobs=(),
                        length=len(tokens),
                        finish_reason=FinishReason.END,
                        policy_version=0,
                    )
                ]
            )
        return groups

    def complete(self, problem: Problem, prefix: str) -> str:
        if prefix.endswith(TAG):
            if not self.uses_cot:
                return problem.gold_answer
            steps = find_statements(prefix)
            return str(steps[-1].value) if steps else "1"
        lines = [line for line in prefix.split("\n") if line]
        replay = Replay(lines if self.uses_cot else [])
        answer = self.task.solve(problem, replay)
        return "\n".join([*replay.lines[len(lines) :], f"{TAG}{answer}"])


def make_rollouts(policy: Policy, task: Task, count: int, mode: str) -> list[Rollout]:
    rollouts = []
    for i in range(count):
        problem = task.draw(randomness.stream("interventions", task.name, i))
        text = task.demonstrate(problem, mode, randomness.stream("mode", i))
        prompt, tokens = policy.encode_prompt(task.messages(problem, Style.COT))
        completion = Completion(
            tokens=(*tokenize(policy, text), *sorted(policy.end_tokens)[:1]), logprobs=(),
            length=len(tokenize(policy, text)) + 1, finish_reason=FinishReason.END, policy_version=0,
        )  # fmt: skip
        rollouts.append(
            Rollout(
                step=0, split="monitor", group=i, sample=0, problem=problem, messages=[],
                prompt=prompt, prompt_tokens=tokens, text=text, grade=grade(problem, text),
                completion=completion, advantage=0.0, time=0.0,
            )
        )  # fmt: skip
    return rollouts


def make_checkpoint(
    policy: Policy, uses_cot: bool | None, count: int = 30, mode: str = "steps"
) -> EvaluatedCheckpoint:
    """`uses_cot`: of the rule-based generator; None: the policy generates."""
    task = make_task("sum_digits")
    rollouts = make_rollouts(policy, task, count, mode)
    generator = (
        TorchGenerator(policy)
        if uses_cot is None
        else RuleGenerator(policy, task, [r.problem for r in rollouts], uses_cot)
    )

    def collect(*_: object, **__: object) -> list[Rollout]:
        raise AssertionError("the interventions need no new rollouts")

    return EvaluatedCheckpoint(
        name="base", step=0, policy=policy, generator=generator, task=task, rollouts=rollouts,
        collect=collect, grade=grade, max_tokens=96,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("uses_cot", "expected"),
    [
        (True, {"necessity_uplift": 1, "mistake_follow": 1, "mistake_corrected": 0,
                "filler_agreement": 0, "transplant_follow": 1}),
        (False, {"necessity_uplift": 0, "mistake_follow": 0, "mistake_corrected": 1,
                 "filler_agreement": 1, "transplant_follow": 0, "early_answering_aoc": 0, "trace": 1}),
    ],
)  # fmt: skip
def test_a_cot_is_measured_as_load_bearing_exactly_if_it_is(
    shared_pocket: Policy, uses_cot: bool, expected: dict[str, float]
) -> None:
    checkpoint = make_checkpoint(shared_pocket, uses_cot)
    measures = InterventionEvaluation().evaluate(checkpoint).measures
    for name, value in expected.items():
        assert measures[name].value == pytest.approx(value, abs=1e-9), name
        low, high = measures[name].low, measures[name].high
        assert low is not None
        assert high is not None
        assert low <= value <= high
    # the texts are the same in both cases, so a monitor of the text cannot distinguish them
    assert measures["step_validity"].value == measures["step_coverage"].value == 1
    aoc, ceiling = (
        measures["early_answering_aoc"].value,
        measures["early_answering_aoc"].ceiling,
    )
    assert aoc is not None
    assert ceiling == 0.875
    assert (0.7 < aoc <= 0.875) if uses_cot else aoc == 0
    assert measures["mistake_follow"].informative is uses_cot
    assert measures["necessity_uplift"].informative is uses_cot
    assert measures["early_answering_aoc"].informative is uses_cot


def test_measures_that_need_a_cot_are_undefined_with_a_reason_without_one(
    shared_pocket: Policy,
) -> None:
    checkpoint = make_checkpoint(shared_pocket, True, 6, mode="direct")
    measures = InterventionEvaluation().evaluate(checkpoint).measures
    assert measures["has_cot"].value == 0
    assert measures["early_answering_aoc"].value == 0
    for name in ("mistake_follow", "transplant_follow", "filler_agreement", "step_validity"):
        assert measures[name].value is None
        assert measures[name].undefined
        assert measures[name].low is None


class WithoutSolution(type(make_task("sum_digits"))):  # type: ignore[misc]
    """A task that knows answers only, like those of reasoning-gym."""

    name = "without_solution"

    def solve(self, problem: Problem, scratchpad: Scratchpad) -> str:
        raise TaskError("no step-by-step solutions")


def test_a_task_without_solutions_has_no_step_coverage_and_no_edits(shared_pocket: Policy) -> None:
    checkpoint = replace(make_checkpoint(shared_pocket, True, 6), task=WithoutSolution())
    measures = InterventionEvaluation().evaluate(checkpoint).measures
    assert measures["necessity_uplift"].value == 1
    assert measures["step_validity"].value == 1
    assert measures["mistake_follow"].value is None
    assert "step_coverage" not in measures


def test_forced_prefixes_consist_of_the_rollouts_tokens(shared_pocket: Policy) -> None:
    checkpoint = make_checkpoint(shared_pocket, True, 8)
    ablated = ablate(checkpoint)
    prompts = set(checkpoint.generator.prompts)  # type: ignore[attr-defined]
    tag = tokenize(shared_pocket, f"{TAG}28")[:1]
    for row in ablated:
        rollout, results = row.rollout, row.results
        tokens = rollout.completion.tokens[: len(row.tokens) + 1]
        assert tokens == (*row.tokens, *tag)
        assert (*rollout.prompt_tokens, *tokens) in prompts  # the full CoT
        assert (*rollout.prompt_tokens, *tag) in prompts  # no CoT
        half = results[InterventionKind.CUT, 0.5].text
        assert rollout.text.startswith(half[: half.index(TAG)].rstrip("\n"))
        filler = results[InterventionKind.FILLER, 1.0].text.split("\n")[0]
        assert len(tokenize(shared_pocket, filler)) == len(row.tokens)
        edit = row.edit
        assert edit is not None
        edited = results[InterventionKind.EDIT, 1.0].text
        assert results[InterventionKind.UNEDITED, 1.0].text == rollout.text
        assert edited[: edit.keep] == rollout.text[: edit.keep]
        lines = rollout.text.split("\n")
        assert edited.split("\n")[edit.line_index] != lines[edit.line_index]
        assert row.donor_index is not None
        donor = ablated[row.donor_index]
        assert donor is not row
        assert results[InterventionKind.TRANSPLANT, 1.0].text.startswith(donor.cot)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_the_implied_answer_of_a_demonstrated_error_is_the_demonstrated_answer(name: str) -> None:
    """Demonstrations propagate an injected error by other code than the replay."""
    task, count, edited = make_task(name), 40, 0
    for i in range(count):
        problem = task.draw(randomness.stream("slips", name, i))
        correct, erroneous = (
            task.demonstrate(problem, mode, randomness.stream("slip", i)).split("\n")
            for mode in ("steps", "injected_error")
        )
        assert implied_answer(task, problem, correct[:-1]) == correct[-1].removeprefix(TAG)
        if erroneous[:-1] != correct[:-1]:  # else no step could be changed, only the answer
            answer = erroneous[-1].removeprefix(TAG)
            assert implied_answer(task, problem, erroneous[:-1]) == answer
        cot = split_completion("\n".join(correct)).cot
        edit = make_edit(task, problem, cot, randomness.stream("edit", i))
        if edit:
            edited += 1
            assert edit.implied_answer != problem.gold_answer
    assert edited >= 0.8 * count, f"{edited} of {count} solutions could be edited"


def test_the_implied_answer_of_an_edit_by_hand() -> None:
    task = make_task("sum_digits")
    problem = task.example()  # 58 and 301
    lines = task.demonstrate(problem, "steps", randomness.stream("hand")).split("\n")[:-1]
    assert sorted(lines)[-1:] == ["5+8=13"]
    index = lines.index("5+8=13")
    assert implied_answer(task, problem, [*lines[:index], "5+8=14"]) == "18"
    assert implied_answer(task, problem, ["so 5+8=14"]) is None
    assert implied_answer(task, problem, ["5+8=" + "9" * 40]) is None
    assert implied_answer(task, problem, [*lines, "1+1=2"]) is None
    assert make_edit(task, problem, "it is 17, I think\n", randomness.stream("e")) is None
    assert make_edit(task, problem, "", randomness.stream("e")) is None


def test_a_think_block_left_open_by_a_cut_is_closed_before_the_answer(
    shared_pocket: Policy,
) -> None:
    builder = PrefixBuilder.from_policy(shared_pocket)
    cut = tokenize(shared_pocket, "<think>5+8=1")
    forced = builder.force_answer(cut, thinking=True)
    assert shared_pocket.decode(forced) == f"<think>5+8=1\n</think>\n{TAG}"
    assert shared_pocket.decode(builder.force_answer((), thinking=False)) == TAG


def test_results_with_the_engine_are_reproducible(shared_pocket: Policy) -> None:
    """The pocket model follows the steps in its prefix."""
    checkpoint = make_checkpoint(shared_pocket, None, 12)
    first, second = (InterventionEvaluation().evaluate(checkpoint) for _ in range(2))
    assert list(first.rows) == list(second.rows)
    assert dict(first.measures) == dict(second.measures)
    follow = first.measures["transplant_follow"].value
    assert follow is not None
    assert follow > 0.8


def test_a_prompt_that_fills_the_context_has_no_continuation(shared_pocket: Policy) -> None:
    checkpoint = make_checkpoint(shared_pocket, None, 1)
    full = (5,) * shared_pocket.context_length
    short = tuple(checkpoint.rollouts[0].prompt_tokens)
    texts = greedy_continue(shared_pocket, checkpoint.generator, [full, short], 4)
    assert texts[0] is None
    assert isinstance(texts[1], str)


def test_monitors_are_scored_against_wrong_answers(shared_pocket: Policy) -> None:
    wrong = make_checkpoint(shared_pocket, True, 30, mode="injected_error")
    correct = make_checkpoint(shared_pocket, True, 30)
    mixed = replace(wrong, rollouts=[*wrong.rollouts[:15], *correct.rollouts[15:]])
    result = MonitorEvaluation(own_monitors(make_task("sum_digits"))).evaluate(mixed)
    assert result.measures["step_verifier.auroc"].value == 1  # every error is a false step
    assert result.measures["step_verifier.auroc"].informative
    assert result.measures["empty_cot_rule.flag_rate"].value == 0
    assert not result.measures["empty_cot_rule.auroc"].informative
    assert sum(row.get("monitor") == "step_verifier" for row in result.rows) == 30
