"""What the bits of a run depend on besides its configuration and its sources: the software."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
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
        **({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}),
    }


def source_commit() -> str:
    """Return the commit of the code that runs: that of its image (GLASSHOUSE_REVISION) or of its git
    work tree, with `-dirty` if a file is changed; empty if neither is known."""
    if revision := os.environ.get("GLASSHOUSE_REVISION"):
        return revision
    package = Path(__file__).parent.parent
    # a package that is installed inside some other repository is not tracked by it
    if not _run_git(package, "ls-files", "--error-unmatch", "__init__.py"):
        return ""
    return _run_git(package, "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty")


def _run_git(folder: Path, *arguments: str) -> str:
    try:
        process = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return process.stdout.strip() if process.returncode == 0 else ""


def _cpu_model() -> str:
    """Vendor, family and model number: math libraries choose their kernels, which round differently, by model."""
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
        digest.update(tensor.cpu().flatten().view(torch.uint8).numpy().data)  # numpy lacks bfloat16
    return digest.hexdigest()
