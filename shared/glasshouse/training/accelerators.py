"""Devices and how much memory they have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from glasshouse.errors import ConfigError, did_you_mean

CONTEXT_BYTES = 1_000_000_000
"""Memory of a CUDA context and of the libraries' work space: a listed value."""
USABLE = 0.92
"""Share of a GPU's memory that is planned for; the rest is lost to fragmentation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """A number of equal devices.

    Example: `parse_accelerator("8x80GB").usable_bytes`
    """

    name: str
    count: int
    memory: int
    """Bytes of one device."""
    is_gpu: bool = True

    @property
    def usable_bytes(self) -> int:
        """Of one device."""
        return int(USABLE * self.memory) - CONTEXT_BYTES if self.is_gpu else self.memory

    def can_hold(self, peaks: Sequence[int]) -> bool:
        """Do processes of this many bytes fit? If there are more processes than devices, they share them."""
        shared = sum(peaks) / self.count if len(peaks) > self.count else 0
        return max(*peaks, shared) <= self.usable_bytes


LISTED = {
    "L4": 24,
    "A10": 24,
    "RTX3090": 24,
    "RTX4090": 24,
    "RTX5090": 32,
    "A100-40GB": 40,
    "A40": 48,
    "RTXA6000": 48,
    "L40S": 48,
    "A100": 80,
    "H100-PCIe": 80,
    "H100": 80,
    "H200": 141,
    "B200": 180,
}
"""Memory in GB."""


def parse_accelerator(text: str) -> Accelerator:
    """Reads `1x24GB`, `8x80GB`, `8xH100` or `RTX4090`."""
    match = re.fullmatch(r"\s*(?:(\d{1,4})\s*[x×*]\s*)?([A-Za-z0-9 .-]{1,40})\s*", text)
    count = int(match[1] or 1) if match else 0
    if match is None or count < 1:
        raise _unknown(text)
    size = re.fullmatch(r"(\d{1,4})\s*GB", match[2].strip(), re.IGNORECASE)
    if size:
        memory = int(size[1])
        if memory < 1:
            raise _unknown(text)
        label = f"{memory} GB"
    else:
        names = {_normalize(name): name for name in LISTED}
        if _normalize(match[2]) not in names:
            raise _unknown(text)
        label = names[_normalize(match[2])]
        memory = LISTED[label]
    return Accelerator(name=label, count=count, memory=memory * 10**9)


def _normalize(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _unknown(text: str) -> ConfigError:
    name = text.rpartition("x")[2].strip()
    return ConfigError(
        f'--gpu: "{text}" is unknown. Write a number of GPUs and their memory or name, as in 1x24GB or '
        f"8xH100.{did_you_mean(name, LISTED)}"
    )
