"""The learner of `learn.sharding: fsdp`: weights, gradients and optimizer state are divided among ranks.

    samples ──► drop rows of zero advantage ──► microbatches, one per rank and round ──► each rank: transformers'
    forward, loss, backward; FSDP adds up the gradients ──► clip by the norm of all ranks ──► AdamW on the rank's parts

FSDP gathers the tensors of one layer at a time when it is called, frees them when the call returns, and gathers them
again in the backward pass. Every rank gets all samples and plans the same rounds. The loss is divided by the counts of
the whole step, so that the sum of the ranks' gradients is the gradient of one process, up to rounding. A rank without
work in a round computes a microbatch whose loss is multiplied by 0: the other ranks wait for its calls.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from glasshouse.config.schema import Config, LearnConfig
from glasshouse.errors import ConfigError
from glasshouse.learn import tensor_shards
from glasshouse.learn.learner import GradientBlock, Learner
from glasshouse.learn.learner_state import ADAPTER_KEY, LearnerState, trained_parameters
from glasshouse.learn.microbatches import TrainingSample, pack_microbatches
from glasshouse.models.configured import choose_device, read_size
from glasshouse.models.logprobs import (
    CompletionBatch,
    compute_transformers_logprobs,
    find_layers,
)
from glasshouse.models.policy import Policy

Pairs = Sequence[tuple[tuple[int, ...], Sequence[int]]]


class RankWork(NamedTuple):
    """What one rank computes in a round."""

    microbatch: list[TrainingSample]
    counts: bool
    """False: a repeated sample that must not change the result."""


class TransformersLearner(Learner):
    """A learner that computes with transformers' own forward pass, as FSDP needs; it has no other use."""

    def _plan_blocks(self, samples: list[TrainingSample]) -> list[GradientBlock]:
        parts = pack_microbatches(samples, self.config.microbatch_tokens)
        return [GradientBlock(False, [part]) for part in parts]

    def _policy_logprobs(
        self, pairs: Pairs, batch: CompletionBatch, prefixes: None
    ) -> tuple[Tensor, Tensor | None]:
        return compute_transformers_logprobs(
            self.policy.model, batch, self.temperature, entropy=self.settings.entropy_coef != 0,
            dtype=self.policy.dtype, recompute=self.config.activation_checkpointing,
        )  # fmt: skip

    def _share_reference_prompts(self, prompts: Sequence[tuple[int, ...]]) -> None:
        """Each row computes its prompt."""

    @torch.no_grad()
    def _reference_logprobs(self, pairs: Pairs, batch: CompletionBatch, prefixes: None) -> Tensor:
        with without_adapters(self.reference):
            return compute_transformers_logprobs(
                self.reference, batch, self.temperature, dtype=self.policy.dtype
            )[0]


class ShardedLearner(TransformersLearner):
    """One rank of a learner. All ranks must call its methods with the same arguments.

    Example: `ShardedLearner(policy, config.learn, device, max_tokens=128, steps=60).update(samples)`
    """

    def __init__(
        self, policy: Policy, config: LearnConfig, device: torch.device, **options: Any
    ) -> None:
        """`policy` is whole, on the CPU and equal on all ranks; this rank computes on `device`. `options` as for
        `Learner`."""
        self.mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        shard_model(policy.model, self.mesh, dtype=policy.dtype, cpu_offload=config.cpu_offload)
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

    def _copy_reference(self) -> Any:
        """The starting policy: a divided copy, or the model itself without its adapters."""
        if hasattr(self.policy.model, "peft_config"):
            return self.policy.model
        return copy_frozen(self.policy.model, self.mesh, self.policy.dtype)

    def _accumulate_gradients(
        self, samples: list[TrainingSample], rows: int, tokens: int
    ) -> tuple[float, list[Tensor], dict[str, float]]:
        loss, logprob_diffs, metric_sums = 0.0, list[Tensor](), dict[str, float]()
        rank, world_size = dist.get_rank(), dist.get_world_size()
        for work in plan_rounds(samples, self.config.microbatch_tokens, world_size, rank):
            inputs = self._build_loss_inputs(work.microbatch, None, None, rows, tokens)
            part, sums = self.algorithm.loss(inputs)
            if not work.counts:
                (part * 0.0).backward()
                continue
            part.backward()
            difference = (inputs.logprobs.detach() - inputs.sampler_logprobs).abs()
            loss += part.item()
            logprob_diffs.append(difference[inputs.mask.bool()].cpu())
            for name, value in sums.items():
                metric_sums[name] = metric_sums.get(name, 0.0) + value.item()
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


def shard_model(
    model: Any, mesh: DeviceMesh, *, dtype: torch.dtype, cpu_offload: bool = False
) -> None:
    """Divides the tensors of a model, which is equal on all ranks, among the ranks of the mesh. Matrix products are
    computed in `dtype`; gradients are added up in float32. `cpu_offload` keeps the parts of this rank in the host's
    memory."""
    rounds = dtype != torch.float32
    options: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=dtype if rounds else None, reduce_dtype=torch.float32 if rounds else None
        ),
        "offload_policy": CPUOffloadPolicy() if cpu_offload else OffloadPolicy(),
    }
    for layer in find_layers(model):
        fully_shard(layer, reshard_after_forward=True, **options)
    fully_shard(model, reshard_after_forward=False, **options)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # the sum over ranks, not the mean
            module.set_force_sum_reduction_for_comms(True)  # gloo cannot divide


def copy_frozen(source: Any, mesh: DeviceMesh, dtype: torch.dtype) -> Any:
    """A sharded copy that is never trained, rounded to `dtype`. No rank ever holds a whole copy."""
    with torch.device("meta"):
        model = type(source)(source.config).to(dtype).eval().requires_grad_(False)
    shard_model(model, mesh, dtype=dtype)
    model.to_empty(device=mesh.device_type)
    with torch.no_grad():
        for parameter, original in zip(model.parameters(), source.parameters(), strict=True):
            local_part(parameter).copy_(local_part(original))
        for buffer, original in zip(model.buffers(), source.buffers(), strict=True):
            buffer.copy_(original)
    return model


@contextmanager
def without_adapters(model: Any) -> Iterator[None]:
    """Inside, LoRA adapters add nothing: the model is the one that training started from."""
    layers = [m for m in model.modules() if hasattr(m, "lora_A")]
    for layer in layers:
        layer._disable_adapters = True  # peft's own method also freezes them
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def local_part(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole_tensor(tensor: Tensor, device: torch.device) -> Tensor:
    """A divided tensor, gathered on every rank; all ranks must call it. `device` is where ranks exchange tensors."""
    detached: Any = tensor.detach()
    whole: Tensor = detached.to(device).full_tensor() if isinstance(tensor, DTensor) else detached
    return whole


def plan_rounds(
    samples: list[TrainingSample], max_tokens: int, world_size: int, rank: int
) -> Iterator[RankWork]:
    """What this rank computes, round by round; all ranks have the same number of rounds."""
    microbatches = pack_microbatches(samples, max_tokens)
    for start in range(0, len(microbatches), world_size):
        if start + rank < len(microbatches):
            yield RankWork(microbatches[start + rank], counts=True)
        else:
            yield RankWork(microbatches[start][:1], counts=False)


def check_sharded_learner(config: Config) -> None:
    """Raises if the device of a run cannot be used by a sharded learner, before anything is started."""
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
