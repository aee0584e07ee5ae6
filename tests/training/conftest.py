"""Runs that several test files share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from proofs.resume import Result
from tests.training.short_runs import SharedRuns, train_shared_runs


@pytest.fixture(scope="session")
def shared_runs(tmp_path_factory: pytest.TempPathFactory) -> SharedRuns:
    return train_shared_runs(tmp_path_factory.getbasetemp())


@pytest.fixture
def expected(shared_runs: SharedRuns) -> Result:
    """The result of the uninterrupted run."""
    return shared_runs.expected


@pytest.fixture
def killed_at_3(shared_runs: SharedRuns, tmp_path: Path) -> Path:
    """A run killed after step 3, with the checkpoint of step 2."""
    return shutil.copytree(shared_runs.killed[3], tmp_path / "killed")


@pytest.fixture
def killed_at_5(shared_runs: SharedRuns, tmp_path: Path) -> Path:
    """A run killed after step 5, with the checkpoints of steps 2 and 4."""
    return shutil.copytree(shared_runs.killed[5], tmp_path / "killed")
