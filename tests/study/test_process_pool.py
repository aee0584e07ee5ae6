"""The process pool: reused workers, failures, crashes, and what closing it saves."""

from __future__ import annotations

import json
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from glasshouse.config.loading import load_config
from glasshouse.errors import RunError
from glasshouse.study.process_pool import ProcessPool
from glasshouse.study.spec import StudyRun

MOCK_MODEL = Path(__file__).resolve().parents[2] / "models" / "mock"
SMALL = [
    f"model={MOCK_MODEL}", "steps=200", "data.groups_per_step=4", "generate.group_size=4",
    "generate.max_tokens=24", "evaluate.problems=4", "evaluate.samples=1", "checkpoints.every=0",
    "checkpoints.save_above_reward=null", "checkpoints.save_best=false",
]  # fmt: skip


def make_run(out: Path, *overrides: str) -> StudyRun:
    config = load_config([], [*SMALL, f"out={out}", *overrides])
    return StudyRun(out.name, "mock", 0, out, config)


def test_a_worker_is_reused_after_an_error_and_saves_its_run_on_ctrl_c(tmp_path: Path) -> None:
    """test_runner.py kills the process of the pool: the worker saves its run then, too."""
    with suppress(KeyboardInterrupt), ProcessPool(1) as pool:
        with pytest.raises(RunError, match=r'^The run bad seed 0 \(mock\): .*"nowhere"'):
            list(pool.train([make_run(tmp_path / "bad", "model=nowhere")]))
        [worker] = pool.workers
        events = list(pool.train([make_run(tmp_path / "short", "steps=1")]))
        assert events[-1].kind == "finished"
        assert events[-1].value["steps_done"] == 1
        for event in pool.train([make_run(tmp_path / "long")]):
            if event.kind == "step" and event.value == 3:
                signal.raise_signal(signal.SIGTERM)  # as Ctrl-C does
        raise AssertionError("it was not interrupted")
    assert pool.workers == [worker]
    summary = json.loads((tmp_path / "long" / "results" / "summary.json").read_text())
    assert summary["interrupted_at"] >= 3
    assert Path(summary["checkpoint"]).is_dir()
    assert worker.process.returncode is not None
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_crashed_worker_is_replaced_once(tmp_path: Path) -> None:
    """test_runner.py kills a worker once: its run is resumed by another."""
    stop = threading.Event()

    def kill_each_new_worker() -> None:
        """As soon as they exist, before they have imported torch."""
        while not stop.wait(0.01):
            for worker in list(pool.workers):
                worker.process.kill()

    killer = threading.Thread(target=kill_each_new_worker)
    with ProcessPool(1) as pool:
        killer.start()
        with pytest.raises(RunError, match=r"^The run crashing .* failed: .*signal 9.*2 times"):
            list(pool.train([make_run(tmp_path / "crashing")]))
        stop.set()
        killer.join()
