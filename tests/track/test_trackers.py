"""Every installed tracker, for real: after a finished run, and through a killed and resumed one.

CI installs TensorBoard; `make proofs ONLY=trackers` installs all of them.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from proofs.resume import ROOT, Result, list_differences, train
from tests.track import read_back
from tests.training.short_runs import SHORT

from glasshouse.cli.app import main
from glasshouse.track.trackers import read_step_metrics

TRAIN_AND_DIE = """
import sys
from pathlib import Path
from proofs.resume import KillAtStep, train
train(Path(sys.argv[1]), KillAtStep(3), tuple(sys.argv[2:]))
"""


@pytest.fixture(params=["mlflow", "tensorboard", "trackio", "wandb"])
def tracker(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed; make proofs ONLY=trackers installs it")
    return name


@pytest.fixture(scope="module", autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Trackio's database in a temporary folder, W&B offline."""
    os.environ["TRACKIO_DIR"] = str(tmp_path_factory.mktemp("trackio"))
    os.environ["WANDB_MODE"] = "offline"
    os.environ["WANDB_API_KEY"] = "local-5ec2e7" + "0" * 34
    os.environ.pop("MLFLOW_TRACKING_URI", None)


def assert_tracked(tracker: str, run: Path) -> None:
    """The tracker has every number of the run directory once, and nothing else."""
    tracked = sorted(getattr(read_back, f"read_{tracker}")(run))
    expected = sorted((n, m.step, v) for m in read_step_metrics(run) for n, v in m.values.items())
    assert [row[:2] for row in tracked] == [row[:2] for row in expected]
    for (name, step, value), (_, _, expected_value) in zip(tracked, expected, strict=True):
        if "/timing/" not in name:  # a repeated step has other timings
            assert value == pytest.approx(expected_value, rel=1e-6), (name, step)


def test_finished_run_is_uploaded_once(
    tracker: str, finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(finished_run, tmp_path / "copy")
    for _ in range(2):
        assert main(["report", "track", str(run), "--to", tracker]) == 0
        assert_tracked(tracker, run)
    assert tracker in capsys.readouterr().out


def test_killed_and_resumed_run_has_no_missing_or_repeated_step(
    tracker: str, expected: Result, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Step 3 is trained twice, because the run resumes from the checkpoint of step 2."""
    run, overrides = tmp_path / "run", (*SHORT, f"trackers={tracker}")
    command = [sys.executable, "-c", TRAIN_AND_DIE, str(run), *overrides]
    killed = subprocess.run(
        command, cwd=ROOT, timeout=300, capture_output=True, text=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    train(run, None, overrides)
    assert capfd.readouterr().out == ""
    assert_tracked(tracker, run)
    assert not list_differences(run, expected)
    api_key = os.environ["WANDB_API_KEY"].encode()
    assert not [f for f in run.rglob("*") if f.is_file() and api_key in f.read_bytes()]
