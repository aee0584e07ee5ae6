"""One line at the start of a container: image, device, output path, first step.

An image identifies itself by GLASSHOUSE_EXPERIMENT and GLASSHOUSE_REVISION (set in the experiment's
Dockerfile). Outside a container nothing is printed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def startup_banner(
    path: Path,
    step: int,
    steps: int,
    device: str,
    threads: int,
    environment: Mapping[str, str] = os.environ,
) -> str:
    """Return the line, or an empty string outside a container.

    Example: `ready: example.rl at 350c5d1d4f0a, cpu (1 thread), /runs/example.rl (mounted volume),
    resuming after step 20 of 60`
    """
    experiment = environment.get("GLASSHOUSE_EXPERIMENT")
    if not experiment:
        return ""
    revision = environment.get("GLASSHOUSE_REVISION", "unknown")
    storage = (
        "mounted volume"
        if is_on_mounted_volume(path)
        else "NOT on a volume: lost when the container is removed"
    )
    start = f"resuming after step {step} of {steps}" if step else f"starting, {steps} steps"
    return (
        f"ready: {experiment} at {revision}, {device} ({threads} thread{'s' * (threads != 1)}), "
        f"{path} ({storage}), {start}"
    )


def is_on_mounted_volume(path: Path) -> bool:
    """Return whether the path is below a mount point other than the root."""
    resolved = path.resolve()
    return any(os.path.ismount(p) for p in (resolved, *resolved.parents) if p != p.parent)
