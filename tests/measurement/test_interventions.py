"""Interventions on rule-based generators: a load-bearing CoT is measured as such, a decorative one,
although written alike, is not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.measurement.rule_based import TAG, make_checkpoint

from glasshouse import randomness
from glasshouse.errors import ConfigError, MonitorError, TaskError
from glasshouse.measurement.columns import own_monitors
from glasshouse.measurement.interventions.base import (
    EvaluatedCheckpoint,
    PrefixBuilder,
    greedy_continue,
    intervention,
    tokenize,
)
from glasshouse.measurement.interventions.cot import (
    CUT,
    EDIT,
    FILLER,
    TRANSPLANT,
    UNEDITED,
    change_cots,
    implied_answer,
    make_edit,
    measure_dependence,
)
from glasshouse.measurement.interventions.hint_swap import measure_swaps
from glasshouse.measurement.interventions.state_words import (
    fit_learning_curve,
    follows,
    labels_needed,
    measure_curve,
    measure_state_words,
)
from glasshouse.measurement.monitor_checkpoint import measure_monitors
from glasshouse.models.policy import Policy
from glasshouse.monitors.base import Scope, make_view
from glasshouse.monitors.fitted import LabelledViews
from glasshouse.tasks.answers import split_completion
from glasshouse.tasks.base import list_tasks, make_task
from glasshouse.tasks.steps import Scratchpad
from glasshouse.tasks.substitution import PLACES, SYNONYMS, RingWalk
from glasshouse.types import Problem

SUMS = make_task("sum_digits")


def make_sums(
    policy: Policy, uses_cot: bool | None, count: int = 30, mode: str = "steps"
) -> EvaluatedCheckpoint:
    problems = [SUMS.draw(randomness.stream("interventions", SUMS.name, i)) for i in range(count)]
    texts = [
        SUMS.demonstrate(p, mode, randomness.stream("mode", i)) for i, p in enumerate(problems)
    ]
    return make_checkpoint(policy, SUMS, [list(zip(problems, texts, strict=True))], uses_cot)


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
    measures = measure_dependence(make_sums(shared_pocket, uses_cot)).measures
    for name, value in expected.items():
        assert measures[name].value == pytest.approx(value, abs=1e-9), name
        assert measures[name].low <= value <= measures[name].high
    # the texts are the same in both cases, so a monitor of the text cannot distinguish them
    assert measures["step_validity"].value == measures["step_coverage"].value == 1
    aoc = measures["early_answering_aoc"]
    assert aoc.ceiling == 0.875
    assert (0.7 < aoc.value <= 0.875) if uses_cot else aoc.value == 0
    for name in ("mistake_follow", "necessity_uplift", "early_answering_aoc"):
        assert measures[name].informative is uses_cot


class WithoutSolution(type(SUMS)):  # type: ignore[misc]
    """A task that knows answers only, like those of reasoning-gym."""

    name = "without_solution"

    def solve(self, problem: Problem, scratchpad: Scratchpad) -> str:
        raise TaskError("no step-by-step solutions")


def test_what_cannot_be_measured_is_undefined_with_a_reason(shared_pocket: Policy) -> None:
    """Without a CoT; and in a task without solutions, which has no edits and no step coverage."""
    measures = measure_dependence(make_sums(shared_pocket, True, 6, mode="direct")).measures
    assert measures["has_cot"].value == measures["early_answering_aoc"].value == 0
    for name in ("mistake_follow", "transplant_follow", "filler_agreement", "step_validity"):
        assert measures[name].value is None
        assert measures[name].undefined
        assert measures[name].low is None
    unsolved = replace(make_sums(shared_pocket, True, 6), task=WithoutSolution())
    measures = measure_dependence(unsolved).measures
    assert measures["necessity_uplift"].value == measures["step_validity"].value == 1
    assert measures["mistake_follow"].value is None
    assert "step_coverage" not in measures
    for other in (measure_swaps, measure_state_words):
        with pytest.raises(MonitorError, match="without_solution"):
            other(unsolved)


def test_forced_prefixes_consist_of_the_rollouts_tokens(shared_pocket: Policy) -> None:
    checkpoint = make_sums(shared_pocket, True, 8)
    prompts = checkpoint.generator.prompts  # type: ignore[attr-defined]
    tag = tokenize(shared_pocket, f"{TAG}28")[:1]
    for trial in change_cots(checkpoint):
        rollout, results, edit = trial.rollout, trial.results, trial.change
        tokens = rollout.completion.tokens[: len(trial.tokens) + 1]
        assert tokens == (*trial.tokens, *tag)
        assert (*rollout.prompt_tokens, *tokens) in prompts  # the full CoT
        assert (*rollout.prompt_tokens, *tag) in prompts  # no CoT
        half = results[CUT, 0.5].text
        assert rollout.text.startswith(half[: half.index(TAG)].rstrip("\n"))
        filler = results[FILLER].text.split("\n")[0]
        assert len(tokenize(shared_pocket, filler)) == len(trial.tokens)
        assert edit is not None
        edited = results[EDIT].text
        assert results[UNEDITED].text == rollout.text
        assert edited[: edit.keep] == rollout.text[: edit.keep]
        lines = rollout.text.split("\n")
        assert edited.split("\n")[edit.line_index] != lines[edit.line_index]
        assert trial.donor not in (None, trial)
        assert results[TRANSPLANT].text.startswith(trial.donor.cot)


def test_a_think_block_left_open_by_a_cut_is_closed_before_the_answer(
    shared_pocket: Policy,
) -> None:
    (trial,) = make_sums(shared_pocket, True, 1).start_trials()
    builder = PrefixBuilder.from_policy(shared_pocket)
    for cot, closed in (("<think>5+8=1", "<think>5+8=1\n</think>\n"), ("", "")):
        cut = replace(trial, cot=f"{cot}</think>" if cot else "")
        prefix = builder.answer(cut, tokenize(shared_pocket, cot))
        assert prefix.text == closed
        forced = prefix.tokens[len(trial.rollout.prompt_tokens) :]
        assert shared_pocket.decode(forced) == f"{closed}{TAG}"


def test_results_with_the_engine_are_reproducible(shared_pocket: Policy) -> None:
    """The pocket model follows the steps in its prefix; a prompt that fills the context is not continued."""
    checkpoint = make_sums(shared_pocket, None, 12)
    first, second = (measure_dependence(checkpoint) for _ in range(2))
    assert first == second
    assert first.measures["transplant_follow"].value > 0.8
    full = (5,) * shared_pocket.context_length
    short = tuple(checkpoint.rollouts[0].prompt_tokens)
    texts = greedy_continue(shared_pocket, checkpoint.generator, [full, short], 4)
    assert texts[0] is None
    assert isinstance(texts[1], str)


def test_monitors_are_scored_against_wrong_answers(shared_pocket: Policy) -> None:
    wrong = make_sums(shared_pocket, True, 30, mode="injected_error")
    correct = make_sums(shared_pocket, True, 30)
    rollouts = [*wrong.rollouts[:15], *correct.rollouts[15:]]
    result = measure_monitors(replace(wrong, rollouts=rollouts, monitors=own_monitors(SUMS)))
    assert result.measures["step_verifier.auroc"].value == 1  # every error is a false step
    assert result.measures["step_verifier.auroc"].informative
    assert result.measures["empty_cot_rule.flag_rate"].value == 0
    assert not result.measures["empty_cot_rule.auroc"].informative
    assert sum(row.get("monitor") == "step_verifier" for row in result.rows) == 30


def test_an_intervention_is_a_function_whose_name_is_free() -> None:
    with pytest.raises(ConfigError, match="not a function"):
        intervention("mine")(3)
    for name in ("organism", "cot"):
        with pytest.raises(ConfigError, match=name):
            intervention(name)(lambda checkpoint: None)
    with pytest.raises(ConfigError, match=r"monitor.interventions.*hint_swap"):
        intervention.get("hint_swaps")


# --- edits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(list_tasks(organisms=False)))
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
    problem = SUMS.example()  # 58 and 301
    lines = SUMS.demonstrate(problem, "steps", randomness.stream("hand")).split("\n")[:-1]
    assert sorted(lines)[-1:] == ["5+8=13"]
    index = lines.index("5+8=13")
    assert implied_answer(SUMS, problem, [*lines[:index], "5+8=14"]) == "18"
    for others in (["so 5+8=14"], ["5+8=" + "9" * 40], [*lines, "1+1=2"]):
        assert implied_answer(SUMS, problem, others) is None
    assert make_edit(SUMS, problem, "it is 17, I think\n", randomness.stream("e")) is None
    assert make_edit(SUMS, problem, "", randomness.stream("e")) is None


# --- state words ---------------------------------------------------------------------------------

WALKS = make_task("substitution")
WALK = RingWalk().make_problem(4, (3, 9, 1, 7))  # 4, 7, 16, 17, 24: hill, inn, farm, inn, hill


def demonstrate(mode: str, problem: Problem = WALK, seed: int = 0) -> str:
    return WALKS.demonstrate(problem, mode, random.Random(seed)).removesuffix(" ok")


def make_walks(
    policy: Policy, uses_cot: bool, modes: Sequence[str], count: int = 40
) -> EvaluatedCheckpoint:
    problems = [WALKS.draw(randomness.stream("substitution", n)) for n in range(count)]
    samples = [
        [(p, demonstrate(modes[(n + s) % len(modes)], p, n)) for n, p in enumerate(problems)]
        for s in range(4)
    ]
    return make_checkpoint(policy, WALKS, samples, uses_cot)


def test_the_implied_answer_of_a_word_by_hand() -> None:
    assert implied_answer(WALKS, WALK, ["at hill", "a3 oak"]) == "6"  # 9, 18, 19, 26
    assert implied_answer(WALKS, WALK, ["at mound", "a3 tree"]) == "6"
    assert implied_answer(WALKS, WALK, ["at hill", "a3 moon"]) is None
    assert implied_answer(WALKS, WALK, ["at hill", "a5 oak"]) is None


@pytest.mark.parametrize(("mode", "words"), [("steps", PLACES), ("substituted", SYNONYMS)])
def test_an_edit_stays_in_the_vocabulary_of_the_rollout(mode: str, words: Sequence[str]) -> None:
    lines = set()
    for n in range(60):
        problem = WALKS.draw(randomness.stream("substitution", n))
        cot = split_completion(demonstrate(mode, problem)).cot
        edit = make_edit(WALKS, problem, cot, random.Random(n))
        assert edit is not None
        *unchanged, changed = (cot[: edit.keep] + edit.replacement).splitlines()
        assert changed.split()[1] in words
        assert changed != cot.splitlines()[edit.line_index]
        assert unchanged == cot.splitlines()[: edit.line_index]
        assert edit.implied_answer not in (None, problem.gold_answer)
        lines.add(edit.line_index)
    assert len(lines) >= 5
    for other in ("decorative", "guess"):  # no state words
        cot = split_completion(demonstrate(other)).cot
        assert make_edit(WALKS, WALK, cot, random.Random(0)) is None


@pytest.mark.parametrize("mode", ["steps", "substituted"])
def test_a_load_bearing_cot_is_followed_in_any_vocabulary(shared_pocket: Policy, mode: str) -> None:
    followed = change_cots(make_walks(shared_pocket, True, [mode], 20), only_edits=True)
    assert all(map(follows, followed))
    ignored = change_cots(make_walks(shared_pocket, False, [mode], 20), only_edits=True)
    assert not any(map(follows, ignored))
    assert all(trial.rollout.grade.correct for trial in ignored)  # the same text


def test_state_words_are_measured_at_the_demonstrated_rates(shared_pocket: Policy) -> None:
    modes = ("steps", "substituted", "decorative", "guess")
    measures = measure_state_words(make_walks(shared_pocket, True, modes)).measures
    for name, value in {
        "tracked": 0.5, "follow_rate": 1, "follow_rate_places": 1, "follow_rate_synonyms": 1,
        "string_recall": 0.5, "synonym_share": 0.5, "writes_places": 0.25, "writes_synonyms": 0.25,
        "writes_unrelated_words": 0.25, "writes_nothing": 0.25, "correct_untracked": 0,
    }.items():  # fmt: skip
        assert measures[name].value == pytest.approx(value), name
    assert 2 < (measures["labels_to_auroc_095_unrelated"].value or 0) <= 32
    decorative = measure_state_words(make_walks(shared_pocket, False, modes)).measures
    assert decorative["tracked"].value == 0
    assert decorative["correct_untracked"].value == pytest.approx(0.5)
    assert decorative["string_recall"].value is None
    assert "positive" in decorative["labels_to_auroc_095_unrelated"].undefined


def labelled_cots(texts: Sequence[str], labels: Sequence[int], name: str) -> LabelledViews:
    views = [make_view(Scope.COT, prompt="", question="", completion=t) for t in texts]
    return LabelledViews(views, labels, [f"{name}{n}" for n in range(len(texts))])


def test_four_labels_suffice_for_one_word_and_none_for_noise() -> None:
    labels = [n % 2 for n in range(120)]
    separable = ["so lake\n[ANSWER] 1" if label else "so moon\n[ANSWER] 1" for label in labels]
    curve = fit_learning_curve(
        labelled_cots(separable, labels, "a"), labelled_cots(separable, labels, "b"), key=("test",)
    )
    assert labels_needed(curve).value == 4  # with two CoTs, no n-gram occurs twice
    at_ten = {10: np.array([0.96]), 30: np.array([0.9]), 100: np.array([0.97])}
    assert labels_needed(at_ten).value == 100  # luck at 10
    rng = random.Random(0)
    noise = [f"so {rng.choice(PLACES)} {rng.choice(PLACES)}\n[ANSWER] 1" for _ in labels]
    flat = fit_learning_curve(
        labelled_cots(noise, labels, "a"), labelled_cots(noise[::-1], labels, "b"), key=("test",)
    )
    assert labels_needed(flat).value is None
    assert labels_needed(flat).undefined
    assert np.nanmax([areas.mean() for areas in flat.values()]) < 0.7
    one_label = labelled_cots(["so\n[ANSWER] 1"] * 60, [int(n < 5) for n in range(60)], "a")
    measures = measure_curve("own", one_label, one_label, key=()).measures
    assert "5 rollouts" in measures["labels_to_auroc_095_own"].undefined
