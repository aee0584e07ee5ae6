"""Kills training processes and checks that the resumed runs are bitwise equal to uninterrupted ones.

    python -m proofs.resume steps              kill after each step of a 12-step run, and repeatedly
    python -m proofs.resume kills --count 200  SIGKILL at random times and inside file operations

`make proofs ONLY=resume` runs both; tests/training/test_resume.py runs a small part of them. Each run is a
process forked after a first run, so that a kill costs no start-up time. Half of the kills come at a
random time. The other half come from inside the process, right before or after a random call that
changes files (rename, flush, unlink, truncate), so that saving, pruning and appending are hit.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from glasshouse.config.loading import load_config
from glasshouse.runs import checkpoints
from glasshouse.runs.rollout_log import read_rows
from glasshouse.runs.run_directory import load_metrics
from glasshouse.training.display import Display
from glasshouse.training.run import TrainingRun

ROOT = Path(__file__).resolve().parent.parent
SMALL = [
    f"model={ROOT / 'models' / 'mock'}", "steps=12", "data.groups_per_step=4", "generate.group_size=4",
    "generate.max_tokens=24", "evaluate.problems=4", "evaluate.samples=1", "evaluate.every=5",
    "reward.terms={closeness: 1}", "checkpoints.every=3", "checkpoints.save_above_reward=-0.9",
    "learn.learning_rate=1e-3",
]  # fmt: skip
REPEATED_KILLS = ((1, 5, 9), (2, 7), (4, 4, 4))
"""Steps after which one run is killed, again and again."""
FILE_CALLS = ("replace", "fsync", "unlink", "truncate", "rmdir")
"""The functions of `os` that change files on disk."""

Result = dict[str, object]


class KillAtStep(Display):
    """Kills its own process after a step, before the step's checkpoint."""

    def __init__(self, step: int) -> None:
        self.kill_step = step

    def step(self, row: dict, groups: list) -> None:
        if row["step"] == self.kill_step:
            os.kill(os.getpid(), signal.SIGKILL)


def train(out: Path, display: Display | None = None, overrides: Sequence[str] = ()) -> dict:
    return TrainingRun(load_config([], [*SMALL, *overrides, f"out={out}"]), display).train()


def start_child(function: Callable[..., object], *arguments: object) -> int:
    """Fork a process that calls the function; returns its id."""
    process = os.fork()
    if process:
        return process
    try:
        function(*arguments)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def wait_for(process: int) -> int:
    """Wait for a process; returns its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def run_child(function: Callable[..., object], *arguments: object) -> int:
    return wait_for(start_child(function, *arguments))


def train_with_call_hook(
    out: Path, overrides: Sequence[str], before: Callable[[], None], after: Callable[[], None]
) -> None:
    """Train, and call the hooks before and after every call that changes files."""

    def wrap(call: Callable) -> Callable:
        def wrapped(*args: object, **kwargs: object) -> object:
            before()
            result = call(*args, **kwargs)
            after()
            return result

        return wrapped

    for name in FILE_CALLS:
        setattr(os, name, wrap(getattr(os, name)))
    train(out, None, overrides)


def train_and_die_at_call(
    out: Path, overrides: Sequence[str], number: int, die_before: bool
) -> None:
    """Train, and be killed right before or after the `number`-th call that changes files."""
    count = 0

    def before() -> None:
        nonlocal count
        count += 1
        if count == number and die_before:
            os.kill(os.getpid(), signal.SIGKILL)

    def after() -> None:
        if count >= number:
            os.kill(os.getpid(), signal.SIGKILL)

    train_with_call_hook(out, overrides, before, after)


def count_file_calls(out: Path, overrides: Sequence[str], result: Path) -> None:
    """Train, and write the number of calls that change files to `result`."""
    calls: list[None] = []
    train_with_call_hook(out, overrides, lambda: calls.append(None), lambda: None)
    result.write_text(str(len(calls)))


def load_result(out: Path) -> Result:
    """Load everything that must be equal: weights, optimizer, metrics and rollouts, except times."""
    last = sorted((out / "checkpoints").glob("step-*"))[-1]
    return {
        "checkpoint": last.name,
        "weights": (last / checkpoints.MODEL).read_bytes(),
        "optimizer": (last / checkpoints.LEARNER).read_bytes(),
        "metrics": [
            {k: v for k, v in row.items() if k not in ("timing", "rollout_log_bytes")}
            for row in load_metrics(out)
        ],
        **{
            kind: [{**row, "time": 0} for row in read_rows(out, kind)]
            for kind in ("train", "validation")
        },
    }


def list_differences(out: Path, expected: Result) -> list[str]:
    """Compare a run with an expected result; returns the names of the parts that differ."""
    result = load_result(out)
    return [name for name in expected if result[name] != expected[name]]


def too_few_valid_checkpoints(out: Path) -> bool:
    """After the second save, are there fewer than two valid checkpoints?"""
    events = out / "results" / "events.jsonl"
    saves = events.read_text().count('"event": "save"') if events.exists() else 0
    entries = checkpoints.list_checkpoints(out / "checkpoints")
    return saves >= 2 and sum(not entry.damage for entry in entries) < 2


def newest_step(out: Path) -> int:
    newest, _ = checkpoints.newest_checkpoint(out / "checkpoints")
    return newest.step if newest else -1


def train_uninterrupted(scratch: Path, overrides: Sequence[str]) -> Result:
    """Train in this process, so that forked processes find all lazy imports done."""
    train(scratch / "uninterrupted", None, overrides)
    return load_result(scratch / "uninterrupted")


def check_kills_after_steps(
    scratch: Path, kill_steps: Sequence[Sequence[int]], overrides: Sequence[str] = ()
) -> bool:
    """Kill one run per sequence after each of its steps, then resume and compare."""
    expected, equal = train_uninterrupted(scratch, overrides), 0
    for steps in kill_steps:
        out = scratch / f"killed-{'-'.join(map(str, steps))}"
        for step in steps:
            assert run_child(train, out, KillAtStep(step), overrides) == -signal.SIGKILL
        code = run_child(train, out, None, overrides)
        differences = list_differences(out, expected) if code == 0 else ["exit code"]
        verdict = "DIFFERS in " + ", ".join(differences) if differences else "bitwise equal"
        print(f"killed after steps {tuple(steps)}: {verdict}", flush=True)
        shutil.rmtree(out)
        equal += not differences
    print(f"{equal} of {len(kill_steps)} resumed runs are bitwise equal to the uninterrupted run")
    return equal == len(kill_steps)


def check_random_kills(
    scratch: Path, count: int, seed: int, overrides: Sequence[str] = ()
) -> list[str]:
    """Kill and resume runs until `count` kills; compare each finished run and start a new one.
    Returns failures: a lost checkpoint, a run that cannot be resumed, a difference."""
    expected, generator = train_uninterrupted(scratch, overrides), random.Random(seed)
    started = time.monotonic()
    assert run_child(count_file_calls, scratch / "counted", overrides, scratch / "calls") == 0
    seconds, calls = time.monotonic() - started, int((scratch / "calls").read_text())
    print(f"a run takes {seconds:.1f} s and makes {calls} calls that change files", flush=True)
    kills = attempts = finished = 0
    failures: list[str] = []
    out = scratch / "run-0"
    while kills < count and not failures:
        step_before = newest_step(out)
        if attempts % 2:
            number, die_before = generator.randint(1, calls), generator.random() < 0.5
            code = run_child(train_and_die_at_call, out, overrides, number, die_before)
        else:
            process = start_child(train, out, None, overrides)
            time.sleep(generator.uniform(0, seconds))
            os.kill(process, signal.SIGKILL)
            code = wait_for(process)
        attempts += 1
        kills += code == -signal.SIGKILL
        if code not in (0, -signal.SIGKILL):
            failures.append(f"kill {kills}: exit code {code}")
        if newest_step(out) < step_before:
            failures.append(f"kill {kills}: the checkpoint of step {step_before} is lost")
        if too_few_valid_checkpoints(out):
            failures.append(f"kill {kills}: fewer than two valid checkpoints")
        if code == 0 or kills == count or generator.random() < 0.1:
            if run_child(train, out, None, overrides) != 0:
                failures.append(f"kill {kills}: the run cannot be resumed")
            elif differences := list_differences(out, expected):
                failures.append(f"kill {kills}: differs in {', '.join(differences)}")
            shutil.rmtree(out)
            finished += 1
            out = scratch / f"run-{finished}"
        if kills % 20 == 0 and code:
            print(f"{kills} kills, {finished} finished runs are bitwise equal", flush=True)
    print(f"{kills} of {count} kills, {finished} finished runs, failures: {failures or 'none'}")
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("proof", choices=["steps", "kills"])
    parser.add_argument("--count", type=int, default=200, help="kills: number of kills")
    parser.add_argument("--seed", type=int, default=0, help="kills: seed of the random times")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="glasshouse-proof-") as scratch:
        if args.proof == "steps":
            kill_steps = [*((step,) for step in range(1, 13)), *REPEATED_KILLS]
            return 0 if check_kills_after_steps(Path(scratch), kill_steps) else 1
        return 1 if check_random_kills(Path(scratch), args.count, args.seed) else 0


if __name__ == "__main__":
    sys.exit(main())
