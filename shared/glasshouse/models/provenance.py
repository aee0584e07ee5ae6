"""What the bits of a run depend on besides its configuration: software versions and starting weights."""

from __future__ import annotations

import hashlib
import platform
import sys
from pathlib import Path

import torch
import transformers

from glasshouse import __version__
from glasshouse.models.policy import Policy


def software_versions() -> dict[str, str]:
    """Return the versions of everything that can change the last bits of a result."""
    return {
        "glasshouse": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": sys.version.split()[0],
        "machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}{_cpu_model()}",
    }


def _cpu_model() -> str:
    """Vendor, family and model number. Two CPUs with the same instruction set can still round
    differently, because math libraries choose their kernels by model."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    fields = dict(line.replace("\t", "").split(":", 1) for line in lines if ":" in line)
    names = ("vendor_id", "cpu family", "model")
    return "".join(f" {fields[name].strip()}" for name in names if name in fields)


def fingerprint_weights(policy: Policy) -> str:
    """Return a digest of all weights."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(policy.weights().items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
