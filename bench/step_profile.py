"""Where the time of a step goes: Glasshouse's own step under nested timers.

Functions are wrapped from outside; each second counts once, for the innermost wrapped function. The
phases that the run logs itself are reported too, as a check that nothing is missing.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from glasshouse_worker import GlasshouseWorker
from workload import Workload

from glasshouse import randomness
from glasshouse.generate import torch_engine
from glasshouse.generate.llama_decoder import BaseLlamaDecoder, LlamaDecoder
from glasshouse.generate.torch_engine import TorchGenerator
from glasshouse.learn import learner
from glasshouse.learn.learner import Learner
from glasshouse.models.logprobs import CompletionBatch
from glasshouse.models.policy import Policy
from glasshouse.models.shared_prefix import SharedPrefixes
from glasshouse.rollout import collector
from glasshouse.runs.rollout_log import RolloutLog
from glasshouse.runs.run_directory import RunDirectory
from glasshouse.tasks.streams import FreshProblems
from glasshouse.training import loop

KL_ESTIMATE = "learner KL estimate"

TIMED_FUNCTIONS: list[tuple[Any, str, str]] = [
    (loop, "collect_groups", "loop"),
    (FreshProblems, "take", "sample problems"),
    (Policy, "encode_prompt", "chat template and tokenizer"),
    (randomness, "key", "noise keys"),
    (randomness, "uniforms", "noise keys"),
    (TorchGenerator, "generate", "decode bookkeeping"),
    (BaseLlamaDecoder, "__init__", "prefill"),
    (LlamaDecoder, "prefill", "prefill"),
    (BaseLlamaDecoder, "step", "decode dense"),
    (LlamaDecoder, "_attend", "decode attention"),
    (LlamaDecoder, "compact", "decode compaction"),
    (torch_engine, "sample_tokens", "sampling"),
    (Policy, "decode_batch", "text decode"),
    (collector, "_grade_group", "build rollouts"),
    (collector, "grade", "grading"),
    (loop, "compute_step_metrics", "metrics"),
    (Learner, "update", "learner bookkeeping"),
    (Learner, "_estimate_kl", KL_ESTIMATE),
    (CompletionBatch, "from_pairs", "learner batches"),
    (learner, "compute_logprobs", "learner forward"),
    (SharedPrefixes, "__init__", "learner forward"),
    (SharedPrefixes, "completion_logprobs", "learner forward"),
    (SharedPrefixes, "backward", "learner backward"),
    (SharedPrefixes, "parameter_gradients", "learner backward"),
    (torch.autograd, "grad", "learner backward"),
    (torch.nn.utils, "clip_grad_norm_", "optimizer"),
    (torch.optim.Adam, "step", "optimizer"),  # AdamW inherits it
    (RolloutLog, "append", "rollout log"),
    (RunDirectory, "log_metrics", "rollout log"),
]


class NestedTimers:
    """Exclusive seconds per label."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.stack: list[str] = []
        self.last = time.perf_counter()

    def switch(self) -> None:
        now = time.perf_counter()
        if self.stack:
            label = self.stack[-1]
            self.seconds[label] = self.seconds.get(label, 0.0) + now - self.last
        self.last = now

    def wrap(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.switch()
            # forward passes of the KL estimate count as part of it
            self.stack.append(label if KL_ESTIMATE not in self.stack else self.stack[-1])
            try:
                return function(*args, **kwargs)
            finally:
                self.switch()
                self.stack.pop()

        return timed

    def wrap_all(self) -> None:
        for owner, name, label in TIMED_FUNCTIONS:
            function = vars(owner).get(name)
            if function is None:
                where = getattr(owner, "__name__", owner)
                raise SystemExit(
                    f"bench/step_profile.py times {where}.{name}, which does not exist."
                )
            if isinstance(function, classmethod):
                setattr(owner, name, classmethod(self.wrap(label, function.__func__)))
            else:
                setattr(owner, name, self.wrap(label, function))


def profile(work: Workload, steps: int, skip: bool, warm: int = 2) -> dict[str, Any]:
    """Median seconds per step by function, the phases of the run, and the costliest torch operations."""
    timers = NestedTimers()
    timers.wrap_all()
    worker = GlasshouseWorker(work, threads=1, skip=skip)
    by_function, phases, totals = list[dict[str, float]](), list[dict[str, float]](), list[float]()
    for number in range(warm + steps):
        timers.seconds = {}
        reply = worker.step()
        if number >= warm:
            by_function.append(timers.seconds)
            phases.append(reply["phases"])
            totals.append(reply["seconds"])
    return {
        "seconds": statistics.median(totals),
        "functions": medians(by_function),
        "phases": medians(phases),
        "operations": profile_operations(worker),
    }


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    """Medians by name, largest first."""
    names = dict.fromkeys(name for row in rows for name in row)
    result = {name: statistics.median(row.get(name, 0.0) for row in rows) for name in names}
    return dict(sorted(result.items(), key=lambda item: -item[1]))


def profile_operations(worker: GlasshouseWorker, count: int = 16) -> list[dict[str, Any]]:
    """Share of time by torch operation in one step under torch's profiler, which slows it down."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        worker.step()
    averages = profiler.key_averages()
    total = sum(a.self_cpu_time_total for a in averages) or 1
    ordered = sorted(averages, key=lambda a: -a.self_cpu_time_total)[:count]
    return [
        {"name": a.key, "share": a.self_cpu_time_total / total, "calls": a.count} for a in ordered
    ]
