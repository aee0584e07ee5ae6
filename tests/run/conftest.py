"""Runs that several files look at, each made once; and `resume_proof` importable by the tests here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.run.interrupted import FEW, crash

from resume_proof import result, train


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
