"""Where a step's time goes: Glasshouse's own step under nested stopwatches.

Functions are wrapped from outside; each second counts once, for the innermost wrapped function
it was spent in. The run's own laps stand beside, as a check that nothing is missing.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from ours import Ours
from workload import Work

from glasshouse import randomness
from glasshouse.data import Fresh
from glasshouse.generate import TorchGenerator, torch_engine
from glasshouse.generate.decoders import LlamaDecoder
from glasshouse.learn import Learner, learner
from glasshouse.models import Policy
from glasshouse.models.logprobs import Batch
from glasshouse.models.shared_prefix import Prefixes
from glasshouse.rollout import collector
from glasshouse.store import RolloutLog, RunDirectory
from glasshouse.train import metrics
from glasshouse.train.loop import Run

Place = tuple[Any, str, str]

PLACES: list[Place] = [
    (Run, "_train_step", "the loop itself"),
    (Fresh, "take", "draw"),
    (Policy, "prompt", "chat and tokenise"),
    (randomness, "key", "noise keys"),
    (randomness, "uniforms", "noise keys"),
    (TorchGenerator, "generate", "decode bookkeeping"),
    (LlamaDecoder, "__init__", "prefill"),
    (LlamaDecoder, "prefill", "prefill"),
    (LlamaDecoder, "step", "decode dense"),
    (LlamaDecoder, "_attend", "decode attention"),
    (LlamaDecoder, "compact", "decode compaction"),
    (torch_engine, "pick", "sampling"),
    (Policy, "texts", "text decode"),
    (collector.Collector, "graded", "rollouts made"),
    (collector, "grade", "grading"),
    (metrics, "of_groups", "metrics"),
    (Learner, "update", "learner bookkeeping"),
    (Learner, "_divergence", "learner KL watch"),
    (Batch, "of", "learner batches"),
    (learner, "logprobs", "learner forward"),
    (Prefixes, "__init__", "learner forward"),
    (Prefixes, "logprobs", "learner forward"),
    (Prefixes, "gradients", "learner backward"),
    (torch.autograd, "grad", "learner backward"),
    (torch.nn.utils, "clip_grad_norm_", "optimizer"),
    (torch.optim.Adam, "step", "optimizer"),  # AdamW inherits it
    (RolloutLog, "append", "record"),
    (RunDirectory, "metrics", "record"),
]


class Stopwatches:
    """Exclusive seconds by label."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.inside: list[str] = []
        self.since = time.perf_counter()

    def turn(self) -> None:
        here = time.perf_counter()
        if self.inside:
            label = self.inside[-1]
            self.seconds[label] = self.seconds.get(label, 0.0) + here - self.since
        self.since = here

    def wrap(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.turn()
            # what the KL watch calls (its own forward passes, without gradients) is the watch's
            self.inside.append(label if "learner KL watch" not in self.inside else self.inside[-1])
            try:
                return function(*args, **kwargs)
            finally:
                self.turn()
                self.inside.pop()

        return timed

    def wrap_all(self) -> None:
        for owner, name, label in PLACES:
            function = vars(owner).get(name)
            if function is None:
                where = getattr(owner, "__name__", owner)
                raise SystemExit(f"bench/where.py times {where}.{name}, which is no longer there.")
            if isinstance(function, classmethod):
                setattr(owner, name, classmethod(self.wrap(label, function.__func__)))
            else:
                setattr(owner, name, self.wrap(label, function))


def profile(work: Work, steps: int, skip: bool, warm: int = 2) -> dict[str, Any]:
    """Median seconds a step by place, the run's own laps, and the costliest torch operations."""
    watches = Stopwatches()
    watches.wrap_all()
    ours = Ours(work, threads=1, skip=skip)
    taken, laps, whole = list[dict[str, float]](), list[dict[str, float]](), list[float]()
    for number in range(warm + steps):
        watches.seconds = {}
        reply = ours.step()
        if number >= warm:
            taken.append(watches.seconds)
            laps.append(reply["laps"])
            whole.append(reply["seconds"])
    return {
        "seconds": statistics.median(whole),
        "places": medians(taken),
        "laps": medians(laps),
        "operations": operations(ours),
    }


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    """By name, the largest first."""
    names = dict.fromkeys(name for row in rows for name in row)
    found = {name: statistics.median(row.get(name, 0.0) for row in rows) for name in names}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def operations(ours: Ours, most: int = 16) -> list[dict[str, Any]]:
    """One step under torch's own profiler (which slows it): share of time by operation."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        ours.step()
    averages = profiler.key_averages()
    total = sum(a.self_cpu_time_total for a in averages) or 1
    ordered = sorted(averages, key=lambda a: -a.self_cpu_time_total)[:most]
    return [
        {"name": a.key, "share": a.self_cpu_time_total / total, "calls": a.count} for a in ordered
    ]
