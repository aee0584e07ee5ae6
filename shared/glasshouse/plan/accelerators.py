"""Devices and how fast they are: listed for GPUs, measured for the processor of this machine."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

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
    flops: float
    """Dense matrix products per second in bfloat16 (a CPU: in float32), in operations."""
    bandwidth: float
    """Bytes per second from memory."""
    learn_efficiency: float = 0.35
    """Share of `flops` that learning reaches."""
    generate_efficiency: float = 0.5
    """Share of `bandwidth` (a CPU: of `flops`) that generation reaches."""
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
    "L4": (24, 121, 300),
    "A10": (24, 125, 600),
    "RTX3090": (24, 71, 936),
    "RTX4090": (24, 165, 1008),
    "RTX5090": (32, 209, 1792),
    "A100-40GB": (40, 312, 1555),
    "A40": (48, 150, 696),
    "RTXA6000": (48, 155, 768),
    "L40S": (48, 362, 864),
    "A100": (80, 312, 2039),
    "H100-PCIe": (80, 756, 2000),
    "H100": (80, 989, 3350),
    "H200": (141, 989, 4800),
    "B200": (180, 2250, 8000),
}
"""Memory in GB, dense bfloat16 TFLOP/s and GB/s of the vendor's data sheets."""
TYPICAL = {
    24: "RTX3090",
    32: "RTX5090",
    40: "A100-40GB",
    48: "A40",
    80: "A100",
    141: "H200",
    180: "B200",
}
"""The card whose throughput is used if only the memory is given: a slow one of its size."""


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
        nearest = min(TYPICAL, key=lambda listed: (abs(listed - memory), listed))
        name = TYPICAL[nearest]
        _, teraflops, bandwidth = LISTED[name]
        label = f"{memory} GB, throughput of an {name}"
    else:
        names = {_normalize(name): name for name in LISTED}
        if _normalize(match[2]) not in names:
            raise _unknown(text)
        label = name = names[_normalize(match[2])]
        memory, teraflops, bandwidth = LISTED[name]
    return Accelerator(
        name=label, count=count, memory=memory * 10**9,
        flops=teraflops * 1e12, bandwidth=bandwidth * 1e9,
    )  # fmt: skip


def _normalize(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _unknown(text: str) -> ConfigError:
    name = text.rpartition("x")[2].strip()
    return ConfigError(
        f'--gpu: "{text}" is unknown. Write a number of GPUs and their memory or name, as in 1x24GB or '
        f"8xH100.{did_you_mean(name, LISTED)}"
    )


def measure_processor(memory: int, threads: int) -> Accelerator:
    """This machine's processor, measured in about a second: matrix products in float32, and copies."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        a = torch.ones(1024, 1024)
        large = torch.ones(16_000_000)
        product = _fastest(lambda: a @ a)
        copy = _fastest(large.clone)
    finally:
        torch.set_num_threads(before)
    return Accelerator(
        name="this machine's CPU", count=1, memory=memory, flops=2 * 1024**3 / product,
        bandwidth=2 * 4 * large.numel() / copy, learn_efficiency=0.6, generate_efficiency=0.4,
        is_gpu=False,
    )  # fmt: skip


def _fastest(function: Callable[[], object], repeats: int = 5) -> float:
    """Seconds of the fastest of some calls."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)
