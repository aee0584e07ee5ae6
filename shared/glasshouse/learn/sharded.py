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
from glasshouse.learn.learner import Gradients, Learner, StepSize
from glasshouse.learn.learner_state import ADAPTER_KEY, LearnerState, trained_parameters
from glasshouse.learn.microbatches import TrainingSample
from glasshouse.models.adapters import without_adapters
from glasshouse.models.logprobs import CompletionBatch, find_layers
from glasshouse.models.policy import Policy, choose_device, count_parameters
from glasshouse.models.shared_prefix import SharedPrefixes


class RankWork(NamedTuple):
    """What one rank computes in a round."""

    microbatch: list[TrainingSample]
    counts: bool
    """False: a repeated sample that must not change the result."""


class ShardedLearner(Learner):
    """One rank of a learner. All ranks must call its methods with the same arguments.

    Example: `ShardedLearner(policy, config.learn, device=device, max_tokens=128, steps=60).update(samples)`
    """

    def __init__(
        self, policy: Policy, config: LearnConfig, *, device: torch.device, **options: Any
    ) -> None:
        """`policy` is whole, on the CPU and equal on all ranks; this rank computes on `device`. `options` as for
        `Learner`."""
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        model = policy.model
        shard_model(model, mesh, dtype=policy.dtype, cpu_offload=config.cpu_offload)
        # the starting policy: a divided copy, or the model itself without its adapters
        has_adapters = hasattr(model, "peft_config")
        reference = model if has_adapters else copy_frozen(model, mesh, policy.dtype)
        super().__init__(policy, config, reference=reference, transformers_forward=True, **options)
        self.device = device

    def whole_tensors(self) -> Iterator[Tensor]:
        """The trained tensors, gathered one after another, in the model's order."""
        for parameter in self.parameters:
            yield whole_tensor(parameter, self.device)

    def state(self) -> LearnerState:
        """`save_shards` writes this rank's part of the state to the folder of a checkpoint."""
        tensors = super().state().tensors
        return LearnerState(
            self.version, {}, save_shards=lambda folder: tensor_shards.save_shards(tensors, folder)
        )

    def restore(self, state: LearnerState) -> None:
        """Continues from the checkpoint in `state.folder`, which any number of ranks, or a learner that was not
        divided, has written."""
        assert state.folder is not None
        parameters = trained_parameters(self.policy.model)
        has_adapters = hasattr(self.policy.model, "peft_config")
        targets: dict[str, Tensor] = {
            f"{ADAPTER_KEY}/{name}" if has_adapters else name: parameter.detach()
            for name, parameter in parameters.items()
        }
        self.optimizer.state.clear()
        if state.version:
            for name, parameter in parameters.items():
                moments = {
                    "step": torch.zeros(()),
                    "exp_avg": torch.zeros_like(parameter.detach()),
                    "exp_avg_sq": torch.zeros_like(parameter.detach()),
                }
                self.optimizer.state[parameter] = moments
                targets |= {f"{key}/{name}": tensor for key, tensor in moments.items()}
        tensor_shards.load_shards(targets, state.folder)
        self.version = state.version

    def _reference_logprobs(
        self, pairs: Any, batch: CompletionBatch, prefixes: SharedPrefixes | None
    ) -> Tensor:
        with without_adapters(self.reference):
            return super()._reference_logprobs(pairs, batch, prefixes)

    def compute_gradients(self, samples: list[TrainingSample], size: StepSize) -> Gradients:
        """Every rank computes its microbatches; FSDP's backward pass adds up their gradients and leaves each rank its
        parts in `parameter.grad`."""
        microbatches = [part for block in self.plan_blocks(samples) for part in block.microbatches]
        own = Gradients([])
        for work in plan_rounds(microbatches, dist.get_world_size(), dist.get_rank()):
            inputs = self.build_loss_inputs(work.microbatch, size)
            loss, sums = self.algorithm.loss(inputs)
            if work.counts:
                loss.backward()
                own.count_loss(loss, sums, inputs)
            else:
                (loss * 0.0).backward()
        reports: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(reports, (own.loss, own.logprob_diffs, own.metric_sums))
        total = Gradients([])
        for report in reports:
            total.add(Gradients([], *report))
        self._check_loss(total.loss)  # on all ranks alike
        total.values = [parameter.grad for parameter in self.parameters]
        return total

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


def local_part(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole_tensor(tensor: Tensor, device: torch.device) -> Tensor:
    """A divided tensor, gathered on every rank; all ranks must call it. `device` is where ranks exchange tensors."""
    detached: Any = tensor.detach()
    whole: Tensor = detached.to(device).full_tensor() if isinstance(tensor, DTensor) else detached
    return whole


def plan_rounds(
    microbatches: Sequence[list[TrainingSample]], world_size: int, rank: int
) -> Iterator[RankWork]:
    """What this rank computes, round by round; all ranks have the same number of rounds."""
    for start in range(0, len(microbatches), world_size):
        if start + rank < len(microbatches):
            yield RankWork(microbatches[start + rank], counts=True)
        else:
            yield RankWork(microbatches[start][:1], counts=False)


def check_sharded_learner(config: Config) -> None:
    """Raises if the device of a run cannot be used by a sharded learner, before anything is started."""
    device = choose_device(config, count_parameters(config.model), "learner")
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
