"""One line that says which image this is, on what it computes, where it writes, and from which step.

An image names itself in its environment: GLASSHOUSE_EXPERIMENT and GLASSHOUSE_REVISION (an
experiment's Dockerfile). Outside of one there is nothing to say.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def health(
    path: Path,
    step: int,
    steps: int,
    device: str,
    threads: int,
    environment: Mapping[str, str] = os.environ,
) -> str:
    """The line, or nothing outside of an image.

    Example: `ready: example.rl at 350c5d1d4f0a, cpu (1 thread), /runs/example.rl (a mounted volume),
    going on after step 20 of 60`
    """
    experiment = environment.get("GLASSHOUSE_EXPERIMENT")
    if not experiment:
        return ""
    revision = environment.get("GLASSHOUSE_REVISION", "unknown")
    where = (
        "a mounted volume" if mounted(path) else "NOT on a volume: it will go with the container"
    )
    begins = f"{'going on after' if step else 'starting at'} step {step} of {steps}"
    return (
        f"ready: {experiment} at {revision}, {device} ({threads} thread{'s' * (threads != 1)}), "
        f"{path} ({where}), {begins}"
    )


def mounted(path: Path) -> bool:
    """Is it on a file system of its own, below the root?"""
    here = path.resolve()
    return any(os.path.ismount(p) for p in (here, *here.parents) if p != p.parent)
