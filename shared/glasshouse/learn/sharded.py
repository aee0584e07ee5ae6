"""The learner of `learn.sharding: fsdp`: weights, gradients and optimizer state are divided among ranks.

    samples ──► drop rows of zero advantage ──► blocks of prompts, one per rank and round ──► each rank: prompts once,
    microbatches of completions, backward; FSDP adds up the gradients ──► clip by the norm of all ranks ──► AdamW on the
    rank's parts

Every rank gets all samples and plans the same rounds. The loss is divided by the counts of the whole step, so that the
sum of the ranks' gradients is the gradient of one process, up to rounding. A rank without work in a round computes a
microbatch whose loss is multiplied by 0: the other ranks wait for its calls.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from glasshouse.config.schema import Config, LearnConfig
from glasshouse.errors import ConfigError
from glasshouse.learn.learner import Learner
from glasshouse.learn.learner_state import ADAPTER_KEY, LearnerState, trained_parameters
from glasshouse.learn.microbatches import TrainingSample, pack_microbatches, split_into_blocks
from glasshouse.models.configured import choose_device, read_size
from glasshouse.models.logprobs import CompletionBatch
from glasshouse.models.policy import Policy
from glasshouse.models.sharded import (
    ShardedModel,
    ShardedPrefixes,
    check_shardable,
    copy_frozen,
    local_part,
    shard_model,
    whole_tensor,
)
from glasshouse.runs import tensor_shards

Pairs = Sequence[tuple[tuple[int, ...], Sequence[int]]]


class RankWork(NamedTuple):
    """What one rank computes in a round."""

    microbatches: list[list[TrainingSample]]
    padding: int
    """The last so many microbatches are repeated samples that do not count."""


class ShardedLearner(Learner):
    """One rank of a learner. All ranks must call its methods with the same arguments.

    Example: `ShardedLearner(policy, config.learn, device, max_tokens=128, steps=60).update(samples)`
    """

    def __init__(
        self, policy: Policy, config: LearnConfig, device: torch.device, **options: Any
    ) -> None:
        """`policy` is whole, on the CPU and equal on all ranks; this rank computes on `device`. `options` as for
        `Learner`."""
        self.mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        self.sharded = shard_model(
            policy.model, self.mesh, dtype=policy.dtype, cpu_offload=config.cpu_offload
        )
        super().__init__(policy, config, **options)
        self.device = device

    @classmethod
    def on_device(cls, policy: Policy, config: Config, device: torch.device) -> ShardedLearner:
        """This rank of the learner of a run."""
        return cls(
            policy, config.learn, device, max_tokens=config.generate.max_tokens,
            steps=config.steps, temperature=config.generate.temperature,
            kl_every=config.diagnostics.kl_every,
        )  # fmt: skip

    def whole_tensors(self) -> Iterator[Tensor]:
        """The trained tensors, gathered one after another, in the model's order."""
        for parameter in self.parameters:
            yield whole_tensor(parameter, self.device)

    def save(self, folder: Path) -> None:
        """Writes this rank's part of the learner's state to the folder of a checkpoint."""
        tensor_shards.save_shards(super().state().tensors, folder)

    def load(self, version: int, folder: Path) -> None:
        """Continues from a checkpoint that any number of ranks, or a learner that was not divided, has written."""
        parameters = trained_parameters(self.policy.model)
        has_adapters = hasattr(self.policy.model, "peft_config")
        targets: dict[str, Tensor] = {
            f"{ADAPTER_KEY}/{name}" if has_adapters else name: parameter.detach()
            for name, parameter in parameters.items()
        }
        self.optimizer.state.clear()
        if version:
            for name, parameter in parameters.items():
                state = {
                    "step": torch.zeros(()),
                    "exp_avg": torch.zeros_like(parameter.detach()),
                    "exp_avg_sq": torch.zeros_like(parameter.detach()),
                }
                self.optimizer.state[parameter] = state
                targets |= {f"{key}/{name}": tensor for key, tensor in state.items()}
        tensor_shards.load_shards(targets, folder)
        self.version = version

    def state(self) -> LearnerState:
        raise NotImplementedError("A sharded learner is saved by its ranks: `save`.")

    def restore(self, state: LearnerState) -> None:
        raise NotImplementedError("A sharded learner is loaded by its ranks: `load`.")

    def _copy_reference(self) -> ShardedModel:
        """The starting policy: a divided copy, or the model itself without its adapters."""
        if hasattr(self.policy.model, "peft_config"):
            return self.sharded
        return copy_frozen(self.sharded, self.mesh, self.policy.dtype)

    def _reference_context(self) -> AbstractContextManager[None]:
        is_model = self.reference is self.sharded
        return self.sharded.without_adapters() if is_model else nullcontext()

    def _accumulate_gradients(
        self, samples: list[TrainingSample], rows: int, tokens: int
    ) -> tuple[float, list[Tensor], dict[str, float]]:
        loss, logprob_diffs, metric_sums = 0.0, list[Tensor](), dict[str, float]()
        rank, world_size = dist.get_rank(), dist.get_world_size()
        for work in plan_rounds(samples, self.config.microbatch_tokens, world_size, rank):
            prompts = [s.prompt for microbatch in work.microbatches for s in microbatch]
            prefixes = ShardedPrefixes(
                self.sharded, prompts, recompute=self.config.activation_checkpointing
            )
            reference = self._share_reference_prompts(prompts) if self.settings.kl_coef else None
            counted = len(work.microbatches) - work.padding
            for number, microbatch in enumerate(work.microbatches):
                inputs = self._build_loss_inputs(microbatch, prefixes, reference, rows, tokens)
                part, sums = self.algorithm.loss(inputs)
                if number >= counted:
                    (part * 0.0).backward()
                    continue
                part.backward()
                difference = (inputs.logprobs.detach() - inputs.sampler_logprobs).abs()
                loss += part.item()
                logprob_diffs.append(difference[inputs.mask.bool()].cpu())
                for name, value in sums.items():
                    metric_sums[name] = metric_sums.get(name, 0.0) + value.item()
            prefixes.backward()
        return self._gather_metrics(loss, logprob_diffs, metric_sums)

    def _gather_metrics(
        self, loss: float, differences: list[Tensor], metric_sums: dict[str, float]
    ) -> tuple[float, list[Tensor], dict[str, float]]:
        """Loss, differences and metric sums of all ranks. A loss that is not finite raises on all of them."""
        reports: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(reports, (loss, differences, metric_sums))
        total = sum(loss for loss, _, _ in reports)
        self._check_loss(total)
        sums: dict[str, float] = {}
        for _, _, report in reports:
            for name, value in report.items():
                sums[name] = sums.get(name, 0.0) + value
        return total, [tensor for _, tensors, _ in reports for tensor in tensors], sums

    def _clip_gradients(self, limit: float) -> float:
        """The norm is summed in double precision, so that it hardly depends on the number of ranks."""
        gradients = [local_part(p.grad) for p in self.parameters if p.grad is not None]
        squares = [torch.linalg.vector_norm(g, dtype=torch.float64).square() for g in gradients]
        total = torch.stack(squares).sum().to(self.device)
        dist.all_reduce(total)
        norm = math.sqrt(total.item()) if math.isfinite(total.item()) else math.inf
        if norm > limit:
            for gradient in gradients:
                gradient.mul_(limit / (norm + 1e-6))
        return norm

    def _policy_logprobs(
        self, pairs: Pairs, batch: CompletionBatch, prefixes: ShardedPrefixes
    ) -> tuple[Tensor, Tensor | None]:
        logprobs, entropy = prefixes.completion_logprobs(pairs, self.temperature)
        return logprobs, entropy if self.settings.entropy_coef else None

    @torch.no_grad()
    def _share_reference_prompts(self, prompts: Sequence[tuple[int, ...]]) -> ShardedPrefixes:
        with self._reference_context():
            return ShardedPrefixes(self.reference, prompts)

    @torch.no_grad()
    def _reference_logprobs(
        self, pairs: Pairs, batch: CompletionBatch, prefixes: ShardedPrefixes
    ) -> Tensor:
        with self._reference_context():
            return prefixes.completion_logprobs(pairs, self.temperature)[0]


def plan_rounds(
    samples: list[TrainingSample], max_tokens: int, world_size: int, rank: int
) -> Iterator[RankWork]:
    """What this rank computes, round by round. In each round all ranks have the same number of microbatches."""
    if not samples:
        return
    blocks = [
        pack_microbatches(block, max_tokens, count_prompts=False)
        for block in split_into_blocks(samples, max_tokens, world_size)
    ]
    for start in range(0, len(blocks), world_size):
        shared = blocks[start : start + world_size]
        own = shared[rank] if rank < len(shared) else []
        padding = max(map(len, shared)) - len(own)
        filler = (own or shared[0])[0][:1]
        yield RankWork([*own, *[filler] * padding], padding)


def check_sharded_learner(policy: Policy, config: Config) -> None:
    """Raises if the model or the device of a run cannot be used by a sharded learner, before anything is started."""
    check_shardable(policy.model.config)
    device = choose_device(config, read_size(config.model), "learner")
    choose_process_group(config.learn.process_group, device, cpu_offload=config.learn.cpu_offload)


def choose_process_group(name: str, device: torch.device, *, cpu_offload: bool) -> str:
    """torch's name of the backend for `learn.process_group`; raises if it cannot be used on this device."""
    if name == "nccl" and device.type != "cuda":
        raise ConfigError(
            f"learn.process_group is nccl, which exchanges tensors between GPUs, but the learner runs on {device}. "
            "Set learn.process_group=auto, or device=cuda on a machine with a GPU."
        )
    if cpu_offload and device.type != "cuda":
        raise ConfigError(
            f"learn.cpu_offload moves the learner's tensors from a GPU to the host's memory, but the learner runs on "
            f"{device}. Set learn.cpu_offload=false."
        )
    backend = {"auto": "nccl" if device.type == "cuda" else "gloo"}.get(name, name)
    return f"cpu:gloo,cuda:{backend}" if device.type == "cuda" else backend
