"""Problems in, graded rollouts out: ask, generate, read, grade.

problems ──► chat ──► requests ──► generators (chunk by chunk) ──► texts ──► grades ──► groups
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from glasshouse import randomness
from glasshouse.backends.base import Pending, Placement
from glasshouse.config import Config, RewardConfig
from glasshouse.generate import Sampling
from glasshouse.learn import Sample
from glasshouse.models import Policy
from glasshouse.rewards import grade
from glasshouse.tasks import Task
from glasshouse.types import Grade, Message, Problem, Request, Rollout, Style

Group = list[Rollout]


@dataclass(frozen=True, slots=True)
class Collector:
    """Asks problems of the generators and grades what comes back.

    Example: `collector.collect(problems, step=3, split="train", samples=8, sampling=sampling)`
    """

    policy: Policy
    task: Task[Any]
    placement: Placement
    config: Config

    def ask(
        self,
        problems: Sequence[Problem],
        *,
        step: int,
        split: str,
        samples: int,
        sampling: Sampling,
        between: Callable[[], None] = lambda: None,
    ) -> Asked:
        """Begin to generate one group a problem. Noise is keyed by seed, split, step, problem and
        sample, so that a group does not depend on its neighbours. `between` is called where nothing
        is half done."""
        seed, style = self.config.seed, Style(self.config.task.style)
        chats = [self.task.messages(problem, style) for problem in problems]
        prompts = [self.policy.prompt(chat) for chat in chats]
        requests = [
            Request(
                prompt=tokens,
                keys=tuple(
                    randomness.key("noise", seed, split, step, problem.task, problem.key, sample)
                    for sample in range(samples)
                ),
            )
            for problem, (_, tokens) in zip(problems, prompts, strict=True)
        ]
        size = self.config.generate.chunk_size
        chunks = [requests[start : start + size] for start in range(0, len(requests), size)]
        pending = self.placement.start(chunks, sampling, between)
        return Asked(self, step, split, problems, chats, prompts, pending)

    def collect(
        self,
        problems: Sequence[Problem],
        *,
        step: int,
        split: str,
        samples: int,
        sampling: Sampling,
        between: Callable[[], None] = lambda: None,
    ) -> list[Group]:
        """One group a problem, once they are all there."""
        return self.ask(
            problems, step=step, split=split, samples=samples, sampling=sampling, between=between
        ).groups()

    def graded(self, asked: Asked) -> list[Group]:
        """What was asked for, with its grades."""
        completions = [samples for chunk in asked.pending.result() for samples in chunk]
        clock = time.time()
        groups = []
        for number, problem in enumerate(asked.problems):
            texts = self.policy.texts([c.tokens for c in completions[number]])
            # a group repeats itself: each distinct text is read and graded once
            grades = {text: self._grade(problem, text) for text in dict.fromkeys(texts)}
            groups.append(
                [
                    Rollout(
                        step=asked.step,
                        split=asked.split,
                        group=number,
                        sample=sample,
                        problem=problem,
                        messages=asked.chats[number],
                        prompt_text=asked.prompts[number][0],
                        prompt_tokens=asked.prompts[number][1],
                        text=text,
                        completion=completion,
                        grade=grades[text],
                        advantage=0.0,
                        time=clock,
                    )
                    for sample, (completion, text) in enumerate(
                        zip(completions[number], texts, strict=True)
                    )
                ]
            )
        return groups

    def _grade(self, problem: Problem, text: str) -> Grade:
        return grade_by(self.config.reward)(problem, text)


@dataclass(slots=True)
class Asked:
    """Problems whose completions are being generated."""

    collector: Collector
    step: int
    split: str
    problems: Sequence[Problem]
    chats: list[list[Message]]
    prompts: list[tuple[str, tuple[int, ...]]]
    pending: Pending
    found: list[Group] | None = None

    def groups(self) -> list[Group]:
        """The graded groups, as soon as they are all there; the same ones if asked again."""
        if self.found is None:
            self.found = self.collector.graded(self)
        return self.found


def grade_by(reward: RewardConfig) -> Callable[[Problem, str], Grade]:
    """Grading as a run's configuration has it."""
    strict = reward.answer_parser == "strict"

    def graded(problem: Problem, text: str) -> Grade:
        return grade(problem, text, terms=reward.terms, how=reward.combine, strict=strict)

    return graded


def shuffle_rewards(groups: list[Group], seed: int, step: int) -> list[Group]:
    """The negative control: the step's rewards dealt out anew among all its rollouts. What a
    rollout truly earned stays in its parts, under `earned`."""
    rewards = [r.grade.reward for group in groups for r in group]
    randomness.stream("shuffle", seed, step).shuffle(rewards)
    dealt = iter(rewards)
    return [
        [
            replace(
                r,
                grade=replace(
                    r.grade, parts={**r.grade.parts, "earned": r.grade.reward}, reward=next(dealt)
                ),
            )
            for r in group
        ]
        for group in groups
    ]


def random_rewards(groups: list[Group], seed: int, step: int) -> list[Group]:
    """The other negative control: every reward is the toss of a coin, keyed by its place. What a
    rollout truly earned stays in its parts, under `earned`."""
    return [
        [
            replace(
                r,
                grade=replace(
                    r.grade,
                    parts={**r.grade.parts, "earned": r.grade.reward},
                    reward=randomness.stream("coin", seed, step, r.problem.key, r.sample).choice(
                        (-1.0, 1.0)
                    ),
                ),
            )
            for r in group
        ]
        for group in groups
    ]


def with_advantages(
    groups: list[Group], advantage: Callable[[torch.Tensor], torch.Tensor]
) -> list[Group]:
    """Each rollout with its advantage among its group."""
    rewards = torch.tensor([[r.grade.reward for r in group] for group in groups])
    values = advantage(rewards).tolist()
    return [
        [replace(r, advantage=a) for r, a in zip(group, row, strict=True)]
        for group, row in zip(groups, values, strict=True)
    ]


def sample_of(rollout: Rollout) -> Sample:
    return Sample(
        prompt=tuple(rollout.prompt_tokens),
        tokens=rollout.completion.tokens,
        logprobs=rollout.completion.logprobs,
        advantage=rollout.advantage,
    )
