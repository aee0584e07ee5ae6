"""A task proves itself: its grader accepts its own right answers and refuses its own wrong ones.

    proof = validate(make("arithmetic", {"decimals": 2}), count=1000)
    assert proof.holds, proof

Anything that training relies on and that a task could get wrong is looked at, over many drawn
problems: golds, demonstrations in every mode, keys, prompts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from glasshouse import randomness
from glasshouse.answers.extraction import split
from glasshouse.rewards.grading import grade
from glasshouse.tasks import Task
from glasshouse.tasks.base import NO_STEPS, finish
from glasshouse.types import Problem, Style


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was looked at, and what was wrong."""

    task: str
    problems: int
    distinct: int
    """Different keys among them."""
    right: int
    """Completions that had to be accepted, in both readings."""
    wrong: int
    """Completions that had to be refused, in both readings."""
    faults: tuple[str, ...]
    """A sentence each, with the completion or prompt at fault."""

    @property
    def holds(self) -> bool:
        return not self.faults and self.problems > 0

    def __str__(self) -> str:
        head = (
            f"{self.task}: {self.problems} problems ({self.distinct} different), "
            f"{self.right} right and {self.wrong} wrong completions, {len(self.faults)} faults"
        )
        more = [f"… and {len(self.faults) - 10} more"] if len(self.faults) > 10 else []
        return "\n  ".join([head, *self.faults[:10], *more])


def validate(task: Task[Any], count: int = 200, seed: int = 0) -> Proof:
    """Prove a task over `count` drawn problems. Pure: the same arguments give the same proof."""
    faults: list[str] = []
    answers: dict[str, str] = {}
    right = wrong = 0
    for i in range(count):
        problem = task.draw(randomness.stream("validate", task.name, seed, i))
        if problem != task.draw(randomness.stream("validate", task.name, seed, i)):
            faults.append(f"{problem.key}: the same stream drew another problem the second time.")
        if answers.setdefault(problem.key, problem.answer) != problem.answer:
            both = f"{answers[problem.key]} and {problem.answer}"
            faults.append(f"The key {problem.key} has two answers, {both}.")
        texts = {"gold": finish([], problem.answer)}
        for mode in task.modes:
            rng = randomness.stream("validate", task.name, seed, i, mode)
            texts[mode] = task.demonstrate(problem, mode, rng)
        for mode, text in texts.items():
            correct = mode == "gold" or task.modes[mode].correct
            right, wrong = right + correct, wrong + (not correct)
            stepwise = mode != "gold" and task.modes[mode].stepwise
            faults += _completion_faults(problem, mode, text, correct, stepwise)
        faults += _prompt_faults(task, problem)
    return Proof(
        task=task.name,
        problems=count,
        distinct=len(answers),
        right=right,
        wrong=wrong,
        faults=tuple(faults),
    )


def _completion_faults(
    problem: Problem, mode: str, text: str, correct: bool, stepwise: bool
) -> Iterator[str]:
    verdict = grade(problem, text, strict=True)
    about = f"{problem.key} (gold {problem.answer}), {mode}: {text!r}"
    for reading, accepted in (("lenient", verdict.lenient), ("strict", verdict.strict)):
        if accepted != correct:
            yield f"The {reading} reading {'accepts' if accepted else 'refuses'} {about}."
    if verdict.extracted.value is None:  # a wrong one is to be refused for its answer, not its form
        yield f"No answer can be read from {about}: {verdict.extracted.reason}."
    if bool(split(text).cot.strip()) != stepwise:
        yield f"Working is {'missing from' if stepwise else 'shown in'} {about}."


def _prompt_faults(task: Task[Any], problem: Problem) -> Iterator[str]:
    for style in Style:
        messages = task.messages(problem, style)
        prompt = "\n".join(message["content"] for message in messages)
        about = f"{problem.key} asked in the style {style.value}: {prompt!r}"
        if messages[-1]["role"] != "user" or problem.question not in messages[-1]["content"]:
            yield f"The last message does not put the question of {about}."
        if "[ANSWER]" not in prompt:
            yield f"Nothing asks for the tag in {about}."
        if ("step by step" in prompt) != (style is Style.COT):
            yield f"Steps are {'not ' * (style is Style.COT)}asked for in {about}."
        if (NO_STEPS in messages[-1]["content"]) != (style is Style.DIRECT):
            yield f"Steps are {'not ' * (style is Style.DIRECT)}forbidden in {about}."
        if task.precision() and f"{problem.decimals} decimal" not in messages[-1]["content"]:
            yield f"The precision is not stated in {about}."
