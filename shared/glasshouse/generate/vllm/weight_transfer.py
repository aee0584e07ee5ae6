"""Weights through shared memory, as an engine of vLLM's weight transfer interface.

    learner                                     each worker of vLLM
    write all tensors to an unnamed file  ──►   map the file, compare its version and checksum,
    start, update, finish (vLLM's calls)        load the tensors, repack what vLLM keeps packed

vLLM ships such engines for GPUs only (`nccl`, `ipc`). This one works on CPUs and for any number of workers on
one host. The file has no name: nothing remains on disk however a run ends.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.distributed.weight_transfer import (
    ParamMeta,
    TrainerWeightTransferEngine,
    WeightSource,
    WeightTransferEngine,
    WeightTransferEngineFactory,
    WeightTransferTrainerFactory,
)
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from glasshouse.generate.vllm.weight_source import (
    WeightChecksum,
    checksum_weights,
    iterate_parameters,
    iterate_weights,
    view_bytes,
)

BACKEND = "shared_memory"
HEADER_BYTES = 64
"""The version of the weights in the file; padded, so that tensors are aligned."""
INCOMPLETE = -1


class StaleVersion(RuntimeError):
    """The shared memory holds another version of the weights than the one that was announced."""


class WrongWeights(RuntimeError):
    """The weights that arrived are not those that were sent, or not all of them."""


# ── learner ──────────────────────────────────────────────────────────────────────────────────────


class PolicySource(WeightSource):
    """The weights of a model, with adapters merged, and their version."""

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        self.model, self.dtype, self.version = model, dtype, 0

    def metadata(self) -> list[ParamMeta]:
        return [
            ParamMeta(name, self.dtype, tuple(tensor.shape))
            for _, name, tensor in iterate_parameters(self.model)
        ]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return iterate_weights(self.model, self.dtype)


class LocalClient:
    """Calls the weight transfer methods of a `vllm.LLM` of this process."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.llm.init_weight_transfer_engine({"init_info": init_info})

    def start_weight_update(self) -> None:
        self.llm.start_weight_update()

    def update_weights(self, update_info: Any) -> None:
        self.llm.update_weights({"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.llm.finish_weight_update(weight_version)


@dataclass
class SharedMemoryTrainerInit(TrainerInitInfo):
    backend: ClassVar[str] = BACKEND


class SharedMemoryTrainer(TrainerWeightTransferEngine[SharedMemoryTrainerInit]):
    """Writes the weights to shared memory and tells vLLM to read them."""

    init_info_cls = SharedMemoryTrainerInit

    def __init__(self, *, client: Any, source: PolicySource) -> None:
        super().__init__(client=client, source=source)
        self.fd = os.memfd_create("glasshouse-weights")
        self.memory: mmap.mmap | None = None
        self.checksum = ""
        """Of the weights that were sent last."""

    @classmethod
    def trainer_init(
        cls, init_info: SharedMemoryTrainerInit, *, client: Any, source: Any = None
    ) -> SharedMemoryTrainer:
        trainer = cls(client=client, source=source)
        client.init_weight_transfer_engine({"path": f"/proc/{os.getpid()}/fd/{trainer.fd}"})
        return trainer

    def send_weights(self) -> None:
        info = self.write()
        self.client.start_weight_update()
        self.client.update_weights(asdict(info))
        self.client.finish_weight_update(str(info.version))

    def write(self) -> SharedMemoryUpdate:
        """Write all tensors to the file; returns what a worker must know to read them."""
        assert isinstance(self.source, PolicySource)
        metadata = self.source.metadata()
        if self.memory is None:
            numbers = sum(math.prod(meta.shape) for meta in metadata)
            size = HEADER_BYTES + numbers * self.source.dtype.itemsize
            os.ftruncate(self.fd, size)
            self.memory = mmap.mmap(self.fd, size)
        write_version(self.memory, INCOMPLETE)
        checksum = WeightChecksum()
        flat, start = torch.frombuffer(self.memory, dtype=torch.uint8), HEADER_BYTES
        for name, tensor in self.source:
            checksum.update(name, tensor)  # of the tensor, not of the file
            flat[start : start + tensor.nbytes] = view_bytes(tensor)
            start += tensor.nbytes
        self.checksum = checksum.hexdigest()
        write_version(self.memory, self.source.version)
        return SharedMemoryUpdate(
            version=self.source.version,
            checksum=self.checksum,
            names=[meta.name for meta in metadata],
            dtypes=[str(meta.dtype).removeprefix("torch.") for meta in metadata],
            shapes=[list(meta.shape) for meta in metadata],
        )

    def shutdown(self) -> None:
        os.close(self.fd)


# ── worker of vLLM ───────────────────────────────────────────────────────────────────────────────


@dataclass
class SharedMemoryInit(WeightTransferInitInfo):
    path: str
    """By which the workers open the file, as in /proc/123/fd/7."""


@dataclass
class SharedMemoryUpdate(WeightTransferUpdateInfo):
    version: int
    checksum: str
    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]


class SharedMemoryReceiver(WeightTransferEngine[SharedMemoryInit, SharedMemoryUpdate]):
    """Loads weights from shared memory into the model of one worker."""

    init_info_cls, update_info_cls = SharedMemoryInit, SharedMemoryUpdate

    def init_transfer_engine(self, init_info: SharedMemoryInit) -> None:
        self.path = init_info.path
        self.checksum = ""
        """Of the weights that were loaded last."""

    def start_weight_update(self) -> None:
        # Before the reload, which gives a tied head a parameter of its own.
        self.expected = {name for name, _ in self.model.named_parameters()}
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: SharedMemoryUpdate) -> None:
        try:
            weights = read_weights(self.path, update_info)
        except (StaleVersion, WrongWeights):
            # Nothing was loaded: this puts the previous weights back.
            finalize_layerwise_reload(self.model, self.model_config)
            raise
        missing = sorted(self.expected - set(self.model.load_weights(weights)))
        if missing:
            raise WrongWeights(f"{len(missing)} tensors did not arrive, the first is {missing[0]}")
        self.checksum = update_info.checksum

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        # vLLM 0.32 does not repack a head that is tied to the embeddings: it would keep the old weights.
        for module in self.model.modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)

    def shutdown(self) -> None:
        """Nothing is open between two updates."""


class WorkerExtension:
    """vLLM imports this module in each of its workers, because it adds this class to them."""

    def read_checksum(self) -> str:
        """The checksum of the weights that this worker loaded last."""
        checksum: str = self.weight_transfer_engine.checksum  # type: ignore[attr-defined]
        return checksum


def read_weights(path: str, update: SharedMemoryUpdate) -> list[tuple[str, Tensor]]:
    """The tensors in the file, without copying them; raises if they are not those that were announced."""
    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    version = int.from_bytes(memory[:8], "little", signed=True)
    if version != update.version:
        raise StaleVersion(
            f"version {update.version} of the weights was announced, but the shared memory holds {version}"
        )
    weights, start = [], HEADER_BYTES
    for name, dtype, shape in zip(update.names, update.dtypes, update.shapes, strict=True):
        kind = getattr(torch, dtype)
        count = torch.Size(shape).numel()
        tensor = torch.frombuffer(memory, dtype=kind, count=count, offset=start)
        weights.append((name, tensor.view(shape)))
        start += count * kind.itemsize
    checksum = checksum_weights(weights)
    if checksum != update.checksum:
        raise WrongWeights(
            f"the checksum of version {version} is {checksum} instead of {update.checksum}"
        )
    return weights


def write_version(memory: mmap.mmap, version: int) -> None:
    memory[:8] = version.to_bytes(8, "little", signed=True)


WeightTransferEngineFactory.register_engine(BACKEND, SharedMemoryReceiver)
WeightTransferTrainerFactory.register_engine(BACKEND, SharedMemoryTrainer)
