"""What the bits of a run depend on besides its configuration: software versions and starting weights."""

from __future__ import annotations

import hashlib
import platform
import sys

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
        "machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
    }


def fingerprint_weights(policy: Policy) -> str:
    """Return a digest of all weights."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(policy.weights().items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
