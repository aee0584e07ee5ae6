"""Runs that several files look at, each made once."""

from __future__ import annotations

from pathlib import Path

import pytest
from proofs.resume import result, train
from tests.train.interrupted import FEW, crash


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    out = tmp_path_factory.mktemp("whole") / "run"
    train(out, None, FEW)
    return result(out)


@pytest.fixture(scope="session")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ended after step 5, with checkpoints of steps 2 and 4."""
    out = tmp_path_factory.mktemp("cut") / "run"
    crash(out, 5)
    return out
