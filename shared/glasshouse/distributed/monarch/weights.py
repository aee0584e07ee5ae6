"""The weights of a run in memory that the processes of a host share, and their copies on other hosts.

    header: for each slot, its version and its checksum
    slot 0: every trainable number, flat, float32    with two slots: versions 0, 2, 4 …
    slot 1: the same                                 versions 1, 3, 5 …

The learner writes version v + 1 while generators still read v (with `max_offpolicy_steps`, older versions too: there
is one slot more than steps). The file has no name: its creator holds it open, so nothing remains on disk.

Generators always map a file of their own host. On any host but the learner's, one process holds a copy, and each
version is sent to it once, however many generators run there.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import torch
from monarch.actor import endpoint
from torch import Tensor

from glasshouse.distributed.monarch.processes import (
    ActorProcesses,
    ProcessActor,
    ProcessDied,
    open_unnamed_file,
)
from glasshouse.models.policy import Policy

CHECKSUM_BYTES = 16
HEADER_BYTES = 4096
SLOT_HEADER = np.dtype([("version", np.int64), ("checksum", np.uint8, CHECKSUM_BYTES)])
EMPTY = -1
"""The version of a slot that holds no complete weights."""


class StaleWeights(RuntimeError):
    """The requested version is not in the shared file."""


class SharedWeights:
    """The weights of the newest versions, one per slot, in a memory-mapped file.

    Example:
        weights = SharedWeights.create(count_trainable(policy))
        weights.write(3, trainable_tensors(policy))
        # in another process
        SharedWeights.open(weights.path, weights.numel).read(3, trainable_tensors(other))
    """

    def __init__(self, file: IO[bytes], path: str, numel: int) -> None:
        size = os.fstat(file.fileno()).st_size
        self.file, self.path, self.numel = file, path, numel
        self.slots = (size - HEADER_BYTES) // (4 * numel)
        memory = mmap.mmap(file.fileno(), size)
        self.headers = np.frombuffer(memory, SLOT_HEADER, self.slots)
        flat = torch.frombuffer(memory, dtype=torch.float32, offset=HEADER_BYTES)
        self.numbers = flat.view(self.slots, numel)

    @classmethod
    def create(cls, numel: int, slots: int = 2) -> SharedWeights:
        shm = Path("/dev/shm")
        file, path = open_unnamed_file(shm if os.access(shm, os.W_OK) else None)
        file.truncate(HEADER_BYTES + 4 * numel * slots)
        weights = cls(file, path, numel)
        weights.headers["version"] = EMPTY
        return weights

    @classmethod
    def open(cls, path: str, numel: int) -> SharedWeights:
        return cls(open(path, "r+b"), path, numel)

    def write(self, version: int, tensors: Iterable[Tensor]) -> None:
        """Write a version to its slot, over the oldest one."""
        slot, start = version % self.slots, 0
        self.headers["version"][slot] = EMPTY
        digest = hashlib.blake2b(digest_size=CHECKSUM_BYTES)
        for tensor in tensors:
            self.numbers[slot, start : start + tensor.numel()] = tensor.detach().reshape(-1)
            start += tensor.numel()
            _add_to_digest(digest, tensor)
        self.headers["checksum"][slot] = np.frombuffer(digest.digest(), np.uint8)
        self.headers["version"][slot] = version

    def read(self, version: int, tensors: Sequence[Tensor]) -> None:
        """Copy a version into the tensors."""
        flat, start = self.numbers[self._find_slot(version)], 0
        with torch.no_grad():
            for tensor in tensors:
                tensor.copy_(flat[start : start + tensor.numel()].view(tensor.shape))
                start += tensor.numel()
        self._find_slot(version)  # raises if it was overwritten meanwhile

    def checksum(self, version: int) -> bytes:
        """Return the checksum that the writer computed from its own tensors."""
        checksum: bytes = self.headers["checksum"][self._find_slot(version)].tobytes()
        return checksum

    def versions(self) -> list[int]:
        """Return the versions in the file, oldest first."""
        return sorted(version for version in self.headers["version"].tolist() if version != EMPTY)

    def send(self, version: int, copies: Mapping[str, ActorProcesses]) -> dict[str, str]:
        """Send a version to the copies on other hosts; return why, for each host that did not get it."""
        raw = self.numbers[self._find_slot(version)].numpy().tobytes()
        checksum = self.checksum(version)
        calls = {h: copy.actor.write.call(version, checksum, raw) for h, copy in copies.items()}
        failures: dict[str, str] = {}
        for host, call in calls.items():
            try:
                copies[host].wait(call, "spawn_timeout")
            except ProcessDied as error:
                failures[host] = str(error)
        return failures

    def close(self) -> None:
        self.file.close()  # the mapping is freed with its last tensor

    def _find_slot(self, version: int) -> int:
        slot = version % self.slots
        if self.headers["version"][slot] != version:
            raise StaleWeights(
                f"Version {version} of the weights was requested; the slot holds "
                f"{self.headers['version'][slot]}."
            )
        return slot


class WeightCopyActor(ProcessActor):
    """Holds the copy of a host."""

    weights: SharedWeights

    @endpoint
    def open(self, numel: int, slots: int) -> str:
        self.weights = SharedWeights.create(numel, slots)
        return self.weights.path

    @endpoint
    def write(self, version: int, checksum: bytes, raw: bytes) -> None:
        self.weights.write(version, [torch.frombuffer(bytearray(raw), dtype=torch.float32)])
        if self.weights.checksum(version) != checksum:
            raise ValueError(f"Version {version} of the weights was damaged on its way.")


def trainable_tensors(policy: Policy) -> list[Tensor]:
    """Return the tensors that training changes, in the model's order; no others are sent."""
    return [p for p in policy.model.parameters() if p.requires_grad]


def count_trainable(policy: Policy) -> int:
    return sum(p.numel() for p in trainable_tensors(policy))


def checksum_tensors(tensors: Iterable[Tensor]) -> bytes:
    """Hash the bytes of all tensors, in order."""
    digest = hashlib.blake2b(digest_size=CHECKSUM_BYTES)
    for tensor in tensors:
        _add_to_digest(digest, tensor)
    return digest.digest()


def _add_to_digest(digest: hashlib.blake2b, tensor: Tensor) -> None:
    digest.update(np.ascontiguousarray(tensor.detach().cpu().numpy()).data)
