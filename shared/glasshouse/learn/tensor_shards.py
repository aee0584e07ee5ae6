"""Tensors that are divided among processes, in files that any number of processes can read.

    learner-00001-of-00002.safetensors    written by rank 0: its part of every tensor, and where that part belongs
    learner-00002-of-00002.safetensors    written by rank 1

This is torch's distributed checkpoint (DCP) in its safetensors format. DCP's own format has an index that is a pickle;
here the header of each file, which is JSON, says what the file holds. Whole tensors (`model.safetensors`,
`learner.safetensors`) are read in the same way: each rank reads only its parts of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.tensor import DTensor

from glasshouse.errors import ModelError, RunError


def save_shards(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Writes this rank's parts of the tensors, and compares the file with them; all ranks must call it."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    dcp.save(dict(tensors), storage_writer=writer)
    written = folder / f"shard-{rank + 1:05d}-model-00001-of-00001.safetensors"
    file = folder / f"learner-{rank + 1:05d}-of-{world_size:05d}.safetensors"
    os.replace(written, file)
    _compare_shard(file, tensors)


def load_shards(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Reads this rank's parts of the tensors from the files of a folder, in place; all ranks must call it. Raises
    `ModelError` if a tensor is missing or has another shape or type."""
    reader = HuggingFaceStorageReader(str(folder))
    _check_metadata(reader.read_metadata().state_dict_metadata, tensors)
    dcp.load(dict(tensors), storage_reader=reader)


def _check_metadata(metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        saved = metadata.get(name)
        if saved is None:
            raise ModelError(f"The tensor {name} is missing.")
        if saved.size != tensor.shape or saved.properties.dtype != tensor.dtype:
            raise ModelError(
                f"The tensor {name} has shape {tuple(saved.size)} and type {saved.properties.dtype} instead of "
                f"{tuple(tensor.shape)} and {tensor.dtype}."
            )


def _compare_shard(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Raises unless the file holds this rank's parts. Tensors that are not divided are in the file of one rank."""
    try:
        with safe_open(file, framework="pt") as handle:
            for name in handle.keys():  # noqa: SIM118
                tensor = tensors[name].detach()
                part = tensor.to_local() if isinstance(tensor, DTensor) else tensor
                if not torch.equal(handle.get_tensor(name), part.cpu()):
                    raise RunError(f"{name} in {file.name} differs from what was written")
            missing = {
                name
                for name, t in tensors.items()
                if isinstance(t, DTensor) and t.to_local().numel()
            } - set(handle.keys())
    except (OSError, SafetensorError) as error:
        raise RunError(f"{file.name} does not read back: {error}") from None
    if missing:
        raise RunError(f"{file.name} lacks {min(missing)}")
