"""Collect rollouts: build prompts, generate completions, grade them.

problems ──► chats ──► requests ──► generators (chunk by chunk) ──► texts ──► grades ──► groups
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from glasshouse import randomness
from glasshouse.config.schema import Config, RewardConfig
from glasshouse.models.chat_template import drops_system_messages
from glasshouse.rollout.grading import grade_completion
from glasshouse.tasks.base import Task
from glasshouse.types import (
    Completion,
    Grade,
    Message,
    Problem,
    Request,
    Rollout,
    SamplingParams,
    Style,
)

if TYPE_CHECKING:  # the only names of modules that import torch
    from glasshouse.models.policy import Policy

ARMS = ("planted", "control")
Group = list[Rollout]
"""The rollouts of one problem."""
Chunk = list[Request]
"""Always the same requests in the same order, so that their completions do not depend on who generates them."""
ChunkCompletions = Iterable[list[list[Completion]]]
"""For each chunk, for each request, its completions. They may still be generated: iterating waits for each chunk."""


class Sampler(Protocol):
    """What the collector needs of a backend. Evaluation needs nothing else."""

    def submit(
        self, chunks: Sequence[Chunk], sampling: SamplingParams, check_interrupt: Callable[[], None]
    ) -> ChunkCompletions:
        """Start generating with the current weights. At most `max_offpolicy_steps` updates may follow before
        the completions are read. `check_interrupt` is called between chunks; an exception from it ends the call."""


@dataclass(frozen=True, slots=True)
class RolloutCollector:
    """Sends problems to the generators.

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
    ) -> Pending:
        """Start generating one group per problem. Sampling noise is keyed by seed, split, step,
        problem and sample: a group does not depend on the other groups."""
        seed, style = self.config.seed, Style(self.config.task.style)
        chats = [self.task.messages(problem, style) for problem in problems]
        prompts = [self.policy.encode_prompt(chat) for chat in chats]
        if drops_system_messages(self.policy.tokenizer, self.policy.chat):
            # the log holds what the model has seen
            chats = [[m for m in chat if m["role"] != "system"] for chat in chats]
        requests = [
            Request(
                prompt=tokens,
                noise_keys=tuple(
                    randomness.key("noise", seed, split, step, problem.task, problem.key, sample)
                    for sample in range(samples)
                ),
            )
            for problem, (_, tokens) in zip(problems, prompts, strict=True)
        ]
        size = self.config.generate.chunk_size
        chunks = [requests[start : start + size] for start in range(0, len(requests), size)]
        pending = self.backend.submit(chunks, sampling, check_interrupt)
        return Pending(self.policy, seed, step, split, problems, chats, prompts, pending)

    def collect(self, problems: Sequence[Problem], **options: Any) -> list[Group]:
        """Generate and grade one group per problem; arguments as for `submit`."""
        return grade_groups(self.submit(problems, **options), self.config.reward)


@dataclass(slots=True)
class Pending:
    """One group of completions per problem, being generated; `grade_groups` waits for them."""

    policy: Policy
    seed: int
    step: int
    split: str
    problems: Sequence[Problem]
    chats: Sequence[Sequence[Message]]
    prompts: Sequence[tuple[str, tuple[int, ...]]]
    """Text and tokens of each prompt."""
    chunks: ChunkCompletions
    received: float = 0.0
    """When the newest completions arrived; 0 before that."""
    groups: list[Group] | None = None
    """Once graded: when they are needed, or when a checkpoint saves them before that."""


def grade_groups(
    pending: Pending, reward: RewardConfig, lap: Callable[[str], None] = lambda phase: None
) -> list[Group]:
    """Grade each chunk as it arrives, while others are generated; a second call returns the same groups. `lap` is told
    when the phases `generate` and `reward` end."""
    lap("generate")
    if pending.groups is None:
        grader, groups = make_grader(reward), list[Group]()
        for chunk in pending.chunks:
            lap("generate")
            pending.received = time.time()
            for completions in chunk:
                groups.append(_grade_group(pending, len(groups), completions, grader))
            lap("reward")
        pending.groups = groups
    return pending.groups


def _grade_group(
    pending: Pending, index: int, completions: Sequence[Completion], grader: Grader
) -> Group:
    problem, (prompt, prompt_tokens) = pending.problems[index], pending.prompts[index]
    texts = pending.policy.decode_batch([c.tokens for c in completions])
    arm = pending.split.rpartition("/")[2]
    # a group repeats itself: each distinct text is graded once
    grades = {text: grader(problem, text) for text in dict.fromkeys(texts)}
    return [
        Rollout(
            step=pending.step,
            split=pending.split,
            arm=arm if arm in ARMS else "",
            group=index,
            sample=sample,
            seed=pending.seed,
            checkpoint=str(pending.step),
            problem=problem,
            messages=pending.chats[index],
            prompt=prompt,
            prompt_tokens=prompt_tokens,
            text=text,
            completion=completion,
            grade=grades[text],
            advantage=0.0,
            time=pending.received,
        )
        for sample, (completion, text) in enumerate(zip(completions, texts, strict=True))
    ]


Grader = Callable[[Problem, str], Grade]


def make_grader(reward: RewardConfig) -> Grader:
    """Return the grading function of a run's configuration."""
    strict = reward.answer_parser == "strict"
    return partial(grade_completion, terms=reward.terms, strict=strict)
