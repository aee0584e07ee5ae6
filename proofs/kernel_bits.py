"""Shows that a run of the kernel for small models has the same bits whatever computes it, and that it leaks no memory.

    python -m proofs.kernel_bits            # 40 steps per setting, then 2,000 steps
    python -m proofs.kernel_bits --steps 4 --leak-steps 200

A run of a study (GRPO with a monitor penalty on a leaked hint) is repeated in processes of 1 to 4 threads, with torch's
operations for SSE2, AVX2 and AVX-512 and kernels built for each. The SHA-256 of the last weights and of all rows
must be equal. The printed one can be compared with that of another machine: aarch64 is not run here.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from glasshouse.config.loading import load_config
from glasshouse.kernel.build import SWITCH, VARIANTS, find_variant
from glasshouse.runs.rollout_log import read_rows
from glasshouse.training.run import TrainingRun
from glasshouse.training.train import train

RUN: dict[str, Any] = {
    "model": "leaked-hint-0", "task.name": "leaked_hint", "task.style": "cot", "data.groups_per_step": 8,
    "generate.group_size": 8, "generate.max_tokens": 72, "learn.algorithm": "grpo", "learn.learning_rate": 3e-4,
    "reward.penalties": {"monitor": {"weight": 1}}, "evaluate.problems": 16, "monitor.at_end": False,
}  # fmt: skip
TIMES = ("time", "seconds")


def hash_run(path: Path) -> str:
    """SHA-256 of the last weights and of all rows but times."""
    weights = max((path / "checkpoints").glob("step-*")) / "model.safetensors"
    digest = hashlib.sha256(weights.read_bytes())
    for row in read_rows(path):
        kept = {key: value for key, value in row.items() if key not in TIMES}
        digest.update(json.dumps(kept, sort_keys=True).encode())
    return digest.hexdigest()


def run_once(steps: int, threads: int, out: Path) -> str:
    """Trains in this process; the hash of the run."""
    overrides = {**RUN, "steps": steps, "threads": threads, "out": str(out)}
    result = train(load_config(overrides=overrides), progress=False)
    return hash_run(result.path)


def list_settings() -> list[tuple[int, str, str]]:
    """(threads, torch's instructions, the kernel's): what this CPU has."""
    variants = [*VARIANTS][[*VARIANTS].index(find_variant()) :]
    names = {"baseline": "default"}
    widest = names.get(variants[0], variants[0])
    settings = [(threads, widest, variants[0]) for threads in (1, 2, 3, 4)]
    settings += [(1, names.get(variant, variant), variant) for variant in variants[1:]]
    return [*settings, (2, widest, variants[-1]), (2, "default", variants[0])]


def measure_leak(steps: int) -> bool:
    """Prints the peak of resident memory after a tenth of the steps and at the end; whether it hardly grew."""
    seen: dict[int, float] = {}
    log_step = TrainingRun.log_step

    def log_and_measure(run: Any, *arguments: Any, **options: Any) -> Any:
        seen[len(seen) + 1] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return log_step(run, *arguments, **options)

    TrainingRun.log_step = log_and_measure  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        small = {"data.groups_per_step": 2, "generate.group_size": 4, "evaluate.problems": 0}
        overrides = {**RUN, **small, "steps": steps, "out": f"{folder}/run", "threads": 2}
        train(load_config(overrides=overrides), progress=False)
    early, late = seen[steps // 10], seen[steps]
    print(f"peak memory after {steps // 10} steps: {early:.0f} MB, after {steps}: {late:.0f} MB")
    return late < early + 30


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--leak-steps", type=int, default=2000)
    parser.add_argument("--run", nargs=2, metavar=("THREADS", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(run_once(options.steps, int(options.run[0]), Path(options.run[1])))
        return 0
    hashes = []
    for threads, torch_uses, kernel in list_settings():
        environment = {**os.environ, "ATEN_CPU_CAPABILITY": torch_uses, SWITCH: kernel}
        with tempfile.TemporaryDirectory() as folder:
            run = ["--steps", str(options.steps), "--run", str(threads), f"{folder}/run"]
            command = [sys.executable, "-m", "proofs.kernel_bits", *run]
            output = subprocess.check_output(command, env=environment, text=True)
        hashes.append(output.split()[-1])
        print(f"{threads} threads, torch {torch_uses}, kernel {kernel}: {hashes[-1]}", flush=True)
    are_equal = len(set(hashes)) == 1
    print(f"{options.steps} steps: {'all equal' if are_equal else 'DIFFERENT'}")
    return 0 if measure_leak(options.leak_steps) and are_equal else 1


if __name__ == "__main__":
    sys.exit(main())
