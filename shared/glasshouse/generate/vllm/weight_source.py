"""The policy's weights as vLLM expects them: the names of a checkpoint, adapters merged."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

CHECKSUM_BYTES = 16
PEFT_PREFIX = "base_model.model."


def iterate_parameters(model: Any) -> Iterator[tuple[str, str, Tensor]]:
    """The model's own name, the name in a checkpoint and the tensor of every weight but the adapters; tied
    tensors appear once."""
    for name, parameter in model.named_parameters():
        if ".lora_" not in name:
            renamed = name.removeprefix(PEFT_PREFIX).replace(".base_layer.", ".")
            yield name, renamed, parameter.detach()


@torch.no_grad()
def iterate_weights(model: Any, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Checkpoint names and tensors, one at a time. Adapters (LoRA) are added to the layer that they adapt, so
    that no whole merged model is in memory."""
    modules = dict(model.named_modules())
    for name, renamed, tensor in iterate_parameters(model):
        parent = name.rpartition(".base_layer.")[0]
        if parent and name.endswith(".weight"):
            for adapter in modules[parent].active_adapters:
                tensor = tensor + modules[parent].get_delta_weight(adapter)
        yield renamed, tensor.to(dtype)


class WeightChecksum:
    """A hash of names and bytes of tensors, in order.

    Example: `checksum.update("lm_head.weight", tensor)`, then `checksum.hexdigest()`
    """

    def __init__(self) -> None:
        self.digest = hashlib.blake2b(digest_size=CHECKSUM_BYTES)

    def update(self, name: str, tensor: Tensor) -> None:
        self.digest.update(name.encode())
        self.digest.update(view_bytes(tensor).numpy().data)

    def hexdigest(self) -> str:
        return self.digest.hexdigest()


def checksum_weights(weights: Iterable[tuple[str, Tensor]]) -> str:
    """The checksum of all of these weights."""
    checksum = WeightChecksum()
    for name, tensor in weights:
        checksum.update(name, tensor)
    return checksum.hexdigest()


def view_bytes(tensor: Tensor) -> Tensor:
    """The bytes of a tensor, flat, on the CPU; a view if it is there already."""
    return tensor.contiguous().cpu().flatten().view(torch.uint8)
