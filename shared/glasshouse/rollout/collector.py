"""Collect rollouts: build prompts, generate completions, grade them.

problems ──► chats ──► requests ──► generators (chunk by chunk) ──► texts ──► grades ──► groups
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from glasshouse import randomness
from glasshouse.config.schema import Config, RewardConfig
from glasshouse.models.chat_template import drops_system_messages
from glasshouse.models.policy import Policy
from glasshouse.rollout.grading import grade
from glasshouse.rollout.sampler import PendingCompletions, Sampler
from glasshouse.tasks.base import Task
from glasshouse.types import Grade, Message, Problem, Request, Rollout, SamplingParams, Style

Group = list[Rollout]
"""The rollouts of one problem."""


@dataclass(frozen=True, slots=True)
class RolloutCollector:
    """Sends problems to the generators and grades the completions.

    Example: `collector.collect(problems, step=3, split="train", samples=8, sampling=sampling)`
    """

    policy: Policy
    task: Task[Any]
    backend: Sampler
    config: Config

    def submit(
        self,
        problems: Sequence[Problem],
        *,
        step: int,
        split: str,
        samples: int,
        sampling: SamplingParams,
        check_interrupt: Callable[[], None] = lambda: None,
    ) -> PendingRollouts:
        """Start generating one group per problem. Sampling noise is keyed by seed, split, step,
        problem and sample, so that a group does not depend on the other groups."""
        seed, style = self.config.seed, Style(self.config.task.style)
        chats = [self.task.messages(problem, style) for problem in problems]
        prompts = [self.policy.encode_prompt(chat) for chat in chats]
        if drops_system_messages(
            self.policy.tokenizer, self.policy.chat
        ):  # the log holds what the model has seen
            chats = [[m for m in chat if m["role"] != "system"] for chat in chats]
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
        pending = self.backend.submit(chunks, sampling, check_interrupt)
        return PendingRollouts(self, step, split, problems, chats, prompts, pending)

    def collect(
        self,
        problems: Sequence[Problem],
        *,
        step: int,
        split: str,
        samples: int,
        sampling: SamplingParams,
        check_interrupt: Callable[[], None] = lambda: None,
    ) -> list[Group]:
        """Generate and grade one group per problem."""
        return self.submit(
            problems, step=step, split=split, samples=samples,
            sampling=sampling, check_interrupt=check_interrupt,
        ).groups()  # fmt: skip


@dataclass(slots=True)
class PendingRollouts:
    """Problems whose completions are being generated."""

    collector: RolloutCollector
    step: int
    split: str
    problems: Sequence[Problem]
    chats: list[list[Message]]
    prompts: list[tuple[str, tuple[int, ...]]]
    """Text and tokens of each prompt."""
    pending: PendingCompletions
    graded_groups: list[Group] | None = None

    def groups(self) -> list[Group]:
        """Wait for the completions and grade them; a second call returns the same groups."""
        if self.graded_groups is None:
            completions = [group for chunk in self.pending.result() for group in chunk]
            received = time.time()
            self.graded_groups = [
                self._grade_group(index, group, received) for index, group in enumerate(completions)
            ]
        return self.graded_groups

    def _grade_group(self, index: int, completions: Sequence[Any], received: float) -> Group:
        problem, grader = self.problems[index], make_grader(self.collector.config.reward)
        texts = self.collector.policy.decode_batch([c.tokens for c in completions])
        # a group repeats itself: each distinct text is graded once
        grades = {text: grader(problem, text) for text in dict.fromkeys(texts)}
        return [
            Rollout(
                step=self.step,
                split=self.split,
                group=index,
                sample=sample,
                problem=problem,
                messages=self.chats[index],
                prompt_text=self.prompts[index][0],
                prompt_tokens=self.prompts[index][1],
                text=text,
                completion=completion,
                grade=grades[text],
                advantage=0.0,
                time=received,
            )
            for sample, (completion, text) in enumerate(zip(completions, texts, strict=True))
        ]


def make_grader(reward: RewardConfig) -> Callable[[Problem, str], Grade]:
    """Return the grading function of a run's configuration."""
    strict = reward.answer_parser == "strict"

    def grader(problem: Problem, text: str) -> Grade:
        return grade(problem, text, terms=reward.terms, combine=reward.combine, strict=strict)

    return grader
