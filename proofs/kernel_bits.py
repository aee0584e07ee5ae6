"""Shows that a run of the kernel for small models has the same bits whatever computes it.

    python -m proofs.kernel_bits            # 40 steps per setting, then aarch64
    python -m proofs.kernel_bits --only aarch64

- `settings`: a run of a study (GRPO with a monitor penalty on a leaked hint) is repeated in processes of 1 to 4
  threads, with torch's operations for SSE2, AVX2 and AVX-512 and kernels built for each. The SHA-256 of the last
  weights and of all rows must be equal.
- `aarch64`: a shorter training in C (`kernel_driver.c`: sampling, log-probabilities, gradients, AdamW) on this CPU and
  on aarch64 under qemu-user (`apt-get install qemu-user gcc-aarch64-linux-gnu`; without that compiler, `ziglang`) must
  write the same bytes, and its first samples must be those of the Python package.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from glasshouse.config.loading import load_config
from glasshouse.kernel.build import (
    FLAGS,
    SOURCE,
    SWITCH,
    VARIANTS,
    find_compiler,
    find_variant,
)
from glasshouse.kernel.small_llama import count_common_tokens
from glasshouse.models.llama import open_kernel
from glasshouse.models.policy import load_policy
from glasshouse.runs.rollout_log import read_rows
from glasshouse.tasks.base import make_task
from glasshouse.training.train import train
from glasshouse.types import Style

RUN: dict[str, Any] = {
    "model": "leaked-hint-0", "task.name": "leaked_hint", "task.style": "cot", "data.groups_per_step": 8,
    "generate.group_size": 8, "generate.max_tokens": 72, "learn.algorithm": "grpo", "learn.learning_rate": 3e-4,
    "reward.penalties": {"monitor": {"weight": 1}}, "evaluate.problems": 16, "monitor.at_end": False,
}  # fmt: skip
TIMES = ("time", "seconds")
GROUPS, SAMPLES, TOKENS, STEPS = 4, 4, 40, 3
"""Of the training by `kernel_driver.c`."""


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


def list_variants() -> list[str]:
    """The kernels that this CPU can run, widest registers first."""
    return [*VARIANTS][[*VARIANTS].index(find_variant()) :]


def list_settings() -> list[tuple[int, str, str]]:
    """(threads, torch's instructions, the kernel's): what this CPU has."""
    variants = list_variants()
    names = {"baseline": "default"}
    widest = names.get(variants[0], variants[0])
    settings = [(threads, widest, variants[0]) for threads in (1, 2, 3, 4)]
    settings += [(1, names.get(variant, variant), variant) for variant in variants[1:]]
    return [*settings, (2, widest, variants[-1]), (2, "default", variants[0])]


def compare_settings(steps: int) -> bool:
    """Prints the hash of a run in every setting; whether all are equal."""
    hashes = []
    for threads, torch_uses, kernel in list_settings():
        environment = {**os.environ, "ATEN_CPU_CAPABILITY": torch_uses, SWITCH: kernel}
        with tempfile.TemporaryDirectory() as folder:
            run = ["--steps", str(steps), "--run", str(threads), f"{folder}/run"]
            command = [sys.executable, "-m", "proofs.kernel_bits", *run]
            output = subprocess.check_output(command, env=environment, text=True)
        hashes.append(output.split()[-1])
        print(f"{threads} threads, torch {torch_uses}, kernel {kernel}: {hashes[-1]}", flush=True)
    are_equal = len(set(hashes)) == 1
    print(f"{steps} steps: {'all equal' if are_equal else 'DIFFERENT'}", flush=True)
    return are_equal


def write_driver_input(file: Path) -> bytes:
    """Writes the model, prompts and noise of `kernel_driver.c`; what the package samples in the first step."""
    policy = load_policy("pocket")
    kernel = open_kernel(policy.model)
    assert kernel is not None
    task = make_task("sum_digits")
    problems = [task.draw(random.Random(n)) for n in range(GROUPS)]
    prompts = [policy.encode_prompt(task.messages(p, Style.COT))[1] for p in problems]
    common, m = count_common_tokens(prompts), kernel.struct
    noise = np.random.default_rng(0).random((STEPS, GROUPS * SAMPLES, TOKENS), np.float32)
    is_end = np.zeros(m.V, np.uint8)
    is_end[list(policy.end_tokens)] = 1
    sizes = [m.layers, m.D, m.H, m.J, m.d, m.M, m.V, m.tied, m.has_bias, m.has_qk_norm]
    sizes += [m.padding_token, GROUPS, common, SAMPLES, TOKENS, STEPS]
    parts: list[Any] = [np.array(sizes), kernel.frequencies, kernel.weights]
    parts += [np.cumsum([0, *map(len, prompts)]), np.concatenate(prompts), noise, is_end]
    file.write_bytes(b"".join(part.tobytes() for part in parts))
    tokens, _, lengths = kernel.generate(
        prompts,
        [SAMPLES] * GROUPS,
        noise[0],
        temperature=1.0,
        end_tokens=policy.end_tokens,
    )
    return bytes(tokens.tobytes() + lengths.tobytes())


def compare_architectures() -> bool:
    """Prints the hash of what the driver writes on each kind of CPU; whether all are equal."""
    hashes, driver = set(), Path(__file__).with_name("kernel_driver.c")
    flags = [f for f in FLAGS if f not in ("-fPIC", "-shared")]
    programs: dict[str, list[str]] = {
        name: [*find_compiler(), *VARIANTS[name]] for name in list_variants()
    }
    programs["aarch64"] = ["aarch64-linux-gnu-gcc", "-static"]
    if not shutil.which("aarch64-linux-gnu-gcc"):
        programs["aarch64"] = [sys.executable, "-m", "ziglang", "cc", "-target"]
        programs["aarch64"] += ["aarch64-linux-musl", "-static"]
    with tempfile.TemporaryDirectory() as folder:
        given, program = f"{folder}/input", f"{folder}/driver"
        samples = write_driver_input(Path(given))
        for name, compiler in programs.items():
            command = [*compiler, *flags, f"-I{SOURCE.parent}", str(driver), "-o", program]
            emulator = ["qemu-aarch64"] if name == "aarch64" else []
            try:
                subprocess.run(command, check=True)
                subprocess.run([*emulator, program, given, f"{folder}/output"], check=True)
            except (OSError, subprocess.SubprocessError) as error:
                print(f"{name} could not be run: {error}")
                return False
            output = Path(folder, "output").read_bytes()
            hashes.add(hashlib.sha256(output).hexdigest())
            print(f"driver, {name}: {hashlib.sha256(output).hexdigest()}", flush=True)
            if samples not in output:
                print(f"{name}: the samples of the first step are not those of the package")
                return False
    print(f"{STEPS} steps in C: {'all equal' if len(hashes) == 1 else 'DIFFERENT'}", flush=True)
    return len(hashes) == 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--only", nargs="+", choices=["settings", "aarch64"])
    parser.add_argument("--run", nargs=2, metavar=("THREADS", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(run_once(options.steps, int(options.run[0]), Path(options.run[1])))
        return 0
    checks: dict[str, Callable[[], bool]] = {
        "settings": lambda: compare_settings(options.steps),
        "aarch64": compare_architectures,
    }
    return 0 if min([checks[name]() for name in options.only or checks]) else 1


if __name__ == "__main__":
    sys.exit(main())
