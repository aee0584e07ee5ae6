"""The learner of `learn.sharding: fsdp`: weights, gradients and optimizer state are divided among ranks.

    samples ──► drop rows of zero advantage ──► microbatches, one per rank and round ──► each rank: transformers'
    forward, loss, backward; FSDP adds up the gradients ──► clip by the norm of all ranks ──► AdamW on the rank's parts

FSDP gathers the tensors of one layer at a time when it is called, frees them when the call returns, and gathers them
again in the backward pass. Every rank gets all samples and plans the same rounds. The loss is divided by the counts of
the whole step, so that the sum of the ranks' gradients is the gradient of one process, up to rounding. A rank without
work in a round computes a microbatch whose loss is multiplied by 0: the other ranks wait for its calls.

The state is torch's distributed checkpoint in its safetensors format: `learner-00001-of-00002.safetensors` holds rank
0's part of every tensor, and any number of ranks can read the files. (DCP's own format has an index that is a pickle.)
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from glasshouse.config.schema import LearnConfig
from glasshouse.errors import RunError
from glasshouse.learn.learner import (
    ADAPTER_KEY,
    Gradients,
    Learner,
    LearnerState,
    StepSize,
    trained_parameters,
)
from glasshouse.learn.microbatches import TrainingSample
from glasshouse.models.logprobs import find_layers
from glasshouse.models.policy import Policy, check_tensor


class ShardedLearner(Learner):
    """One rank of a learner. All ranks must call its methods with the same arguments.

    Example: `ShardedLearner(policy, config.learn, device=device, max_tokens=128, steps=60).update(samples)`
    """

    def __init__(
        self, policy: Policy, config: LearnConfig, *, device: torch.device, **options: Any
    ) -> None:
        """`policy` is whole, on the CPU and equal on all ranks; this rank computes on `device`. `options` as for
        `Learner`."""
        self.mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        shard_model(policy.model, self.mesh, dtype=policy.dtype)
        super().__init__(policy, config, **options)
        self.device, self.transformers_forward = device, True

    def _make_reference(self) -> Any:
        """A sharded copy, rounded to the policy's dtype. No rank ever holds a whole copy."""
        source, dtype = self.policy.model, self.policy.dtype
        if hasattr(source, "peft_config"):
            return source
        with torch.device("meta"):
            model = type(source)(source.config).to(dtype).eval().requires_grad_(False)
        shard_model(model, self.mesh, dtype=dtype)
        model.to_empty(device=self.mesh.device_type)
        with torch.no_grad():
            for parameter, original in zip(model.parameters(), source.parameters(), strict=True):
                local_part(parameter).copy_(local_part(original))
            for buffer, original in zip(model.buffers(), source.buffers(), strict=True):
                buffer.copy_(original)
        return model

    def whole_tensors(self) -> Iterator[Tensor]:
        """The trained tensors, gathered one after another on every rank, in the model's order."""
        for parameter in self.parameters:
            tensor: Any = parameter.detach()
            is_divided = isinstance(parameter, DTensor)
            yield tensor.to(self.device).full_tensor() if is_divided else tensor

    def state(self) -> LearnerState:
        """`save_shards` writes this rank's part of the state to the folder of a checkpoint."""
        tensors = super().state().tensors
        return LearnerState(
            self.version, {}, save_shards=lambda folder: save_shards(tensors, folder)
        )

    def restore(self, state: LearnerState) -> None:
        """Continues from the checkpoint in `state.folder`, which any number of ranks, or a learner that was not
        divided, has written. Raises `ModelError` if a tensor is missing or has another shape or type."""
        assert state.folder is not None
        prefix = f"{ADAPTER_KEY}/" if hasattr(self.policy.model, "peft_config") else ""
        targets: dict[str, Tensor] = {}
        self.optimizer.state.clear()
        for name, parameter in trained_parameters(self.policy.model).items():
            targets[prefix + name] = parameter.detach()
            if state.version:
                moments = {
                    "step": torch.zeros(()),
                    "exp_avg": torch.zeros_like(parameter.detach()),
                    "exp_avg_sq": torch.zeros_like(parameter.detach()),
                }
                self.optimizer.state[parameter] = moments
                targets |= {f"{key}/{name}": tensor for key, tensor in moments.items()}
        reader = HuggingFaceStorageReader(str(state.folder))
        found: Mapping[str, Any] = reader.read_metadata().state_dict_metadata
        for name, tensor in targets.items():
            like = found.get(name)
            if like is not None:
                like = torch.empty(like.size, dtype=like.properties.dtype, device="meta")
            check_tensor(name, like, tensor)
        dcp.load(targets, storage_reader=reader)
        self.version = state.version

    def compute_gradients(self, samples: list[TrainingSample], size: StepSize) -> Gradients:
        """Every rank computes its microbatches; FSDP's backward pass adds up their gradients and leaves each rank its
        parts in `parameter.grad`."""
        microbatches = [part for block in self.plan_blocks(samples) for part in block.microbatches]
        own = Gradients([])
        for microbatch, counts in plan_rounds(microbatches, dist.get_world_size(), dist.get_rank()):
            inputs = self.build_loss_inputs(microbatch, size)
            loss, sums = self.algorithm.loss(inputs)
            (loss if counts else loss * 0.0).backward()
            if counts:
                own.count_loss(loss, sums, inputs)
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


def shard_model(model: Any, mesh: DeviceMesh, *, dtype: torch.dtype) -> None:
    """Divides the tensors of a model, which is equal on all ranks, among the ranks of the mesh. Matrix products are
    computed in `dtype`; gradients are added up in float32."""
    rounds = dtype != torch.float32
    options: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=dtype if rounds else None, reduce_dtype=torch.float32 if rounds else None
        ),
    }
    for layer in find_layers(model):
        fully_shard(layer, reshard_after_forward=True, **options)
    fully_shard(model, reshard_after_forward=False, **options)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # the sum over ranks, not the mean
            module.set_force_sum_reduction_for_comms(True)  # gloo cannot divide


def local_part(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def plan_rounds(
    microbatches: Sequence[list[TrainingSample]], world_size: int, rank: int
) -> Iterator[tuple[list[TrainingSample], bool]]:
    """The microbatch of this rank in each round, and whether it counts: a rank without one repeats a sample that must
    not change the result, since all ranks have the same number of rounds."""
    for start in range(0, len(microbatches), world_size):
        if start + rank < len(microbatches):
            yield microbatches[start + rank], True
        else:
            yield microbatches[start][:1], False


def save_shards(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Writes this rank's parts of the tensors, and compares the file with them; all ranks must call it."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    dcp.save(dict(tensors), storage_writer=writer)
    file = folder / f"learner-{rank + 1:05d}-of-{world_size:05d}.safetensors"
    os.replace(folder / f"shard-{rank + 1:05d}-model-00001-of-00001.safetensors", file)
    try:
        written = load_file(file)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{file.name} does not read back: {error}") from None
    for name, tensor in tensors.items():
        part = local_part(tensor.detach()).cpu()
        found = written.get(name)
        if found is None and not (isinstance(tensor, DTensor) and part.numel()):
            continue  # a tensor that is not divided is in the file of one rank, an empty part in none
        if found is None or not torch.equal(found, part):
            raise RunError(f"{name} in {file.name} differs from what was written")
