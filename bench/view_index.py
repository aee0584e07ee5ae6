"""CPU seconds of the page's index of a large rollout log: `PYTHONPATH=. python bench/view_index.py`.

Writes a run of 1,000 steps × 256 rollouts into a folder, unless it is there, and indexes it as `glasshouse view` does:
first the rows, which can then be listed, searched and filtered, then the verdicts of the monitors.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from tests.view.example_runs import write_run

from glasshouse.view.rollout_index import RolloutIndex
from glasshouse.view.run_reader import RunLocation, RunReader


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--run", type=Path, default=Path("build/view_index"))
    options = parser.parse_args()
    if not (options.run / "results" / "summary.json").exists():
        write_run(options.run, steps=options.steps, groups=32, samples=8)
    reader = RunReader(RunLocation("large", options.run))
    reader.refresh()
    index = RolloutIndex(reader.monitors)
    index.set_frames(reader.frames)
    started = time.process_time()
    for frame in index.missing():
        index.add(frame)
    rows = time.process_time()
    while index.unscored:
        index.score()
    verdicts = time.process_time()
    print(f"{index.count():,} rollouts: rows {rows - started:.1f} s of CPU", end=", ")
    print(f"verdicts of {', '.join(m.name for m in reader.monitors)} {verdicts - rows:.1f} s")


if __name__ == "__main__":
    main()
