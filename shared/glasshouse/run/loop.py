"""The training loop: draw, collect, learn, sync, record. The only place that knows all rooms.

    stream ──► collector ──► advantages ──► placement: learn, hand the weights to the generators
                   │                           │
                   └──────────► store ◄────────┘

A run is a function of its configuration, the starting weights and the software: twice the same
command gives the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from glasshouse import policy as policies
from glasshouse import tasks
from glasshouse.config import Config
from glasshouse.data import UsedUp, files
from glasshouse.errors import RunError
from glasshouse.learn import Sample, algorithm
from glasshouse.policy.lora import add_adapters
from glasshouse.run import evaluate, metrics, prepare
from glasshouse.run.audit import Guard
from glasshouse.run.collect import Collector, Group, shuffle_rewards
from glasshouse.run.display import Display, Quiet
from glasshouse.run.interrupt import Interrupted, interruptible
from glasshouse.run.placement import place
from glasshouse.run.watch import Watch
from glasshouse.store import RunDirectory
from glasshouse.store.rundir import now
from glasshouse.types import Rollout


class Run:
    """One run, made from its configuration.

    Example: `Run(config, display).train()`
    """

    def __init__(self, config: Config, display: Display | None = None) -> None:
        prepare.settle(config.threads)
        self.display = display or Quiet()
        self.policy = policies.load(config.model)
        self.config = config = prepare.with_ranges(config, self.policy)
        if config.learn.lora_rank:
            self.policy = add_adapters(self.policy, config.learn.lora_rank, config.seed)
        self.task = tasks.make(config.task.name, config.task.options)
        self.algorithm = algorithm(config.learn.algorithm)
        prepare.check(config)
        self.stream = prepare.stream(config, self.task)
        oversized = evaluate.oversized(config, self.task)
        self.held_out = oversized[: config.evaluate.problems]
        self.guard = Guard(oversized, config.evaluate.problems)
        for task in (self.task, *prepare.curriculum(config).values()):
            prepare.check_context(config, self.policy, task)
        self.placement = place(self.policy, config, self._event)
        self.collector = Collector(self.policy, self.task, self.placement, config)
        self.sampling = prepare.sampling(config)
        self.watch = Watch(config.watch)
        self.step = 0
        self.stopping = False
        self.directory: RunDirectory | None = None

    def train(self) -> dict[str, Any]:
        """All steps, evaluation before and after; returns the summary that it also writes."""
        try:
            return self._train()
        finally:
            self.placement.close()

    def _train(self) -> dict[str, Any]:
        self.directory = directory = RunDirectory.create(self.config)
        started, config = time.perf_counter(), self.config
        directory.event("start", seed=config.seed, model=config.model)
        if self.held_out:
            (directory.path / "data").mkdir(exist_ok=True)
            files.write(directory.path / "data" / "evaluation.jsonl", self.held_out)
        self.stream.keep(directory.path / "data")
        self.display.start(config, directory.path, self.policy, self.task)
        summary: dict[str, Any] = {
            "task": config.task.name,
            "style": config.task.style.value,
            "algorithm": config.learn.algorithm,
            "model": config.model,
            "steps": config.steps,
            "seed": config.seed,
            "run": str(directory.path),
        }
        with self.display, interruptible(self._ask_to_stop):
            try:
                summary["before"] = self._evaluate(directory)
                while self.step < config.steps:
                    try:
                        self._train_step(directory)
                    except UsedUp as error:
                        summary["used_up_at"] = self.step
                        directory.event("used_up", step=self.step, text=str(error))
                        self.display.warn(f"The run ends after step {self.step}: {error}")
                        break
                    if (
                        config.evaluate.every
                        and self.step % config.evaluate.every == 0
                        and self.step < config.steps
                    ):
                        self._evaluate(directory)
                summary["after"] = self._evaluate(directory)
            except Interrupted:
                summary["interrupted_at"] = self.step
                directory.event("interrupted", step=self.step)
            except RunError as error:  # what was learned is kept
                directory.event("failed", step=self.step, text=str(error))
                if self.step:
                    directory.checkpoint(self.policy, self.step)
                raise
        summary["steps_done"] = self.step
        summary["checkpoint"] = str(directory.checkpoint(self.policy, self.step))
        summary["seconds"] = round(time.perf_counter() - started, 3)
        directory.summary(summary)
        directory.event("end", step=self.step)
        self.display.end(summary)
        return summary

    def evaluate_only(self) -> dict[str, Any]:
        """The model as it is, on held-out problems; writes nothing."""
        return evaluate.evaluate(self.collector, self.held_out, step=0)[0]

    def _train_step(self, directory: RunDirectory) -> None:
        clock, laps = Clock(), self.stream.laps
        self.step += 1
        try:
            groups = self._groups(clock)
        except (Interrupted, UsedUp):
            self.step -= 1
            raise
        if self.stream.laps > laps:
            self._say_started_over(directory)
        groups = with_advantages(groups, self.algorithm.advantage)
        clock.lap("grade")
        row: dict[str, Any] = metrics.of_groups(groups)
        row |= self.placement.update([sample_of(r) for group in groups for r in group])
        clock.lap("learn")
        rollouts = [r for group in groups for r in group]
        size = directory.rollouts.append("train", self.step, rollouts)
        clock.lap("record")
        tokens = sum(len(r.completion.tokens) for r in rollouts)
        learned = sum(len(r.completion.tokens) for r in rollouts if r.advantage)
        row = {"step": self.step, **row, "record_bytes": size, "timing": {
            "time": now(), **clock.laps, **self.placement.timing(),
            "generate_tokens_per_second": round(tokens / max(clock.laps["generate"], 1e-9)),
            "learn_tokens_per_second": round(learned / max(clock.laps["learn"], 1e-9)),
        }}  # fmt: skip
        directory.metrics(row)
        for sentence in self.watch.look(row):
            directory.event("warning", step=self.step, text=sentence)
            self.display.warn(sentence)
        self.display.step(row, groups)

    def _groups(self, clock: Clock) -> list[Group]:
        """The step's groups; with dynamic sampling, those without variance are drawn again."""
        config = self.config
        wanted, groups = config.data.problems, list[Group]()
        self.stream.reach(self.step)
        for _ in range(1 + (config.learn.refills if self.algorithm.dynamic_sampling else 0)):
            problems = self.stream.take(wanted - len(groups))
            clock.lap("draw")
            drawn = self.collector.collect(
                problems, step=self.step, split="train", samples=config.generate.samples,
                sampling=self.sampling, between=self._stop_here,
            )  # fmt: skip
            clock.lap("generate")
            groups += (
                shuffle_rewards(drawn, config.seed, self.step) if config.reward.shuffle else drawn
            )
            if not self.algorithm.dynamic_sampling:
                break
            varied = [g for g in groups if len({r.grade.reward for r in g}) > 1]
            if len(varied) == wanted or not varied:
                groups = varied or groups
                break
            groups = varied
        return [[replace(r, group=number) for r in group] for number, group in enumerate(groups)]

    def _evaluate(self, directory: RunDirectory) -> dict[str, Any] | None:
        if not self.held_out:
            return None
        self.display.evaluating(self.step)
        held_out, audit = self.guard.check(directory.rollouts.folder)
        directory.event("audit", step=self.step, **audit)
        if audit["removed"]:
            self.display.warn(
                f"{audit['removed']} of {audit['checked']} evaluation problems have been trained on; "
                f"they are left out, others take their places, and {audit['left']} are left."
            )
        found, rollouts = evaluate.evaluate(self.collector, held_out, self.step, self._stop_here)
        found["removed"] = audit["removed"]
        directory.rollouts.append("validation", self.step, rollouts)
        directory.event("evaluation", step=self.step, **found)
        self.display.evaluated(self.step, found)
        return found

    def _event(self, kind: str, **what: Any) -> None:
        """What the placement tells: into the log, and on the screen if it has words."""
        if self.directory:
            self.directory.event(kind, step=self.step, **what)
        if "text" in what:
            self.display.warn(what["text"])

    def _say_started_over(self, directory: RunDirectory) -> None:
        """Fresh problems are used up: from here on they come again."""
        directory.event("started_over", step=self.step, laps=self.stream.laps)
        if self.stream.laps == 1:
            self.display.warn(
                f"Every training problem of {self.task.name} at these options has been asked: from step "
                f"{self.step} on they come again. data.when_used_up=stop would end the run here."
            )

    def _ask_to_stop(self) -> None:
        self.stopping = True
        self.display.warn("Stopping at the next safe point; once more to stop at once.")

    def _stop_here(self) -> None:
        if self.stopping:
            raise Interrupted


class Clock:
    """Seconds by phase; phases may come more than once."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self.last = time.perf_counter()

    def lap(self, name: str) -> None:
        here = time.perf_counter()
        self.laps[name] = round(self.laps.get(name, 0.0) + here - self.last, 6)
        self.last = here


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
