"""The policy's weights on their way to vLLM: a safetensors file in shared memory.

    learner                                       each worker of vLLM
    save all tensors, adapters merged,      ──►   map the file, compare its version and checksum,
    to an unnamed file; call the workers          load the tensors, repack what vLLM keeps packed

It works on CPUs and GPUs, for any number of workers on one host. Nothing remains on disk however a run ends.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

PEFT_PREFIX = "base_model.model."


@torch.no_grad()
def merge_weights(model: Any, dtype: torch.dtype) -> dict[str, Tensor]:
    """Names of a checkpoint and tensors on the CPU. Adapters (LoRA) are added to the layer that they adapt; tied
    tensors appear once."""
    modules, weights = dict(model.named_modules()), {}
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            continue
        tensor = parameter.detach()
        parent = name.rpartition(".base_layer.")[0]
        if parent and name.endswith(".weight"):
            for adapter in modules[parent].active_adapters:
                tensor = tensor + modules[parent].get_delta_weight(adapter)
        renamed = name.removeprefix(PEFT_PREFIX).replace(".base_layer.", ".")
        weights[renamed] = tensor.to("cpu", dtype).contiguous()
    return weights


def checksum_weights(weights: Mapping[str, Tensor]) -> str:
    """Hash the names and the bytes of tensors."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


class WeightFile:
    """The learner's end: a file without a name, which the workers open by its path."""

    def __init__(self) -> None:
        self.file = open(os.memfd_create("glasshouse-weights"), "w+b")  # noqa: SIM115
        self.path = f"/proc/{os.getpid()}/fd/{self.file.fileno()}"

    def write(self, weights: Mapping[str, Tensor], version: int) -> None:
        self.file.seek(0)
        self.file.truncate()
        self.file.write(save(dict(weights), metadata={"version": str(version)}))
        self.file.flush()


class WrongWeights(RuntimeError):
    """The weights in the file are not those that were announced, or not all of them arrived."""


def read_weights(path: str, version: int, checksum: str) -> dict[str, Tensor]:
    """The tensors in the file; raises if they are not those that were announced."""
    with safe_open(path, framework="pt") as file:
        found = (file.metadata() or {}).get("version")
        if found != str(version):
            raise WrongWeights(f"version {version} was announced, but the file holds {found}")
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if checksum_weights(weights) != checksum:
        raise WrongWeights(f"the checksum of version {version} is another one than announced")
    return weights


class WorkerExtension:
    """vLLM adds these methods to each of its workers."""

    def load_policy(self, path: str, version: int, checksum: str) -> str:
        """Load the weights of a file; return their checksum. Bad weights are refused before anything is changed."""
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
        from vllm.model_executor.model_loader.reload import (
            finalize_layerwise_reload,
            initialize_layerwise_reload,
        )

        worker: Any = self
        weights, model = read_weights(path, version, checksum), worker.model_runner.get_model()
        # before the reload, which gives a tied head a parameter of its own
        expected = {name for name, _ in model.named_parameters()}
        with set_current_vllm_config(worker.vllm_config):
            initialize_layerwise_reload(model)
            missing = expected - set(model.load_weights(weights.items()))
            finalize_layerwise_reload(model, worker.vllm_config.model_config)
            # vLLM 0.32 does not repack a head that is tied to the embeddings: it would keep the old weights.
            for module in model.modules():
                if isinstance(module, ParallelLMHead):
                    module.quant_method.process_weights_after_loading(module)
        if missing:
            raise WrongWeights(f"{len(missing)} tensors did not arrive, as {min(missing)}")
        return checksum
