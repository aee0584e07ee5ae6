"""Checks a task against itself: its grader must accept its correct demonstrations and reject its wrong ones.

    report = check_task(make_task("arithmetic", {"decimals": 2}), count=1000)
    assert report.passed, report

Covers gold answers, demonstrations in every mode, keys and prompts, over many drawn problems.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from glasshouse import randomness
from glasshouse.rollout.grading import grade_completion
from glasshouse.tasks.answers import split_completion
from glasshouse.tasks.base import NO_STEPS, Task, format_completion
from glasshouse.tasks.organisms import FILLER_WORD
from glasshouse.types import Problem, Style


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfCheckReport:
    """What was checked, and which faults were found."""

    task: str
    problems: int
    distinct: int
    """Number of different problem keys."""
    correct_completions: int
    """Completions that both parsers must accept."""
    wrong_completions: int
    """Completions that both parsers must reject."""
    faults: tuple[str, ...]
    """One sentence per fault, with the completion or prompt."""

    @property
    def passed(self) -> bool:
        return not self.faults and self.problems > 0

    def __str__(self) -> str:
        head = (
            f"{self.task}: {self.problems} problems ({self.distinct} different), "
            f"{self.correct_completions} correct and {self.wrong_completions} wrong completions, "
            f"{len(self.faults)} faults"
        )
        more = [f"… and {len(self.faults) - 10} more"] if len(self.faults) > 10 else []
        return "\n  ".join([head, *self.faults[:10], *more])


def check_task(task: Task[Any], count: int = 200, seed: int = 0) -> SelfCheckReport:
    """Checks a task on `count` drawn problems. Pure: the same arguments give the same report."""
    faults: list[str] = []
    answers: dict[str, str] = {}
    correct_count = wrong_count = 0
    for i in range(count):
        problem = task.draw(randomness.stream("self-check", task.name, seed, i))
        if problem != task.draw(randomness.stream("self-check", task.name, seed, i)):
            faults.append(f"{problem.key}: a second draw from the same stream differs.")
        if answers.setdefault(problem.key, problem.gold_answer) != problem.gold_answer:
            both = f"{answers[problem.key]} and {problem.gold_answer}"
            faults.append(f"The key {problem.key} has two answers, {both}.")
        texts = {"gold": format_completion([], problem.gold_answer)}
        for mode in task.modes:
            rng = randomness.stream("self-check", task.name, seed, i, mode)
            texts[mode] = task.demonstrate(problem, mode, rng)
        for mode, text in texts.items():
            if mode != "gold" and "masked_digit" in problem.meta:
                continue  # a demonstration guesses the masked digit: whether it is correct is a matter of chance
            correct = mode == "gold" or task.modes[mode].is_correct
            correct_count, wrong_count = correct_count + correct, wrong_count + (not correct)
            has_steps = mode != "gold" and task.modes[mode].has_steps
            faults += _completion_faults(problem, mode, text, correct, has_steps)
        faults += _prompt_faults(task, problem)
    return SelfCheckReport(
        task=task.name,
        problems=count,
        distinct=len(answers),
        correct_completions=correct_count,
        wrong_completions=wrong_count,
        faults=tuple(faults),
    )


def _completion_faults(
    problem: Problem, mode: str, text: str, correct: bool, has_steps: bool
) -> Iterator[str]:
    # the filler word of organisms follows the answer, so the strict parser would refuse its line
    result = grade_completion(problem, text.removesuffix(f" {FILLER_WORD}"), strict=True)
    completion = f"{problem.key} (gold {problem.gold_answer}), {mode}: {text!r}"
    for parser, accepted in (("lenient", result.lenient), ("strict", result.strict)):
        if accepted != correct:
            yield f"The {parser} parser {'accepts' if accepted else 'rejects'} {completion}."
    if result.extracted.model_answer is None:  # to be rejected for its answer, not for its form
        yield f"No answer can be extracted from {completion}: {result.extracted.reason}."
    if bool(split_completion(text).cot.strip()) != has_steps:
        yield f"Steps are {'missing from' if has_steps else 'present in'} {completion}."


def _prompt_faults(task: Task[Any], problem: Problem) -> Iterator[str]:
    for style in Style:
        messages = task.messages(problem, style)
        last, is_cot = messages[-1]["content"], style is Style.COT
        prompt = "\n".join(message["content"] for message in messages)
        has_question = messages[-1]["role"] == "user" and problem.question in last
        states_decimals = not task.rounding_instruction() or f"{problem.decimals} decimal" in last
        for fault, is_right in {
            "The last message lacks the question": has_question,
            "The [ANSWER] tag is not requested": "[ANSWER]" in prompt,
            f"Steps are {'not ' * is_cot}requested": ("step by step" in prompt) == is_cot,
            f"Steps are {'not ' * (not is_cot)}forbidden": (NO_STEPS in last) != is_cot,
            "The number of decimals is not stated": states_decimals,
        }.items():
            if not is_right:
                yield f"{fault} in the prompt of {problem.key}, style {style.value}: {prompt!r}."
