"""The policy's weights as vLLM expects them: the names of a checkpoint, adapters merged."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

CHECKSUM_BYTES = 16
PEFT_PREFIX = "base_model.model."


@torch.no_grad()
def iterate_weights(model: Any, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of a model, one at a time; tied tensors once. Adapters (LoRA) are added to the
    layer that they adapt, so that no whole merged model is in memory."""
    modules = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            continue
        tensor = parameter.detach()
        parent = name.rpartition(".base_layer.")[0]
        if parent and name.endswith(".weight"):
            for adapter in modules[parent].active_adapters:
                tensor = tensor + modules[parent].get_delta_weight(adapter)
        yield name.removeprefix(PEFT_PREFIX).replace(".base_layer.", "."), tensor.to(dtype)


def checksum_weights(weights: Iterable[tuple[str, Tensor]]) -> str:
    """Hashes names and bytes of all tensors, in order."""
    digest = hashlib.blake2b(digest_size=CHECKSUM_BYTES)
    for name, tensor in weights:
        digest.update(name.encode())
        digest.update(tensor.contiguous().cpu().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
