"""The training loop, top to bottom.

    sample problems ──► generate ──► grade ──► penalize ──► advantages ──► update ──► log ──► checkpoint ──► evaluate

`TrainingRun` (run.py) holds the parts that compute, and owns what lasts and what people see: the run
directory, resuming, interruption, trackers and the display. A run is a function of its configuration,
the starting weights and the software: the same command gives the same bits, and so does a run that was
interrupted and resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from glasshouse.learn.microbatches import TrainingSample
from glasshouse.rollout.collector import Group, Pending, grade_groups
from glasshouse.rollout.penalties import random_rewards, shuffle_rewards
from glasshouse.tasks.streams import ProblemsExhausted
from glasshouse.training.metrics import PhaseTimer, check_staleness, compute_step_metrics

if TYPE_CHECKING:
    from glasshouse.training.run import TrainingRun


def run_training_loop(run: TrainingRun) -> None:
    """Train until `config.steps` is reached or the problems are exhausted. Evaluate before the first
    step, after the last one, and every `evaluate.every` steps."""
    config, progress = run.config, run.progress
    last_step = config.steps
    while True:
        is_done = progress.step >= last_step
        if is_done:
            run.save_unsaved_step("end of training")
        run.evaluate_if_due(is_last=is_done)
        if is_done:
            return

        step, timer = progress.step + 1, PhaseTimer()
        try:
            # A signal may end the run anywhere in here: nothing of the step has been written yet.
            with run.interruption.interruptible():
                # Sample problems, generate a group of completions for each, and compute rewards.
                groups, discarded = collect_groups(run, step, timer)
                in_flight = submit_next_steps(run, step, timer)
        except ProblemsExhausted as error:
            run.record_exhausted(error)
            last_step = progress.step
            continue
        if step == 1:
            run.audit_reward(groups)

        # Advantages: how much better than its group each completion was.
        groups = assign_advantages(groups, run.algorithm.advantage)
        metrics = compute_step_metrics(groups)
        check_staleness(metrics["staleness"], config.max_offpolicy_steps)
        metrics |= run.penalties.update_weights(metrics["accuracy"])
        timer.lap("reward")

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
        metrics |= run.backend.update(samples)
        timer.lap("learn")

        # Log all rollouts and the metrics; only then does the step count as done.
        run.log_step(step, groups, discarded, metrics, timer)
        run.complete_step(step, in_flight)

        run.checkpoint_if_due(metrics["reward"], is_last=step == last_step)
        run.interruption.check()


def collect_groups(
    run: TrainingRun, step: int, timer: PhaseTimer
) -> tuple[list[Group], list[Group]]:
    """Return the step's groups with their rewards, and the discarded ones. With dynamic sampling (DAPO),
    groups whose rewards are all equal are replaced by new ones, up to `learn.max_resamples` times."""
    wanted = run.config.data.groups_per_step
    groups, discarded = list[Group](), list[Group]()
    ahead = run.progress.in_flight
    pending = ahead[0] if ahead else submit_groups(run, step, wanted, timer)
    for resamples_left in range(run.config.learn.max_resamples, -1, -1):
        graded = grade_groups(pending, run.config.reward, timer.lap)
        groups += compute_rewards(run, graded, step)
        timer.lap("reward")
        if not run.algorithm.dynamic_sampling:
            break
        varied = [g for g in groups if len({r.grade.reward for r in g}) > 1]
        if varied:
            discarded += [g for g in groups if len({r.grade.reward for r in g}) == 1]
            groups = varied
        if len(varied) in (0, wanted) or not resamples_left:
            break
        pending = submit_groups(run, step, wanted - len(groups), timer)
    return (
        [
            [r if r.group == n else replace(r, group=n) for r in group]
            for n, group in enumerate(groups)
        ],
        [
            [replace(r, group=n, split="discarded") for r in group]
            for n, group in enumerate(discarded, len(groups))
        ],
    )


def submit_groups(run: TrainingRun, step: int, count: int, timer: PhaseTimer) -> Pending:
    """Sample problems for a step and start generating with the current weights."""
    epochs = run.problems.epochs
    run.problems.set_step(step)
    problems = run.problems.take(count)
    if run.problems.epochs > epochs:
        run.record_new_epoch(step)
    timer.lap("sample")
    pending = run.collector.submit(
        problems, step=step, split="train", samples=run.config.generate.group_size,
        sampling=run.config.generate.sampling(), check_interrupt=run.interruption.check,
    )  # fmt: skip
    timer.lap("generate")
    return pending


def submit_next_steps(run: TrainingRun, step: int, timer: PhaseTimer) -> list[Pending]:
    """Return the groups of the `max_offpolicy_steps` steps after this one, oldest first; start generating
    those that are missing. Generation runs at most that many steps ahead of learning; the schedule does
    not depend on time."""
    config, in_flight = run.config, run.progress.in_flight[1:]
    last = min(step + config.max_offpolicy_steps, config.steps)
    with suppress(ProblemsExhausted):  # raised again when the step needs them
        for ahead in range(step + len(in_flight) + 1, last + 1):
            in_flight.append(submit_groups(run, ahead, config.data.groups_per_step, timer))
    return in_flight


def compute_rewards(run: TrainingRun, groups: list[Group], step: int) -> list[Group]:
    """Subtract the penalties; for a negative control, shuffle or randomize."""
    reward, seed = run.config.reward, run.config.seed
    groups = run.penalties.apply(groups, seed=seed, step=step)
    if reward.random:
        return random_rewards(groups, seed, step)
    if reward.shuffle:
        return shuffle_rewards(groups, seed, step)
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
