"""Compares the peak memory that `glasshouse plan` estimates with what a run uses: `make proofs ONLY=plan`.

    python -m proofs.plan_memory                          the pocket model
    python -m proofs.plan_memory pocket smollm2 gemma3-270m
    python -m proofs.plan_memory path/to/model --limit 0.15

Each model trains two steps and saves a checkpoint, in a separate process. Measured is the largest resident set
(VmHWM) minus that of the same process after it has trained the mock model, so that Python, PyTorch and what they
load on first use are not counted. By default glibc returns freed memory to the system at once
(MALLOC_MMAP_THRESHOLD_, MALLOC_TRIM_THRESHOLD_; large models do not keep theirs), so that the peak is that of live
memory; --allocator default measures with what users have. Exit code 1 if an estimate is off by more than --limit
(10 %).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SMALL = ["task.style=direct", "data.groups_per_step=4", "generate.group_size=4",
         "generate.max_tokens=24", "learn.microbatch_tokens=512",
         "learn.skip_zero_advantage=false"]  # fmt: skip
"""Settings for models that take seconds per token here. `skip_zero_advantage` would skip groups with equal
rewards, and with them memory."""
SETTINGS = {"pocket": ["generate.max_tokens=32", "learn.skip_zero_advantage=false"]}
"""Completions that reach the limit: rows that end early leave a part of the reserved cache untouched."""
COMMON = ["steps=2", "evaluate.problems=0", "checkpoints.save_best=false",
          "checkpoints.save_above_reward=null", "device=cpu"]  # fmt: skip
LIVE = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "MALLOC_ARENA_MAX": "1",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("models", nargs="*", default=["pocket"])
    parser.add_argument("--set", action="append", default=[], metavar="key=value")
    parser.add_argument("--limit", type=float, default=0.10)
    parser.add_argument("--allocator", choices=["live", "default"], default="live")
    parser.add_argument("--measure", metavar="JSON", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        settings = json.loads(arguments.measure)
        print(json.dumps(measure(settings, live=arguments.allocator == "live")))
        return 0
    print(
        f"{'model':<24} {'phase':<11} {'estimated MB':>12} {'measured MB':>12} {'difference':>10}"
    )
    exceeded = False
    for model in arguments.models:
        settings = [f"model={model}", *SETTINGS.get(model, SMALL), *COMMON, *arguments.set]
        phase, estimated = estimate(settings)
        environment = os.environ | (LIVE if arguments.allocator == "live" else {})
        command = [sys.executable, "-m", "proofs.plan_memory", "--measure", json.dumps(settings)]
        command += ["--allocator", arguments.allocator]
        process = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False
        )
        if process.returncode:
            print(f"{model:<24} the run failed", file=sys.stderr)
            return 1
        measured = json.loads(process.stdout.splitlines()[-1])
        difference = estimated / measured - 1
        exceeded |= abs(difference) > arguments.limit
        name = Path(model).name
        print(
            f"{name:<24} {phase:<11} {estimated / 1e6:>12,.1f} {measured / 1e6:>12,.1f} {difference:>+10.1%}",
            flush=True,
        )
    return 1 if exceeded else 0


def estimate(settings: list[str]) -> tuple[str, int]:
    """The phase with the peak, and its bytes."""
    from glasshouse.config.loading import load_config
    from glasshouse.training.layout import plan_run

    [process] = plan_run(load_config([], settings)).processes
    return process.peak_phase, process.peak


def measure(settings: list[str], *, live: bool) -> int:
    """Bytes of the peak of a run, above those of a run of the mock model in the same process."""
    from glasshouse.config.loading import load_config
    from glasshouse.models import policy
    from glasshouse.training.run import TrainingRun

    if live:
        policy.keep_freed_memory = lambda: None
    with tempfile.TemporaryDirectory(prefix="glasshouse-") as folder:
        warm_up = [*COMMON, "model=models/mock", "data.groups_per_step=2", f"out={folder}/mock"]
        TrainingRun(load_config([], warm_up)).train()
        gc.collect()
        before = read_status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        TrainingRun(load_config([], [*settings, f"out={folder}/run"])).train()
        return read_status("VmHWM") - before


def read_status(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    sys.exit(main())
