"""What a run of the pocket model costs as it grows, in one process on one thread: `make proofs ONLY=cost`.

    python -m proofs.cost [rows steps memory]      about 8 minutes of one core

- `rows`: CPU seconds of whole steps with 64 to 512 rollouts; the sizes take turns.
- `steps`: CPU seconds of whole runs of 20, 40 and 80 steps, with evaluations and checkpoints; they take turns too.
- `memory`: 2,000 steps of a run of a study with its log, evaluations and checkpoints (a monitor penalty, a leaked
  hint).

The first two fit a line and fail if a measurement is far from it, or if a row or a step costs more in a larger run.
Their learning rate is so small that completions keep their length.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from glasshouse.config.loading import load_config
from glasshouse.training.display import Display
from glasshouse.training.run import TrainingRun
from proofs.checks import run_checks
from proofs.kernel_bits import RUN

GROUP = 8
ROWS, ROW_STEPS, ROW_TURNS = (64, 128, 256, 512), 12, 4
STEPS, STEP_TURNS = (20, 40, 80), 4
MAX_GROWTH, MAX_DEVIATION = 0.15, 0.10
"""Of the cost of a row or a step from one size to the next; of a measurement from the line. The CPU seconds of equal
steps differ by a tenth beside other work."""
LONG, EVERY, WARM_UP = 2000, 100, 500
MAX_RESIDENT_MB, MAX_USED_MB, MAX_OBJECTS_PER_STEP = 24.0, 4.0, 1.0
"""Growth after the first `WARM_UP` steps. One object of each rollout would be 64 per step."""
STEADY = {"learn.learning_rate": 1e-9}


class Clock(Display):
    """Reads this process's CPU time when a step has been logged."""

    def __init__(self) -> None:
        self.readings: list[float] = []

    def step(self, row: dict[str, Any], groups: list[Any]) -> None:
        self.readings.append(time.process_time())


def train(out: Path, display: Display, rows: int, **overrides: Any) -> None:
    small = {"out": str(out), "data.groups_per_step": rows // GROUP, "generate.group_size": GROUP}
    TrainingRun(load_config(overrides={**small, **overrides}), display).train()


def measure_rows(folder: Path) -> dict[str, Any]:
    """Seconds per step and row."""
    seconds: dict[int, list[float]] = {rows: [] for rows in ROWS}
    quiet = {
        "evaluate.problems": 0,
        "checkpoints.save_above_reward": None,
        "checkpoints.save_best": False,
    }
    for turn in range(ROW_TURNS + 1):  # the first one warms up
        for rows in ROWS:
            clock = Clock()
            train(folder / f"{rows}-{turn}", clock, rows, steps=ROW_STEPS, **STEADY, **quiet)
            seconds[rows] += np.diff(clock.readings).tolist() if turn else []
    return fit_line("row", {rows: median(values) for rows, values in seconds.items()})


def measure_steps(folder: Path) -> dict[str, Any]:
    """Seconds per run and step."""
    seconds: dict[int, list[float]] = {steps: [] for steps in STEPS}
    evaluated = {"evaluate.every": 10, "evaluate.problems": 32, "checkpoints.every": 10}
    for turn in range(STEP_TURNS + 1):
        for steps in STEPS:
            started = time.process_time()
            train(folder / f"{steps}-{turn}", Display(), 128, steps=steps, **STEADY, **evaluated)
            seconds[steps] += [time.process_time() - started] if turn else []
    return fit_line("step", {steps: median(values) for steps, values in seconds.items()})


def fit_line(unit: str, seconds: dict[int, float]) -> dict[str, Any]:
    """The line through these points, each as important as the others; raises if they are not on one."""
    sizes, values = np.array([*seconds], float), np.array([*seconds.values()])
    each, fixed = np.polyfit(sizes, values, 1, w=1 / values)
    deviation = np.abs((fixed + each * sizes) / values - 1).max()
    costs = np.diff(values) / np.diff(sizes)
    growth = max(costs[1:] / costs[:-1]) - 1
    found = {
        "seconds": {size: round(value, 4) for size, value in seconds.items()},
        f"milliseconds per {unit}": round(1000 * each, 4),
        "fixed seconds": round(fixed, 4),
        f"milliseconds of each further {unit}": np.round(1000 * costs, 4).tolist(),
        "largest growth": round(growth, 3),
        "largest deviation": round(deviation, 3),
    }
    assert growth < MAX_GROWTH, f"a further {unit} costs more in a larger run: {found}"
    assert deviation < MAX_DEVIATION, f"the cost is not linear: {found}"
    return found


class Memory(Display):
    """Reads the memory of this process every `EVERY` steps."""

    def __init__(self) -> None:
        self.objects: list[int] = []
        self.used: list[float] = []
        self.resident: list[float] = []
        self.seconds: list[float] = []

    def step(self, row: dict[str, Any], groups: list[Any]) -> None:
        if row["step"] % EVERY == 0:
            self.seconds.append(time.process_time())
            gc.collect()
            self.objects.append(sys.getallocatedblocks())
            self.used.append(read_used())
            self.resident.append(read_resident())


def measure_memory(folder: Path) -> dict[str, Any]:
    """Python's objects, what glibc has handed out, and the resident memory that is not of files."""
    memory = Memory()
    overrides = {**RUN, "steps": LONG, "out": str(folder / "run"), "evaluate.every": 200}
    TrainingRun(load_config(overrides=overrides), memory).train()
    print(f"{'step':>6} {'objects':>10} {'used MB':>9} {'resident MB':>12}")
    rows = zip(memory.objects, memory.used, memory.resident, strict=True)
    for step, (objects, used, resident) in zip(range(EVERY, LONG + 1, EVERY), rows, strict=True):
        print(f"{step:>6} {objects:>10,} {used:>9.1f} {resident:>12.1f}")
    first = WARM_UP // EVERY - 1
    kept = (memory.objects[-1] - memory.objects[first]) / (LONG - WARM_UP)
    used, resident = (values[-1] - values[first] for values in (memory.used, memory.resident))
    found = {
        "steps": [WARM_UP, LONG],
        "objects per step": round(kept, 3),
        "used MB": round(used, 2),
        "resident MB": [round(memory.resident[n], 1) for n in (first, -1)],
        "CPU seconds of 100 steps": np.round(np.diff(memory.seconds), 1).tolist(),
    }
    assert abs(kept) < MAX_OBJECTS_PER_STEP, found
    assert used < MAX_USED_MB, found
    assert resident < MAX_RESIDENT_MB, found
    return found


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def read_used() -> float:
    """MB that glibc's malloc has handed out: without what was freed and not given back to the system."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Mallinfo
    found = mallinfo()
    return float(found.uordblks + found.hblkhd) / 1e6


def read_resident() -> float:
    """Resident memory without mapped files, in MB."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024 / 1e6


def main(names: Sequence[str]) -> int:
    checks = {"rows": measure_rows, "steps": measure_steps, "memory": measure_memory}
    return run_checks(checks, names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
