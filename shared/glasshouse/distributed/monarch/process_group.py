"""How the processes of a learner find each other (torch.distributed): through a file."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

GROUP_TIMEOUT = timedelta(hours=1)
"""How long a rank waits for the others; the controller notices a dead one much earlier."""


def join_process_group(file: str, rank: int, world_size: int, backend: str = "gloo") -> None:
    """Join the other learners; the file is not needed after this returns."""
    dist.init_process_group(
        backend,
        store=dist.FileStore(file, world_size),
        rank=rank,
        world_size=world_size,
        timeout=GROUP_TIMEOUT,
    )
    dist.barrier()
