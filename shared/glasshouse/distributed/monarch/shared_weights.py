"""A model's weights in memory that the processes of one host share.

    header: for each slot, its version and its checksum
    slot 0: every trainable number, flat, float32    with two slots: versions 0, 2, 4 …
    slot 1: the same                                 versions 1, 3, 5 …

The learner writes version v + 1 while generators still read v (with `max_offpolicy_steps`, older
versions too: there is one slot more than steps); one copy serves all of them. The file has no name:
its creator holds it open, so nothing remains on disk however the run ends.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from glasshouse.models.policy import Policy

CHECKSUM_BYTES = 16
SLOT_HEADER_BYTES = 8 + CHECKSUM_BYTES
HEADER_BYTES = 4096
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
        self.memory = mmap.mmap(file.fileno(), size)

    @classmethod
    def create(cls, numel: int, slots: int = 2) -> SharedWeights:
        shm = Path("/dev/shm")
        file, path = open_unnamed_file(shm if os.access(shm, os.W_OK) else None)
        file.truncate(HEADER_BYTES + 4 * numel * slots)
        weights = cls(file, path, numel)
        for slot in range(slots):
            weights._write_header(slot, EMPTY, bytes(CHECKSUM_BYTES))
        return weights

    @classmethod
    def open(cls, path: str, numel: int) -> SharedWeights:
        return cls(open(path, "r+b"), path, numel)

    @property
    def num_bytes(self) -> int:
        """Bytes of one version."""
        return 4 * self.numel

    def write(self, version: int, tensors: Iterable[Tensor]) -> None:
        """Write a version to its slot, over the oldest one."""
        self._write_header(version % self.slots, EMPTY, bytes(CHECKSUM_BYTES))
        flat, start = self._flat(version), 0
        digest = hashlib.blake2b(digest_size=CHECKSUM_BYTES)
        for tensor in tensors:
            flat[start : start + tensor.numel()] = tensor.detach().reshape(-1)
            start += tensor.numel()
            _add_to_digest(digest, tensor)
        self._write_header(version % self.slots, version, digest.digest())

    def read(self, version: int, tensors: Sequence[Tensor]) -> None:
        """Copy a version into the tensors."""
        self._require(version)
        flat, start = self._flat(version), 0
        with torch.no_grad():
            for tensor in tensors:
                tensor.copy_(flat[start : start + tensor.numel()].view(tensor.shape))
                start += tensor.numel()
        self._require(version)  # raises if it was overwritten meanwhile

    def read_bytes(self, version: int) -> bytes:
        """Return a version as bytes, for hosts that do not share this memory."""
        self._require(version)
        start = self._start(version)
        return self.memory[start : start + self.num_bytes]

    def write_bytes(self, version: int, checksum: bytes, raw: bytes) -> None:
        """Write what `read_bytes` returned on another host."""
        self._write_header(version % self.slots, EMPTY, bytes(CHECKSUM_BYTES))
        start = self._start(version)
        self.memory[start : start + self.num_bytes] = raw
        self._write_header(version % self.slots, version, checksum)

    def checksum(self, version: int) -> bytes:
        """Return the checksum that the writer computed from its own tensors."""
        self._require(version)
        start = SLOT_HEADER_BYTES * (version % self.slots) + 8
        return self.memory[start : start + CHECKSUM_BYTES]

    def versions(self) -> list[int]:
        """Return the versions in the file, oldest first."""
        versions = [self._slot_version(slot) for slot in range(self.slots)]
        return sorted(version for version in versions if version != EMPTY)

    def close(self) -> None:
        self.file.close()  # the mapping is freed with its last tensor

    def _flat(self, version: int) -> Tensor:
        start = self._start(version)
        return torch.frombuffer(self.memory, dtype=torch.float32, count=self.numel, offset=start)

    def _start(self, version: int) -> int:
        return HEADER_BYTES + self.num_bytes * (version % self.slots)

    def _write_header(self, slot: int, version: int, checksum: bytes) -> None:
        start = SLOT_HEADER_BYTES * slot
        self.memory[start + 8 : start + SLOT_HEADER_BYTES] = checksum
        self.memory[start : start + 8] = version.to_bytes(8, "little", signed=True)

    def _slot_version(self, slot: int) -> int:
        start = SLOT_HEADER_BYTES * slot
        return int.from_bytes(self.memory[start : start + 8], "little", signed=True)

    def _require(self, version: int) -> None:
        current = self._slot_version(version % self.slots)
        if current != version:
            raise StaleWeights(
                f"Version {version} of the weights was requested; the slot holds {current}."
            )


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


def open_unnamed_file(folder: Path | None = None) -> tuple[IO[bytes], str]:
    """Open a file without a name; return it and the path by which child processes can open it."""
    file = tempfile.TemporaryFile(dir=folder, prefix="glasshouse-")  # noqa: SIM115
    return file, f"/proc/{os.getpid()}/fd/{file.fileno()}"
