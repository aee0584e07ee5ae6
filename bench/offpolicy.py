"""How much faster is a run that generates ahead of learning?

    python bench/offpolicy.py [--rounds 3] [--steps 25]

Trains the pocket model with two generators and one learner (`backend: monarch`) at each value of
`max_offpolicy_steps`, the values in turn, and reports seconds per step, the median of the rounds. The lengths of the
completions have a long tail: a problem has 1 to 12 numbers, and a chunk is one problem. Writes
bench/offpolicy.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path

from glasshouse.files import write_text
from glasshouse.runs.run_directory import load_metrics

STEPS_AHEAD = (0, 1, 2, 4)
WARM_UP = 5
OPTIONS = [
    "task.name=sum_digits", "task.options={count: [1, 12]}", "data.groups_per_step=8",
    "generate.group_size=32", "generate.chunk_size=1", "generate.max_tokens=256", "evaluate.problems=0",
    "checkpoints.every=0", "checkpoints.save_best=false", "checkpoints.save_above_reward=null",
    "backend=monarch", "monarch.generators=2",
]  # fmt: skip


def measure_seconds_per_step(ahead: int, steps: int, out: Path) -> float:
    """Train; return the mean time of a step after the warm-up. Evaluation and start-up are not in it."""
    command = [sys.executable, "-m", "glasshouse", "train", *OPTIONS, f"steps={steps}"]
    command += [f"max_offpolicy_steps={ahead}", f"out={out}", "--quiet"]
    subprocess.run(command, check=True)
    times = [datetime.fromisoformat(row["timing"]["time"]) for row in load_metrics(out)]
    return (times[-1] - times[WARM_UP]).total_seconds() / (len(times) - 1 - WARM_UP)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--out", type=Path, default=Path("build/bench/offpolicy.json"))
    options = parser.parse_args()
    seconds: dict[int, list[float]] = {ahead: [] for ahead in STEPS_AHEAD}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for ahead in STEPS_AHEAD:
                run = Path(folder) / f"{number}-{ahead}"
                seconds[ahead].append(measure_seconds_per_step(ahead, options.steps, run))
    medians = {ahead: statistics.median(values) for ahead, values in seconds.items()}
    write_text(options.out, json.dumps({"seconds": seconds, "medians": medians}, indent=1) + "\n")
    for ahead, median in medians.items():
        print(
            f"max_offpolicy_steps={ahead}: {median:.3f} s per step, "
            f"{medians[0] / median:.2f} times as fast as 0"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
