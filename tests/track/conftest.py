"""The finished, untracked run that the tests of trackers share."""

from __future__ import annotations

from pathlib import Path

import pytest
from proofs.resume import Result
from tests.training.short_runs import train_shared_runs


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_shared_runs(tmp_path_factory.getbasetemp()).finished


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return train_shared_runs(tmp_path_factory.getbasetemp()).expected
