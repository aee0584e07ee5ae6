"""Torch settings that every process of a run applies first."""

from __future__ import annotations

import os

import torch


def configure_torch(threads: int) -> None:
    """Set the number of threads and deterministic algorithms."""
    # cuBLAS is deterministic only with this, set before its first call.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Filling empty tensors costs 6 % of a step; nothing reads them before they are written.
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010
