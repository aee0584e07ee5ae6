"""The training loop, top to bottom.

    sample problems ──► generate ──► reward ──► advantages ──► update ──► log ──► checkpoint ──► evaluate

`TrainingParts` (build.py) computes; `Session` (session.py) owns what lasts and what people see: the
run directory, resuming, interruption, trackers and the display. A run is a function of its
configuration, the starting weights and the software: the same command gives the same bits, and so
does a run that was interrupted and resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from glasshouse.learn.microbatches import TrainingSample
from glasshouse.rollout.collector import Group
from glasshouse.rollout.reward_controls import random_rewards, shuffle_rewards
from glasshouse.tasks.streams import ProblemsExhausted
from glasshouse.training.build import TrainingParts
from glasshouse.training.metrics import PhaseTimer, check_staleness, compute_step_metrics
from glasshouse.training.session import Session

GroupsFuture = Callable[[], list[Group]]
"""Waits for groups that are being generated and returns them."""


def run_training_loop(parts: TrainingParts, session: Session) -> None:
    """Train until `config.steps` is reached or the problems are exhausted. Evaluate before the first
    step, after the last one, and every `evaluate.every` steps."""
    config, progress = parts.config, session.progress
    last_step = config.steps
    while True:
        is_done = progress.step >= last_step
        if is_done:
            session.save_unsaved_step("end of training")
        session.evaluate_if_due(is_last=is_done)
        if is_done:
            return

        step, timer = progress.step + 1, PhaseTimer()
        try:
            with session.interruptible():
                # Sample problems, generate a group of completions for each, and compute rewards.
                groups, discarded = sample_groups(parts, session, step, timer)
                pending = submit_next_steps(parts, session, step, timer)
        except ProblemsExhausted as error:
            session.record_exhausted(error)
            last_step = progress.step
            continue

        # Advantages: how much better than its group each completion was.
        groups = assign_advantages(groups, parts.algorithm.advantage)
        timer.lap("reward")
        metrics = compute_step_metrics(groups)
        check_staleness(metrics["staleness"], config.max_offpolicy_steps)
        metrics |= parts.penalties.update_weights(metrics["accuracy"])

        # Update the model; every generator then has the new weights.
        rollouts = [rollout for group in groups for rollout in group]
        samples = [
            TrainingSample(
                prompt=tuple(r.prompt_tokens),
                tokens=r.completion.tokens,
                sampler_logprobs=r.completion.logprobs,
                advantage=r.advantage,
            )
            for r in rollouts
        ]
        metrics |= parts.backend.update(samples)
        timer.lap("learn")

        # Log all rollouts and the metrics; only then does the step count as done.
        session.log_step(step, groups, discarded, metrics, timer)
        session.complete_step(step, pending)

        session.checkpoint_if_due(metrics["reward"], is_last=step == last_step)
        session.check_interrupt()


def sample_groups(
    parts: TrainingParts, session: Session, step: int, timer: PhaseTimer
) -> tuple[list[Group], list[Group]]:
    """Return the step's groups and the discarded ones. With dynamic sampling (DAPO), groups
    whose rewards are all equal are replaced by new ones, up to `learn.max_resamples` times."""
    wanted = parts.config.data.groups_per_step
    groups, discarded = list[Group](), list[Group]()
    ahead = session.progress.pending
    pending = ahead[0] if ahead else submit_groups(parts, session, step, wanted, timer)
    for resamples_left in range(parts.config.learn.max_resamples, -1, -1):
        generated = pending()
        timer.lap("generate")
        groups += compute_rewards(parts, generated, step)
        if not parts.algorithm.dynamic_sampling:
            break
        varied = [g for g in groups if len({r.grade.reward for r in g}) > 1]
        if varied:
            discarded += [g for g in groups if len({r.grade.reward for r in g}) == 1]
            groups = varied
        if len(varied) in (0, wanted) or not resamples_left:
            break
        pending = submit_groups(parts, session, step, wanted - len(groups), timer)
    numbered = [
        [replace(r, group=number) for r in group] for number, group in enumerate(groups + discarded)
    ]
    return numbered[: len(groups)], numbered[len(groups) :]


def submit_groups(
    parts: TrainingParts, session: Session, step: int, count: int, timer: PhaseTimer
) -> GroupsFuture:
    """Sample problems for a step and start generating with the current weights."""
    epochs = parts.problems.epochs
    parts.problems.set_step(step)
    problems = parts.problems.take(count)
    if parts.problems.epochs > epochs:
        session.record_new_epoch(step)
    timer.lap("sample")
    pending = parts.collector.submit(
        problems, step=step, split="train", samples=parts.config.generate.group_size,
        sampling=parts.sampling, check_interrupt=session.check_interrupt,
    )  # fmt: skip
    timer.lap("generate")
    return pending.groups


def submit_next_steps(
    parts: TrainingParts, session: Session, step: int, timer: PhaseTimer
) -> list[GroupsFuture]:
    """Return the groups of the `max_offpolicy_steps` steps after this one, oldest first; start generating
    those that are missing. Step s thus always learns from the weights of version
    max(0, s - 1 - max_offpolicy_steps), however long each process takes."""
    config, pending = parts.config, session.progress.pending[1:]
    last = min(step + config.max_offpolicy_steps, config.steps)
    with suppress(ProblemsExhausted):  # raised again when the step needs them
        for ahead in range(step + len(pending) + 1, last + 1):
            pending.append(submit_groups(parts, session, ahead, config.data.groups_per_step, timer))
    return pending


def compute_rewards(parts: TrainingParts, groups: list[Group], step: int) -> list[Group]:
    """Subtract the penalties from the graded rewards; for a negative control, shuffle or randomise."""
    config = parts.config
    groups = parts.penalties.apply(groups, seed=config.seed, step=step)
    if config.reward.random:
        return random_rewards(groups, config.seed, step)
    if config.reward.shuffle:
        return shuffle_rewards(groups, config.seed, step)
    return groups


def assign_advantages(
    groups: Sequence[Group], advantage: Callable[[torch.Tensor], torch.Tensor]
) -> list[Group]:
    """Return the groups with each rollout's advantage, computed from rewards `(groups, group size)`."""
    rewards = torch.tensor([[r.grade.reward for r in group] for group in groups])
    return [
        [replace(r, advantage=value) for r, value in zip(group, values, strict=True)]
        for group, values in zip(groups, advantage(rewards).tolist(), strict=True)
    ]
