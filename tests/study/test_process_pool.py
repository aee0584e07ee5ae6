"""The process pool: reused workers, failures, crashes, and what closing it saves."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

import pytest

from glasshouse.config.loading import load_config
from glasshouse.errors import ConfigError, RunError
from glasshouse.study.process_pool import ProcessPool, RunFinished, RunRequest, StepDone

MOCK_MODEL = Path(__file__).resolve().parents[2] / "models" / "mock"
SMALL = [
    f"model={MOCK_MODEL}", "steps=200", "data.groups_per_step=4", "generate.group_size=4",
    "generate.max_tokens=24", "evaluate.problems=4", "evaluate.samples=1", "checkpoints.every=0",
    "checkpoints.save_above_reward=null", "checkpoints.save_best=false",
]  # fmt: skip


def make_request(out: Path, *overrides: str) -> RunRequest:
    config = load_config([], [*SMALL, f"out={out}", *overrides])
    return RunRequest(name=f"The run {out.name}", config=config)


def kill_each_new_worker(pool: ProcessPool, stop: threading.Event) -> None:
    """Kill workers as soon as they exist, before they have imported torch."""
    while not stop.wait(0.01):
        for worker in list(pool.workers):
            worker.process.kill()


def run_and_kill(pool: ProcessPool, request: RunRequest) -> None:
    stop = threading.Event()
    killer = threading.Thread(target=kill_each_new_worker, args=(pool, stop))
    killer.start()
    try:
        events = list(pool.run([request]))
    finally:
        stop.set()
        killer.join()
    raise AssertionError(events)


def run_and_interrupt(pool: ProcessPool, request: RunRequest) -> None:
    """Ctrl-C after step 3."""
    for event in pool.run([request]):
        if isinstance(event, StepDone) and event.step == 3:
            signal.raise_signal(signal.SIGINT)


def test_a_worker_is_reused_after_an_error_and_saves_its_run_on_ctrl_c(tmp_path: Path) -> None:
    """test_runner.py kills the process of the pool: the worker saves its run then, too."""
    with ProcessPool(1) as pool:
        with pytest.raises(RunError, match=r'^The run bad: .*"nowhere"'):
            list(pool.run([make_request(tmp_path / "bad", "model=nowhere")]))
        [worker] = pool.workers
        events = list(pool.run([make_request(tmp_path / "short", "steps=1")]))
        [finished] = [event for event in events if isinstance(event, RunFinished)]
        assert finished.summary["steps_done"] == 1

        with pytest.raises(KeyboardInterrupt):
            run_and_interrupt(pool, make_request(tmp_path / "long"))
        assert pool.workers == [worker]
    summary = json.loads((tmp_path / "long" / "results" / "summary.json").read_text())
    assert summary["interrupted_at"] >= 3
    assert Path(summary["checkpoint"]).is_dir()
    assert worker.process.returncode is not None


def test_a_crashed_worker_is_replaced_once(tmp_path: Path) -> None:
    """test_runner.py kills a worker once: its run is resumed by another."""
    with (
        ProcessPool(1) as pool,
        pytest.raises(RunError, match=r"^The run crashing failed: .*signal 9.*2 times"),
    ):
        run_and_kill(pool, make_request(tmp_path / "crashing"))


def test_a_pool_without_workers_is_refused() -> None:
    with pytest.raises(ConfigError, match="--jobs is 0"):
        ProcessPool(0)
