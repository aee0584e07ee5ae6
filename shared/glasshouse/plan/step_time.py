"""Seconds per step, from the times that a run measured or from a device's throughput.

From throughput: learning is bound by matrix products (6 operations per parameter and token; 4 with
adapters; 2 more with activation checkpointing), generation on a GPU by reading weights and KV cache once per
token, on a CPU by matrix products. A prompt is computed once per group.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from pathlib import Path

from glasshouse.config import Config
from glasshouse.errors import ConfigError, RunError
from glasshouse.models.devices import DTYPES
from glasshouse.plan.accelerators import Accelerator
from glasshouse.plan.memory import TracedModel
from glasshouse.store.run_directory import load_metrics, load_run_config

LAUNCH_SECONDS = 10e-6 * 14
"""Per layer and token on a GPU with the torch engine: 14 kernels. vLLM replays a CUDA graph."""
SYNC_BANDWIDTH = 2e9
"""Bytes per second from the learner to generators in other processes of the machine: a listed value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of a step."""

    source: str
    """`measured in RUN`, or `throughput of DEVICE`."""
    generate: float
    learn: float
    other: float
    """Problems, rewards, logging, and weights for generators in other processes."""
    overlaps: bool
    """Generation and learning run at the same time (`max_offpolicy_steps`)."""

    @property
    def seconds(self) -> float:
        phases = (self.generate, self.learn)
        return (max(phases) if self.overlaps else sum(phases)) + self.other

    @property
    def limit(self) -> str:
        """The phase that takes most of the time."""
        times = {"generation": self.generate, "learning": self.learn, "other": self.other}
        return max(times, key=lambda name: times[name])


def read_step_time(run: Path, config: Config) -> tuple[StepTime, float]:
    """Median times of a run of the same model, scaled to this configuration's tokens per step; and the mean
    length of its completions."""
    measured = load_run_config(run)
    if measured.model != config.model:
        raise ConfigError(
            f'--run {run} trained "{measured.model}", but this configuration has model: {config.model}. Name '
            "a run of the same model."
        )
    rows = load_metrics(run)
    rows = rows[1:] or rows
    if not rows:
        raise RunError(f"{run} has no finished step: there are no times to plan with.")

    def median(phase: str) -> float:
        return statistics.median(row["timing"].get(phase, 0.0) for row in rows)

    length = statistics.fmean(row["length"] for row in rows)
    before = measured.data.groups_per_step * measured.generate.group_size
    ratio = config.data.groups_per_step * config.generate.group_size / before
    processes = 1 if config.backend == "local" else config.monarch.generators
    was = 1 if measured.backend == "local" else measured.monarch.generators
    other = sum(median(phase) for phase in ("sample", "reward", "log"))
    time = StepTime(
        source=f"measured in {run}",
        generate=median("generate") * ratio * was / processes,
        learn=median("learn") * ratio,
        other=other * ratio,
        overlaps=config.max_offpolicy_steps > 0 and config.backend != "local",
    )
    return time, length


def estimate_step_time(
    model: TracedModel, config: Config, device: Accelerator, prompt_tokens: int, tokens: float
) -> StepTime:
    """From the throughput of a device; `tokens` is the mean length of a completion."""
    generators, learners = 1, 1
    if config.backend == "monarch":
        generators, learners = config.monarch.generators, config.learner_processes
    generate = _generation_seconds(model, config, device, prompt_tokens, tokens) / generators
    groups, rows = (
        config.data.groups_per_step,
        config.data.groups_per_step * config.generate.group_size,
    )
    learned = (groups * prompt_tokens + rows * tokens) * config.learn.epochs_per_batch
    per_token = (4 if config.learn.lora_rank else 6) + 2 * config.learn.activation_checkpointing
    operations = per_token * model.parameters * learned
    learn = operations / (device.flops * device.learn_efficiency) / learners
    itemsize = DTYPES[config.dtype].itemsize
    sync = itemsize * model.parameters / SYNC_BANDWIDTH if config.backend == "monarch" else 0.0
    return StepTime(
        source=f"{'listed' if device.is_gpu else 'measured'} throughput of {device.name}",
        generate=generate, learn=learn, other=sync + 0.02 * (generate + learn),
        overlaps=config.max_offpolicy_steps > 0 and config.backend == "monarch",
    )  # fmt: skip


def _generation_seconds(
    model: TracedModel, config: Config, device: Accelerator, prompt_tokens: int, tokens: float
) -> float:
    """All completions of a step on one generator."""
    itemsize, n = DTYPES[config.dtype].itemsize, model.parameters
    rows = config.data.groups_per_step * config.generate.group_size
    operations = 2 * n * (config.data.groups_per_step * prompt_tokens + rows * tokens)
    if not device.is_gpu:
        return operations / (device.flops * device.generate_efficiency)
    per_row = kv_bytes_per_token(model, itemsize) * (prompt_tokens + config.generate.max_tokens)
    at_once = max(1, min(rows, (config.generate.kv_cache_mb << 20) // per_row))
    batches = math.ceil(rows / at_once)
    read = itemsize * n + at_once * per_row / 2  # on average half of the cache is filled
    step = read / (device.bandwidth * device.generate_efficiency)
    if config.generate.engine == "torch":
        step += model.layers * LAUNCH_SECONDS
    compute = operations / (device.flops * device.learn_efficiency)
    # the last row of a batch decides when it ends
    return max(batches * config.generate.max_tokens * step, compute)


def kv_bytes_per_token(model: TracedModel, itemsize: int) -> int:
    """Bytes of a token's keys and values."""
    text = model.text_config
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return int(2 * itemsize * heads * width * model.layers)
