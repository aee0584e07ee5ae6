"""Checkpoints whose generator follows rules: it continues from the steps in the prefix, or ignores them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from glasshouse.config.schema import Config
from glasshouse.generate.torch_engine import TorchGenerator
from glasshouse.measurement.interventions.base import EvaluatedCheckpoint, tokenize
from glasshouse.measurement.interventions.cot import Replay
from glasshouse.models.policy import Policy
from glasshouse.rollout.grading import grade_completion
from glasshouse.tasks.base import Task
from glasshouse.tasks.steps import find_statements
from glasshouse.types import (
    Completion,
    FinishReason,
    Problem,
    Request,
    Rollout,
    SamplingParams,
    Style,
)

TAG = "[ANSWER] "


class RuleGenerator:
    """Recognises problems by their questions."""

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
        self.prompts += [request.prompt for request in requests]
        texts = [self.policy.decode(request.prompt) for request in requests]
        return [[complete(self.policy, self.answer(text))] for text in texts]

    def answer(self, text: str) -> str:
        question = next(question for question in self.problems if question in text)
        problem, prefix = self.problems[question], text.rpartition(question)[2]
        if prefix.endswith(TAG):
            steps = find_statements(prefix) if self.uses_cot else []
            return str(steps[-1].value) if steps else "1" if self.uses_cot else problem.gold_answer
        lines = [line for line in prefix.split("\n") if line]
        replay = Replay(lines if self.uses_cot else [])
        answer = self.task.solve(problem, replay)
        return "\n".join([*replay.lines[len(lines) :], f"{TAG}{answer}"])


def complete(policy: Policy | None, text: str) -> Completion:
    tokens = (*tokenize(policy, text), *sorted(policy.end_tokens)[:1]) if policy else (1,)
    return Completion(
        tokens=tokens,
        logprobs=(0.0,) * len(tokens),
        length=len(tokens),
        finish_reason=FinishReason.END,
        policy_version=0,
    )


def make_rollout(
    task: Task,
    problem: Problem,
    text: str,
    policy: Policy | None = None,
    split: str = "monitor",
    sample: int = 0,
) -> Rollout:
    """A rollout of the task; without a policy, its tokens are meaningless."""
    messages = task.messages(problem, Style.COT)
    prompt, tokens = policy.encode_prompt(messages) if policy else (problem.question, ())
    return Rollout(
        step=0,
        split=split,
        arm=split.rpartition("/")[2],
        group=0,
        sample=sample,
        problem=problem,
        messages=messages,
        prompt=prompt,
        prompt_tokens=tuple(tokens),
        text=text,
        grade=grade_completion(problem, text),
        completion=complete(policy, text),
        advantage=0.0,
        time=0.0,
    )


def make_checkpoint(
    policy: Policy,
    task: Task,
    samples: Sequence[Sequence[tuple[Problem, str]]],
    uses_cot: bool | None,
) -> EvaluatedCheckpoint:
    """`samples`: problems with a completion, for each sample. `uses_cot`: of the generator; None: the
    policy generates."""

    def collect(*_: object, samples: int, **__: object) -> list[Rollout]:
        return rollouts[: samples * len(problems)]

    rollouts = [
        make_rollout(task, problem, text, policy, sample=number)
        for number, pairs in enumerate(samples)
        for problem, text in pairs
    ]
    problems = [problem for problem, _ in samples[0]]
    rules = RuleGenerator(policy, task, problems, bool(uses_cot))
    return EvaluatedCheckpoint(
        step=0,
        config=Config(generate={"max_tokens": 96}),
        policy=policy,
        generator=TorchGenerator(policy) if uses_cot is None else rules,
        task=task,
        rollouts=rollouts[: len(problems)],
        collect=collect,
    )
