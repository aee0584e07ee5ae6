"""Every tracker that is installed, for real: live, killed and gone on, after the fact.

CI has TensorBoard; `make track-proof` has them all.
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
from proofs.resume import ROOT, differing, result, train
from tests.track import held

from glasshouse.cli import main
from glasshouse.track.records import records

SHORT = (
    "steps=5",
    "checkpoints.every=2",
    "checkpoints.save_above_reward=null",
    "checkpoints.save_best=false",
)
KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from proofs.resume import EndsAt, train
train(Path(sys.argv[2]), EndsAt(3), tuple(sys.argv[3:]))
"""


@pytest.fixture(params=["mlflow", "tensorboard", "trackio", "wandb"])
def tracker(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed; make track-proof has it")
    return name


@pytest.fixture(scope="module", autouse=True)
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Trackio's database in a folder of the tests, W&B without its website."""
    os.environ["TRACKIO_DIR"] = str(tmp_path_factory.mktemp("trackio"))
    os.environ["WANDB_MODE"] = "offline"
    os.environ["WANDB_API_KEY"] = "local-5ec2e7" + "0" * 34
    os.environ.pop("MLFLOW_TRACKING_URI", None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody tracked."""
    out = tmp_path_factory.mktemp("whole") / "run"
    train(out, None, SHORT)
    return out


def assert_mirrored(tracker: str, run: Path) -> None:
    """Every number of the record once, and nothing else."""
    there = sorted(getattr(held, tracker)(run))
    wanted = sorted((n, r.step, v) for r in records(run) for n, v in r.numbers.items())
    assert [row[:2] for row in there] == [row[:2] for row in wanted]
    for (name, step, got), (_, _, value) in zip(there, wanted, strict=True):
        if "/timing/" not in name:  # a step that was done again took another time
            assert got == pytest.approx(value, rel=1e-6), (name, step)


def test_a_finished_run_is_mirrored_whole_and_not_twice(
    tracker: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "copied"
    shutil.copytree(whole, run)
    for _ in range(2):
        assert main(["track", str(run), "--to", tracker]) == 0
        assert_mirrored(tracker, run)
    assert f"{tracker}: " in capsys.readouterr().out


def test_killed_and_gone_on_no_step_is_missing_or_twice(
    tracker: str, whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Step 3 is done twice: its checkpoint is that of step 2."""
    run, overrides = tmp_path / "run", (*SHORT, f"trackers={tracker}")
    command = [sys.executable, "-c", KILLED, str(ROOT / "tests"), str(run), *overrides]
    killed = subprocess.run(command, timeout=200, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    train(run, None, overrides)
    assert capfd.readouterr().out == ""
    assert_mirrored(tracker, run)
    assert not differing(run, result(whole))
    key = os.environ["WANDB_API_KEY"].encode()
    assert not [f for f in run.rglob("*") if f.is_file() and key in f.read_bytes()]
