"""Runs on Monarch's processes: bitwise equal to a local run, and no process remains.

    python -m proofs.monarch_runs [processes hung_learner crashes detection]      about 3 minutes

CI runs a small version of each (tests/distributed); the claims about time are only checked here.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from glasshouse import randomness
from glasshouse.config.loading import load_config
from glasshouse.config.schema import Config
from glasshouse.distributed.monarch.backend import MonarchBackend
from glasshouse.errors import RunError
from glasshouse.models.policy import load_policy
from glasshouse.runs import rollout_log
from glasshouse.runs.run_directory import load_metrics
from glasshouse.training.display import Display
from glasshouse.training.run import TrainingRun
from glasshouse.types import Request, SamplingParams
from proofs.checks import run_checks
from proofs.processes import child_pids, wait_for_exit, wait_until

ROOT = Path(__file__).resolve().parent.parent
MODEL = f"model={ROOT / 'models' / 'mock'}"


def small_run(out: Path, *overrides: str) -> list[str]:
    """The overrides of a run of a few seconds: four chunks per step, several microbatches."""
    return [
        MODEL, f"out={out}", "steps=3", "data.groups_per_step=8", "generate.group_size=4",
        "generate.max_tokens=32", "generate.chunk_size=2", "reward.terms={closeness: 1}",
        "learn.microbatch_tokens=64", "evaluate.problems=4", "evaluate.samples=2", *overrides,
    ]  # fmt: skip


def small_config(out: Path, *overrides: str) -> Config:
    return load_config([], small_run(out, *overrides))


def assert_equal_runs(a: Path, b: Path, steps: int) -> None:
    """Check that weights, metrics and rollouts are equal, and that the weights were updated."""
    name = f"checkpoints/step-{steps:06d}/model.safetensors"
    assert (a / name).read_bytes() == (b / name).read_bytes(), "the weights differ"
    assert _read_metrics(a) == _read_metrics(b), "the metrics differ"
    assert any(row["grad_norm"] > 0 for row in _read_metrics(a)), "nothing was learned"
    for kind in ("train", "validation"):
        assert _read_rollouts(a, kind) == _read_rollouts(b, kind), f"{kind} rollouts differ"


def _read_metrics(out: Path) -> list[dict[str, Any]]:
    ignored = ("timing", "rollout_log_bytes")
    return [{k: v for k, v in row.items() if k not in ignored} for row in load_metrics(out)]


def _read_rollouts(out: Path, kind: str) -> list[dict[str, Any]]:
    rows = rollout_log.read_rows(out, kind)
    return [{k: v for k, v in row.items() if k != "time"} for row in rows]


def processes(folder: Path) -> dict[str, Any]:
    """Any number of generators and learners gives the bits of one process."""
    local = folder / "local"
    TrainingRun(small_config(local)).train()
    for generators, learners in ((1, 2), (2, 1), (4, 1)):
        out = folder / f"{generators}-{learners}"
        numbers = (f"monarch.generators={generators}", f"monarch.learners={learners}")
        config = small_config(out, "backend=monarch", *numbers, "monarch.verify_every=1")
        TrainingRun(config).train()
        assert_equal_runs(out, local, steps=3)
        assert "fault" not in (out / "results" / "events.jsonl").read_text()
    return {"equal": ["1 generator, 2 learners", "2, 1", "4, 1"]}


class LearnerStopper(Display):
    """Stops the learner after step 2, before its checkpoint is saved."""

    run: TrainingRun
    pids: list[int]

    def step(self, row: dict[str, Any], groups: list[Any]) -> None:
        if row["step"] == 2:
            assert isinstance(self.run.backend, MonarchBackend)
            self.pids = self.run.backend.pids
            os.kill(self.pids[-1], signal.SIGSTOP)


def hung_learner(folder: Path) -> dict[str, Any]:
    """A stopped learner ends the run after monarch.update_timeout; no process remains; it resumes."""
    TrainingRun(small_config(folder / "local", "checkpoints.every=1")).train()
    stopper, out = LearnerStopper(), folder / "monarch"
    # Less than the 10 s after which Monarch itself reports a process that is silent.
    options = ("backend=monarch", "monarch.generators=1", "monarch.update_timeout=5")
    config = small_config(out, "checkpoints.every=1", *options)
    stopper.run = TrainingRun(config, stopper)
    started = time.monotonic()
    message = _run_error(stopper.run.train)
    assert "monarch.update_timeout" in message, message
    assert str(out / "checkpoints" / "step-000001") in message, message
    seconds = time.monotonic() - started
    assert wait_for_exit(stopper.pids)
    TrainingRun(small_config(out, "checkpoints.every=1")).train()
    assert_equal_runs(out, folder / "local", steps=3)
    return {"seconds from start to error": round(seconds, 1)}


def crashes(folder: Path) -> dict[str, Any]:
    """A generator that crashes again and again ends the run with its output; no process remains."""
    config = small_config(
        folder / "unused", "backend=monarch", "monarch.generators=1", "monarch.max_failures=2",
        "monarch.backoff=0.1",
    )  # fmt: skip
    backend = MonarchBackend(load_policy(config.model), config)
    killed: list[int] = []

    def kill_each_process() -> None:
        while not backend.queue.closed:
            for pid in backend.supervisors[0].pids:
                if pid not in killed:
                    killed.append(pid)
                    os.kill(pid, signal.SIGSEGV)
            time.sleep(0.01)

    killer = threading.Thread(target=kill_each_process)
    killer.start()
    try:
        message = _run_error(lambda: generate(backend, 1))
    finally:
        backend.close()
        killer.join()
    assert "failed 2 times" in message, message
    assert "Segmentation fault" in message, message
    assert len(killed) == 2, killed
    assert wait_for_exit(killed, timeout=5), "a process remains"
    return {"crashes": len(killed)}


def _run_error(call: Callable[[], object]) -> str:
    """Return the message of the `RunError` that the call must raise."""
    try:
        call()
    except RunError as error:
        return str(error)
    raise AssertionError("no RunError was raised")


def generate(
    backend: MonarchBackend, chunks: int, check_interrupt: Callable[[], None] = lambda: None
) -> None:
    requests = [
        [Request(prompt=tuple(range(5, 25)), noise_keys=tuple(randomness.key("proof", n, k) for k in range(256)))]
        for n in range(chunks)
    ]  # fmt: skip
    list(backend.submit(requests, SamplingParams(max_tokens=64), check_interrupt))


def detection(folder: Path) -> dict[str, Any]:
    """Within 1 s: a killed generator is reported, an interrupt ends generation, and after Ctrl-C no
    process remains. Within 5 s of the controller's death no process remains, even a stopped one."""
    config = small_config(folder / "unused", "backend=monarch")
    backend = MonarchBackend(load_policy(config.model), config)
    seconds = {}
    try:
        wait_until(lambda: all(s.ready for s in backend.supervisors))
        started = time.monotonic()
        os.kill(backend.supervisors[0].pids[0], signal.SIGKILL)
        wait_until(lambda: backend.pending_events)
        seconds["generator killed"] = time.monotonic() - started

        def interrupt() -> None:
            raise KeyboardInterrupt

        started = time.monotonic()
        try:
            generate(backend, 100, interrupt)
        except KeyboardInterrupt:
            seconds["interrupt"] = time.monotonic() - started
    finally:
        backend.close()
    runs = {name: start_endless_run(folder / name) for name in ("ctrl-c", "killed")}
    pids = {name: wait_for_two_steps(folder / name, run) for name, run in runs.items()}
    os.killpg(runs["ctrl-c"].pid, signal.SIGINT)
    runs["ctrl-c"].communicate(timeout=60)
    seconds["after ctrl-c"] = _seconds_until_exit(pids["ctrl-c"])
    os.kill(pids["killed"][0], signal.SIGSTOP)
    runs["killed"].kill()
    runs["killed"].communicate(timeout=60)
    seconds["controller killed"] = _seconds_until_exit(pids["killed"])
    for name, value in seconds.items():
        assert value < (5 if name == "controller killed" else 1), seconds
    return {name: round(value, 2) for name, value in seconds.items()}


def _seconds_until_exit(pids: list[int]) -> float:
    started = time.monotonic()
    assert wait_for_exit(pids, timeout=30), "a process remains"
    return time.monotonic() - started


def start_endless_run(out: Path) -> subprocess.Popen[str]:
    """Start a run with one generator, in its own session, as a terminal does."""
    return subprocess.Popen(
        [sys.executable, "-m", "glasshouse", "train", MODEL, f"out={out}", "steps=100000",
         "data.groups_per_step=4", "generate.group_size=4", "generate.max_tokens=32",
         "generate.chunk_size=2", "evaluate.problems=0", "backend=monarch", "monarch.generators=1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def wait_for_two_steps(out: Path, process: subprocess.Popen[str]) -> list[int]:
    """Wait until a run has finished two steps; return its generator's and its learner's ids."""
    log = out / "results" / "metrics.jsonl"

    def two_steps() -> bool:
        assert process.poll() is None, process.stderr and process.stderr.read()
        return log.exists() and log.read_text().count("\n") >= 2

    wait_until(two_steps, timeout=240, poll=0.05)
    pids = child_pids(process.pid)
    assert len(pids) == 2, pids
    return pids


PROOFS = {
    "processes": processes,
    "hung_learner": hung_learner,
    "crashes": crashes,
    "detection": detection,
}


if __name__ == "__main__":
    sys.exit(run_checks(PROOFS, sys.argv[1:]))
