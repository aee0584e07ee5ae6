"""Runs that are really killed, and go on: bit for bit what they would have been.

    python -m proofs.resume steps              resume at every step of a 12-step run, then in a row
    python -m proofs.resume kills --count 200  SIGKILL at random moments and inside every write

`make resume-proof` runs both in full; CI a smaller part (tests/run/test_resume.py). Each run is a
process of its own, forked from this one after the imports, so that a kill costs no start-up. Half of
the kills come at a random time, half from within the process just before or after a random one of
its calls that make files last (rename, flush, unlink, truncate): inside saving, pruning, appending.
"""

from __future__ import annotations

import argparse
import json
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

from glasshouse import config
from glasshouse.store import checkpoints, rollout_reader
from glasshouse.train import Run
from glasshouse.train.display import Display

ROOT = Path(__file__).resolve().parent.parent
SMALL = [
    f"model={ROOT / 'models' / 'mock'}", "steps=12", "data.groups_per_step=4", "generate.group_size=4",
    "generate.max_tokens=24", "evaluate.problems=4", "evaluate.samples=1", "evaluate.every=5",
    "reward.terms={closeness: 1}", "checkpoints.every=3", "checkpoints.save_above_reward=-0.9",
    "learn.learning_rate=1e-3",
]  # fmt: skip
IN_A_ROW = ((1, 5, 9), (2, 7), (4, 4, 4))
"""Steps after which one and the same run is killed, again and again."""
LASTING = ("replace", "fsync", "unlink", "truncate", "rmdir")
"""The calls of `os` by which files come to last or to go."""


class EndsAt(Display):
    """Kills its own process when a step is done, before its checkpoint."""

    def __init__(self, step: int) -> None:
        self.at = step

    def step(self, row: dict, groups: list) -> None:
        if row["step"] == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def child(work: Callable[..., None], *arguments: object) -> int:
    """Fork and do the work there; returns the process id."""
    process = os.fork()
    if process:
        return process
    try:
        work(*arguments)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def train(out: Path, display: Display | None = None, overrides: tuple[str, ...] = ()) -> None:
    Run(config.load([], [*SMALL, *overrides, f"out={out}"]), display).train()


def finished(process: int) -> int:
    """Wait; the exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def killed_inside(out: Path, after: int, before: bool) -> None:
    """Train, and die at the `after`-th lasting call, just before or just after it is made."""
    left = after

    def deadly(call: Callable) -> Callable:
        def counted(*args: object, **named: object) -> object:
            nonlocal left
            left -= 1
            if left == 0 and before:
                os.kill(os.getpid(), signal.SIGKILL)
            result = call(*args, **named)
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return counted

    for name in LASTING:
        setattr(os, name, deadly(getattr(os, name)))
    train(out)


def count_calls(out: Path, note: Path) -> None:
    """How many lasting calls a whole run makes."""
    calls = 0

    def counting(call: Callable) -> Callable:
        def counted(*args: object, **named: object) -> object:
            nonlocal calls
            calls += 1
            return call(*args, **named)

        return counted

    for name in LASTING:
        setattr(os, name, counting(getattr(os, name)))
    train(out)
    note.write_text(str(calls))


def result(out: Path) -> dict[str, object]:
    """All that must be equal: weights, optimizer, metrics and rollouts, less times."""
    last = sorted((out / "checkpoints").glob("step-*"))[-1]
    lines = (out / "results" / "metrics.jsonl").read_text().splitlines()
    record = out / "results" / "rollouts"
    return {
        "checkpoint": last.name,
        "weights": (last / checkpoints.MODEL).read_bytes(),
        "optimizer": (last / checkpoints.LEARNER).read_bytes(),
        "metrics": [
            {k: v for k, v in json.loads(line).items() if k not in ("timing", "record_bytes")}
            for line in lines
        ],
        **{
            kind: [{**row, "time": 0} for row in rollout_reader.read(record, kind)]
            for kind in ("train", "validation")
        },
    }


def differing(out: Path, whole: dict[str, object]) -> list[str]:
    found = result(out)
    return [name for name in whole if found[name] != whole[name]]


def valid(out: Path) -> int:
    """How many checkpoints hold; -1 if the second save has not happened yet."""
    log = out / "results" / "events.jsonl"
    saves = 0
    if log.exists():
        lines = log.read_text().splitlines()
        saves = sum('"event": "save"' in line for line in lines)
    held = sum(not c.faults for c in checkpoints.listed(out / "checkpoints"))
    return held if saves >= 2 else -1


def prove_steps(scratch: Path, at: Sequence[int], rows: Sequence[tuple[int, ...]]) -> bool:
    whole = reference(scratch)
    good = 0
    for step in at:
        out = scratch / f"at-{step}"
        assert finished(child(train, out, EndsAt(step))) == -signal.SIGKILL
        good += told(f"killed after step {step}", out, whole)
    for steps in rows:
        out = scratch / f"row-{'-'.join(map(str, steps))}"
        for step in steps:
            assert finished(child(train, out, EndsAt(step))) == -signal.SIGKILL
        good += told(f"killed after steps {steps}", out, whole)
    print(f"{good} of {len(at) + len(rows)} bitwise as without interruption")
    return good == len(at) + len(rows)


def told(what: str, out: Path, whole: dict[str, object]) -> bool:
    code = finished(child(train, out))
    wrong = differing(out, whole) if code == 0 else ["exit code"]
    print(
        f"{what}: {'the same bits' if not wrong else 'DIFFERS in ' + ', '.join(wrong)}", flush=True
    )
    shutil.rmtree(out)
    return not wrong


def reference(scratch: Path) -> dict[str, object]:
    assert finished(child(train, scratch / "whole")) == 0
    return result(scratch / "whole")


def prove_kills(scratch: Path, count: int, seed: int) -> bool:
    """Kill after kill into runs that go on; a run that comes to its end is compared, and a new one
    begins. No checkpoint may be lost, and a run may never fail to go on."""
    whole, draw = reference(scratch), random.Random(seed)
    note = scratch / "calls"
    started = time.monotonic()
    assert finished(child(count_calls, scratch / "counted", note)) == 0
    seconds, calls = time.monotonic() - started, int(note.read_text())
    print(f"a run takes {seconds:.1f} s and makes {calls} lasting calls", flush=True)
    kills = ended = number = 0
    faults: list[str] = []
    out = scratch / "run-0"
    while kills < count and not faults:
        before = newest_step(out)
        if kills % 2:
            at, early = draw.randint(1, calls), draw.random() < 0.5
            process = child(killed_inside, out, at, early)
        else:
            process = child(train, out)
            time.sleep(draw.uniform(0, seconds))
            os.kill(process, signal.SIGKILL)
        code = finished(process)
        kills += code == -signal.SIGKILL
        if code not in (0, -signal.SIGKILL):
            faults.append(f"kill {kills}: exit code {code}")
        if newest_step(out) < before:
            faults.append(f"kill {kills}: the checkpoint of step {before} is lost")
        if 0 <= valid(out) < 2:
            faults.append(f"kill {kills}: fewer than two valid checkpoints")
        if code == 0 or kills == count or draw.random() < 0.1:
            if finished(child(train, out)) != 0:
                faults.append(f"kill {kills}: it does not go on")
            elif wrong := differing(out, whole):
                faults.append(f"kill {kills}: differs in {', '.join(wrong)}")
            ended += 1
            shutil.rmtree(out)
            number += 1
            out = scratch / f"run-{number}"
        if kills % 20 == 0 and code:
            print(f"{kills} kills, {ended} runs ended bitwise the same", flush=True)
    for fault in faults:
        print(f"FAULT: {fault}")
    print(
        f"{kills} of {count} kills survived; {ended} runs ended, all bitwise the same: {not faults}"
    )
    return not faults and kills == count


def newest_step(out: Path) -> int:
    found, _ = checkpoints.newest(out / "checkpoints")
    return found.step if found else -1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["steps", "kills"])
    parser.add_argument("--small", action="store_true", help="steps: only some of them")
    parser.add_argument("--count", type=int, default=200, help="how many kills")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="glasshouse-proof-") as scratch:
        where = Path(scratch)
        if args.what == "steps":
            at = (1, 6, 12) if args.small else range(1, 13)
            good = prove_steps(where, at, IN_A_ROW[:1] if args.small else IN_A_ROW)
        else:
            good = prove_kills(where, args.count, args.seed)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
