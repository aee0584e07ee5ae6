"""A model's weights in memory that processes of one host share.

    header: for each of two slots, its version and its checksum
    slot 0: every trained number, flat, float32      versions 0, 2, 4 …
    slot 1: the same                                 versions 1, 3, 5 …

The learner writes version v + 1 while generators still read v, and one copy serves them all. The
file has no name: whoever made it holds it open, so that nothing is left behind however it ends.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from glasshouse.models import Policy

DIGEST = 16
SLOT = 8 + DIGEST
HEADER = 4096
EMPTY = -1


class StaleWeights(RuntimeError):
    """A version was asked for that is not there (any more)."""


class WeightMap:
    """The weights of two versions, shared.

    Example:
        mine = WeightMap.create(size(policy))
        mine.write(3, trained(policy))
        WeightMap.open(mine.path, mine.numbers).read(3, trained(other))  # in another process
    """

    def __init__(self, file: IO[bytes], path: str, numbers: int) -> None:
        self.file, self.path, self.numbers = file, path, numbers
        self.memory = mmap.mmap(file.fileno(), HEADER + 8 * numbers)

    @classmethod
    def create(cls, numbers: int) -> WeightMap:
        shared = Path("/dev/shm")
        file, path = unnamed(shared if os.access(shared, os.W_OK) else None)
        file.truncate(HEADER + 8 * numbers)
        made = cls(file, path, numbers)
        for slot in range(2):
            made._mark(slot, EMPTY, bytes(DIGEST))
        return made

    @classmethod
    def open(cls, path: str, numbers: int) -> WeightMap:
        return cls(open(path, "r+b"), path, numbers)

    @property
    def volume(self) -> int:
        """Bytes of one version."""
        return 4 * self.numbers

    def write(self, version: int, tensors: Sequence[Tensor]) -> None:
        """Put a version into its slot; the one before last is gone."""
        self._mark(version % 2, EMPTY, bytes(DIGEST))
        flat, start = self._flat(version), 0
        for tensor in tensors:
            flat[start : start + tensor.numel()] = tensor.detach().reshape(-1)
            start += tensor.numel()
        self._mark(version % 2, version, checksum(tensors))

    def read(self, version: int, tensors: Sequence[Tensor]) -> None:
        """Copy a version out, whole or not at all."""
        self._check(version)
        flat, start = self._flat(version), 0
        with torch.no_grad():
            for tensor in tensors:
                tensor.copy_(flat[start : start + tensor.numel()].view(tensor.shape))
                start += tensor.numel()
        self._check(version)  # nobody wrote meanwhile

    def raw(self, version: int) -> bytes:
        """A version's numbers as bytes, for hosts that do not share this memory."""
        self._check(version)
        start = self._start(version)
        return self.memory[start : start + self.volume]

    def put(self, version: int, digest: bytes, numbers: bytes) -> None:
        """The other end of `raw`."""
        self._mark(version % 2, EMPTY, bytes(DIGEST))
        start = self._start(version)
        self.memory[start : start + self.volume] = numbers
        self._mark(version % 2, version, digest)

    def digest(self, version: int) -> bytes:
        """The checksum that the writer took of its own tensors."""
        self._check(version)
        start = SLOT * (version % 2) + 8
        return self.memory[start : start + DIGEST]

    def versions(self) -> list[int]:
        """Which are there."""
        found = [self._version(slot) for slot in range(2)]
        return sorted(version for version in found if version != EMPTY)

    def close(self) -> None:
        self.file.close()  # the mapping goes with its last tensor

    def _flat(self, version: int) -> Tensor:
        start = self._start(version)
        return torch.frombuffer(
            self.memory, dtype=torch.float32, count=self.numbers, offset=start
        )  # fmt: skip

    def _start(self, version: int) -> int:
        return HEADER + self.volume * (version % 2)

    def _mark(self, slot: int, version: int, digest: bytes) -> None:
        start = SLOT * slot
        self.memory[start + 8 : start + SLOT] = digest
        self.memory[start : start + 8] = version.to_bytes(8, "little", signed=True)

    def _version(self, slot: int) -> int:
        return int.from_bytes(self.memory[SLOT * slot : SLOT * slot + 8], "little", signed=True)

    def _check(self, version: int) -> None:
        here = self._version(version % 2)
        if here != version:
            raise StaleWeights(f"Version {version} of the weights was asked for; {here} is there.")


def trained(policy: Policy) -> list[Tensor]:
    """The tensors that learning changes, in the model's order; the others never travel."""
    return [p for p in policy.model.parameters() if p.requires_grad]


def size(policy: Policy) -> int:
    return sum(p.numel() for p in trained(policy))


def checksum(tensors: Sequence[Tensor]) -> bytes:
    """Of the numbers' bytes, in order."""
    digest = hashlib.blake2b(digest_size=DIGEST)
    for tensor in tensors:
        digest.update(np.ascontiguousarray(tensor.detach().numpy()).data)
    return digest.digest()


def unnamed(folder: Path | None = None) -> tuple[IO[bytes], str]:
    """A file without a name, and the path by which this process's children may open it."""
    file = tempfile.TemporaryFile(dir=folder, prefix="glasshouse-")  # noqa: SIM115
    return file, f"/proc/{os.getpid()}/fd/{file.fileno()}"
