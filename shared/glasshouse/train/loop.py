"""The training loop: draw, collect, learn, sync, record. The only place that knows all rooms.

    stream ──► collector ──► advantages ──► placement: learn, hand the weights to the generators
                   │                           │
                   └──────────► store ◄────────┘ ──► checkpoints

A run is a function of its configuration, the starting weights and the software: twice the same
command gives the same bits, and so does a run that was interrupted and went on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from glasshouse import models as policies
from glasshouse import tasks, track
from glasshouse.backends.base import place
from glasshouse.config import Config
from glasshouse.data import UsedUp, files
from glasshouse.errors import RunError
from glasshouse.evaluation import accuracy
from glasshouse.evaluation.contamination import Guard
from glasshouse.learn import LearnerState, algorithm
from glasshouse.models.lora import add_adapters
from glasshouse.rollout.collector import (
    Collector,
    Group,
    random_rewards,
    sample_of,
    shuffle_rewards,
    with_advantages,
)
from glasshouse.store import RunDirectory, checkpoints
from glasshouse.store.run_directory import now
from glasshouse.train import build, checkpointing, metrics, resume
from glasshouse.train.checkpointing import CheckpointManager, Progress
from glasshouse.train.diagnostics import Watch
from glasshouse.train.display import Display, Quiet
from glasshouse.train.interruption import Interrupted, Interruption, TooLate
from glasshouse.train.metrics import Clock


class Run:
    """One run, made from its configuration.

    Example: `Run(config, display).train()`
    """

    def __init__(self, config: Config, display: Display | None = None) -> None:
        track.check(config.trackers)
        build.settle(config.threads)
        self.display = display or Quiet()
        self.policy = policies.load(config.model)
        self.config = config = build.with_ranges(config, self.policy)
        if config.learn.lora_rank:
            self.policy = add_adapters(self.policy, config.learn.lora_rank, config.seed)
        self.task = tasks.make(config.task.name, config.task.options)
        self.algorithm = algorithm(config.learn.algorithm)
        build.check(config)
        self.pressures = build.pressures(config, self.task)
        self.stream = build.stream(config, self.task)
        oversized = accuracy.oversized(config, self.task)
        self.held_out = oversized[: config.evaluate.problems]
        self.guard = Guard(oversized, config.evaluate.problems)
        for task in (self.task, *build.curriculum(config).values()):
            build.check_context(config, self.policy, task)
        self.placement = place(self.policy, config, self._event)
        self.collector = Collector(self.policy, self.task, self.placement, config)
        self.sampling = build.sampling(config)
        self.watch = Watch(config.diagnostics)
        self.progress = Progress(data=self.stream.state())
        self.interruption = Interruption(self.display.stopping)
        self.directory: RunDirectory | None = None
        self.mirrors = track.Mirrors()

    def train(self) -> dict[str, Any]:
        """All steps, evaluation before and after; returns the summary that it also writes. In the
        directory of a run that was interrupted, it goes on from the newest valid checkpoint."""
        try:
            return self._train()
        finally:
            self.placement.close()

    def _train(self) -> dict[str, Any]:
        path = resume.place(self.config)
        if resume.holds_run(path):
            resume.check_same(path, self.config)
            if summary := resume.finished(path, self.config):
                self.display.finished_before(summary)
                return summary
        with RunDirectory.open(path, self.config) as directory:
            self.directory = directory
            self.display.start(self.config, directory.path, self.policy, self.task)
            facts = {
                "config": self.config.model_dump(mode="json"),
                "versions": checkpointing.versions(),
                "start": checkpointing.fingerprint(self.policy),
            }
            saved = self._enter(directory, facts)
            self.display.ready(self.config, directory.path, self.policy, self.progress.step)
            keeper = CheckpointManager(
                self.config.checkpoints, directory, self.policy, facts, self.display.say, saved
            )
            with track.start(
                self.config.trackers, directory.path, self.config, self._event
            ) as self.mirrors:
                self.display.tracked(self.mirrors.looks)
                with self.display, self.interruption:
                    try:
                        summary = self._train_in(directory, keeper)
                    except TooLate:
                        directory.event("stopped", step=self.progress.step, saved=keeper.saved)
                        self.display.too_late(keeper.saved)
                        summary = {"run": str(directory.path), "stopped_after": keeper.saved}
                self.mirrors.end(summary, "finished" if "after" in summary else "interrupted")
            return summary

    def _train_in(self, directory: RunDirectory, keeper: CheckpointManager) -> dict[str, Any]:
        config, progress = self.config, self.progress
        summary: dict[str, Any] = {
            "task": config.task.name,
            "style": config.task.style.value,
            "algorithm": config.learn.algorithm,
            "model": config.model,
            "steps": config.steps,
            "seed": config.seed,
            "run": str(directory.path),
        }
        started = time.perf_counter() - progress.seconds
        try:
            after = self._steps(directory, keeper, started, summary)
            summary |= {"before": progress.before, "after": after}
        except Interrupted:
            self._save_last(keeper, "interrupted")
            summary |= {"before": progress.before, "interrupted_at": progress.step}
            directory.event("interrupted", step=progress.step)
        except RunError as error:  # what was learned is kept
            directory.event("failed", step=progress.step, text=str(error))
            with suppress(RunError):  # unless it was the learner itself that is gone
                self._save_last(keeper, "the run failed")
            raise
        summary["steps_done"] = progress.step
        summary["checkpoint"] = str(directory.checkpoints / f"step-{progress.step:06d}")
        summary["record"] = asdict(directory.rollouts.storage)
        summary["seconds"] = round(time.perf_counter() - started, 3)
        directory.summary(summary)
        directory.event("end", step=progress.step)
        self.display.end(summary)
        return summary

    def _steps(
        self,
        directory: RunDirectory,
        keeper: CheckpointManager,
        started: float,
        summary: dict[str, Any],
    ) -> dict[str, Any] | None:
        """Train until the end; returns the last evaluation."""
        config, progress, after = self.config, self.progress, None
        steps, every = config.steps, config.evaluate.every
        while True:
            last = progress.step >= steps
            if last:
                self._save_last(keeper, "the end")
            due = last or progress.step == 0 or (every and progress.step % every == 0)
            if due and progress.evaluated != progress.step:
                after = self._evaluate(directory)
            if last:
                return after
            try:
                row = self._train_step(directory)
            except UsedUp as error:
                steps = summary["used_up_at"] = progress.step
                directory.event("used_up", step=progress.step, text=str(error))
                self.display.warn(f"The run ends after step {progress.step}: {error}")
                continue
            progress.seconds = time.perf_counter() - started
            if why := keeper.step(progress, row["reward"], end=progress.step == steps):
                keeper.save(progress, why, self.placement.state())
            self.interruption.here()

    def _save_last(self, keeper: CheckpointManager, why: str) -> None:
        """A checkpoint of the last whole step, unless there is one."""
        if keeper.saved != self.progress.step:
            keeper.save(self.progress, [why], self.placement.state())

    def _enter(self, directory: RunDirectory, facts: dict[str, Any]) -> int:
        """Begin, or go on from the newest valid checkpoint with the record cut back to it; returns
        that checkpoint's step, or -1."""
        data = directory.path / "data"
        data.mkdir(exist_ok=True)
        if self.held_out and not (data / "evaluation.jsonl").exists():
            files.write(data / ".writing.jsonl", self.held_out)
            os.replace(data / ".writing.jsonl", data / "evaluation.jsonl")
        self.stream.keep(data)
        found, sentences = resume.newest(directory)
        for sentence in sentences:
            directory.event("damaged", text=sentence)
            self.display.warn(sentence)
        if found is None:
            if directory.begun:
                self.display.warn(
                    "The run was interrupted before its first checkpoint: it starts over."
                )
                directory.rewind({})
            directory.event("start", seed=self.config.seed, model=self.config.model)
            return -1
        state, weights, learner = checkpoints.read(found.path)
        for sentence in resume.check_facts(directory.path, state, facts):
            directory.event("warning", text=sentence)
            self.display.warn(sentence)
        if not self.config.learn.lora_rank:
            self.policy.take(weights)
        self.placement.restore(LearnerState(state["version"], learner))
        self.progress = checkpointing.restored(state, checkpoints.read_ahead(found.path))
        self.stream.restore(self.progress.data)
        self.pressures.restore(self.progress.pressures)
        kept = directory.rewind(state["record"])
        for row in kept:
            self.watch.look(row)
        directory.event("resume", step=found.step, path=found.path.name)
        self.display.resumed(found.step, found.path)
        return found.step

    def evaluate_only(self) -> dict[str, Any]:
        """The model as it is, on held-out problems; writes nothing."""
        return accuracy.evaluate(self.collector, self.held_out, step=0)[0]

    def _train_step(self, directory: RunDirectory) -> dict[str, Any]:
        """One step; until all of it is done the progress stays where it was."""
        clock, laps, step = Clock(), self.stream.laps, self.progress.step + 1
        with self.interruption.welcome():
            groups, replaced = self._groups(step, clock)
            ahead = self._ask_ahead(step + 1, clock)
        if self.stream.laps > laps:
            self._say_started_over(directory, step)
        groups = with_advantages(groups, self.algorithm.advantage)
        clock.lap("grade")
        row: dict[str, Any] = metrics.of_groups(groups)
        row |= self.pressures.adapt(row["accuracy"])
        row |= self.placement.update([sample_of(r) for group in groups for r in group])
        clock.lap("learn")
        rollouts = [r for group in groups for r in group]
        size = 0
        if replaced:
            unlearned = [r for group in replaced for r in group]
            size = directory.rollouts.append("replaced", step, unlearned)
        size += directory.rollouts.append("train", step, rollouts)
        clock.lap("record")
        tokens = sum(len(r.completion.tokens) for r in rollouts)
        learned = sum(len(r.completion.tokens) for r in rollouts if r.advantage)
        row = {"step": step, **row, "record_bytes": size, "timing": {
            "time": now(), **clock.laps, **self.placement.timing(),
            "generate_tokens_per_second": round(tokens / max(clock.laps["generate"], 1e-9)),
            "learn_tokens_per_second": round(learned / max(clock.laps["learn"], 1e-9)),
        }}  # fmt: skip
        directory.metrics(row)
        self.mirrors.feed(track.trained(row))
        progress = self.progress
        progress.step, progress.data, progress.ahead = step, self.stream.state(), ahead
        progress.pressures = self.pressures.state()
        for sentence in self.watch.look(row):
            directory.event("warning", step=step, text=sentence)
            self.display.warn(sentence)
        self.display.step(row, groups)
        return row

    def _groups(self, step: int, clock: Clock) -> tuple[list[Group], list[Group]]:
        """The step's groups, and those that they replace: with dynamic sampling, groups without
        variance are drawn again."""
        config = self.config
        wanted, groups, replaced = config.data.groups_per_step, list[Group](), list[Group]()
        groups_of = self.progress.ahead or self._ask(step, wanted, clock)
        for refills in range(config.learn.max_resamples, -1, -1):
            drawn = groups_of()
            clock.lap("generate")
            groups += self._rewarded(drawn, step)
            if not self.algorithm.dynamic_sampling:
                break
            varied = [g for g in groups if len({r.grade.reward for r in g}) > 1]
            if varied:
                replaced += [g for g in groups if len({r.grade.reward for r in g}) == 1]
                groups = varied
            if len(varied) in (0, wanted) or not refills:
                break
            groups_of = self._ask(step, wanted - len(groups), clock)
        numbered = [
            [replace(r, group=number) for r in group]
            for number, group in enumerate(groups + replaced)
        ]
        return numbered[: len(groups)], numbered[len(groups) :]

    def _rewarded(self, groups: list[Group], step: int) -> list[Group]:
        """The pressures taken off; as a negative control, rewards dealt anew or tossed for."""
        groups, reward = self.pressures.apply(groups), self.config.reward
        if reward.random:
            return random_rewards(groups, self.config.seed, step)
        return shuffle_rewards(groups, self.config.seed, step) if reward.shuffle else groups

    def _ask(self, step: int, count: int, clock: Clock) -> Callable[[], list[Group]]:
        """Draw problems for a step and begin to generate, with the weights of this moment; what is
        returned waits for the groups."""
        self.stream.reach(step)
        problems = self.stream.take(count)
        clock.lap("draw")
        asked = self.collector.ask(
            problems, step=step, split="train", samples=self.config.generate.group_size,
            sampling=self.sampling, between=self.interruption.here,
        )  # fmt: skip
        clock.lap("generate")
        return asked.groups

    def _ask_ahead(self, step: int, clock: Clock) -> Callable[[], list[Group]] | None:
        """With a lag: the next step's completions, generated while this one is learned from."""
        if not self.config.max_offpolicy_steps or step > self.config.steps:
            return None
        with suppress(UsedUp):  # the next step will find that out by itself
            return self._ask(step, self.config.data.groups_per_step, clock)
        return None

    def _evaluate(self, directory: RunDirectory) -> dict[str, Any] | None:
        progress = self.progress
        if not self.held_out:
            progress.evaluated = progress.step
            return None
        self.display.evaluating(progress.step)
        held_out, audit = self.guard.check(directory.rollouts.folder)
        directory.event("audit", step=progress.step, **audit)
        if audit["removed"]:
            self.display.warn(
                f"{audit['removed']} of {audit['checked']} evaluation problems have been trained on; "
                f"they are left out, others take their places, and {audit['left']} are left."
            )
        with self.interruption.welcome():
            if progress.ahead:
                progress.ahead()  # of older weights than those that are evaluated
            found, rollouts = accuracy.evaluate(
                self.collector, held_out, progress.step, self.interruption.here
            )
        found["removed"] = audit["removed"]
        directory.rollouts.append("validation", progress.step, rollouts)
        event = directory.event("evaluation", step=progress.step, **found)
        self.mirrors.feed(track.evaluated(event))
        progress.evaluated = progress.step
        if progress.step == 0:
            progress.before = found
        self.display.evaluated(progress.step, found)
        return found

    def _event(self, kind: str, **what: Any) -> None:
        """What the placement tells: into the log, and on the screen if it has words."""
        if self.directory:
            self.directory.event(kind, step=self.progress.step, **what)
        if "text" in what:
            self.display.warn(what["text"])

    def _say_started_over(self, directory: RunDirectory, step: int) -> None:
        """Fresh problems are used up: from here on they come again."""
        directory.event("started_over", step=step, laps=self.stream.laps)
        if self.stream.laps == 1:
            self.display.warn(
                f"Every training problem of {self.task.name} at these options has been asked: from step "
                f"{step} on they come again. data.on_exhausted=stop would end the run here."
            )
