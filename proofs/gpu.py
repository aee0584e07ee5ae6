"""Checks a machine with a GPU and writes a report to send back: `make proofs ONLY=gpu`.

    python -m proofs.gpu                         the first GPU
    python -m proofs.gpu --device cuda:1 --model Qwen/Qwen3-0.6B
    python -m proofs.gpu --device cpu            a rehearsal without a GPU

1. Generation, learning, evaluation, monitoring and checkpoints of tiny models on the device, compared with
   the CPU in float32 within the tolerances of `device_checks.LIMITS`.
2. An interrupted run resumes bitwise equal.
3. 20 steps of the chosen model in float32 and bfloat16: tokens per second, peak memory and what `glasshouse
   plan` estimates, and whether the log-probabilities of generator and learner agree.
4. If vLLM is installed (`make vllm-setup`), `proofs.vllm` in its environment: engine equality.
5. If TRL is installed (`make bench` does it), seconds per step of TRL with the same model, problems and sizes.

Exit code 0 if all checks pass, 1 if one fails, 2 without a GPU. The report is build/gpu/report.json. It is not part
of `make proofs`, which needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

from glasshouse.config.loading import load_config
from glasshouse.config.schema import Config
from glasshouse.errors import GlasshouseError
from glasshouse.models.devices import resolve_device, resolve_dtype
from glasshouse.models.sources import software_versions
from glasshouse.runs.run_directory import load_metrics
from glasshouse.training.layout import plan_run
from glasshouse.training.run import TrainingRun
from proofs import device_checks
from proofs.checks import Check, run_checks

REPORT = device_checks.ROOT / "build" / "gpu" / "report.json"
STEPS = 20
BENCH = device_checks.ROOT / ".venv-bench" / "bin" / "python"
VLLM = device_checks.ROOT / ".venv-vllm" / "bin" / "python"
MAX_LOGPROB_DIFF = {"float32": 1e-2, "bfloat16": 1.0}
"""Largest difference of a token's log-probability between generator and learner in the 20-step run."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu as a rehearsal")
    parser.add_argument("--model", default="pocket", help="the model of the 20-step run")
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    try:
        device = resolve_device(arguments.device, 1)
    except GlasshouseError as error:
        print(
            f"error: {error} To rehearse the proof here: python -m proofs.gpu --device cpu",
            file=sys.stderr,
        )
        return 2
    dtypes = ["float32", "bfloat16"]
    try:
        resolve_dtype("bfloat16", device)
    except GlasshouseError as error:
        print(f"note: {error}")
        dtypes = ["float32"]
    checks = list_checks(str(device), dtypes, arguments)
    return run_checks(checks, report=REPORT, machine=describe_machine(device))


def describe_machine(device: torch.device) -> dict[str, Any]:
    """What the results depend on."""
    found: dict[str, Any] = {
        "device": str(device),
        **software_versions(),
        "system": platform.platform(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "gpu": properties.name,
            "gpu_memory_gb": round(properties.total_memory / 1e9, 1),
            "compute_capability": f"{properties.major}.{properties.minor}",
            "gpus": torch.cuda.device_count(),
            "cuda": torch.version.cuda,
        }
    return found


def list_checks(device: str, dtypes: list[str], arguments: argparse.Namespace) -> dict[str, Check]:
    model, steps = arguments.model, arguments.steps
    checks: dict[str, Check] = {}
    for d in dtypes:
        for architecture in ("llama", "gpt2"):
            checks[f"{architecture} {d} equals the CPU"] = partial(compare, architecture, device, d)
        checks[f"train, evaluate, monitor, checkpoint in {d}"] = partial(run, device, d)
        checks[f"resumed run in {d} is bitwise equal"] = partial(resume, device, d)
        checks[f"seconds per step against TRL in {d}"] = partial(compare_trl, device, d, model)
        checks[f"{steps} steps of {model} in {d}"] = partial(measure, device, d, model, steps)
    on_cpu, lora = "generate.device=cpu", "learn.lora_rank=2"
    checks["generators on the CPU"] = partial(run, device, "float32", override=on_cpu)
    checks["LoRA"] = partial(run, device, "float32", override=lora)
    if VLLM.exists():
        checks["vLLM as the engine"] = partial(run_vllm_proof, device, model)
    return checks


def compare(architecture: str, device: str, dtype: str, work: Path) -> dict[str, Any]:
    found = device_checks.compare_with_cpu(architecture, device, dtype)
    exceeding = found.exceeding(device_checks.LIMITS[dtype])
    assert not exceeding, "; ".join(exceeding)
    return {"differences": device_checks.asdict(found)}


def run(device: str, dtype: str, work: Path, override: str = "seed=0") -> dict[str, Any]:
    found = device_checks.run_everything(device, work, f"dtype={dtype}", override)
    assert found["summary"]["steps_done"] == 2
    assert len(found["monitor"]["checkpoints"]) == 2
    return {}


def resume(device: str, dtype: str, work: Path) -> dict[str, Any]:
    differing = device_checks.compare_resumed_run(device, work, f"dtype={dtype}")
    assert not differing, f"{' and '.join(differing)} differ"
    return {}


def measure(device: str, dtype: str, model: str, steps: int, work: Path) -> dict[str, Any]:
    """Trains and measures; the first two steps, in which the device warms up, are left out."""
    on_gpu, out = device.startswith("cuda"), work / "run"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    config = load_config(
        [],
        [f"model={model}", f"device={device}", f"dtype={dtype}", f"steps={steps}", f"out={out}",
         "data.groups_per_step=16", "generate.group_size=8", "generate.max_tokens=64",
         "learn.microbatch_tokens=8192", "evaluate.problems=0", "checkpoints.save_best=false",
         "checkpoints.save_above_reward=null", "checkpoints.every=0"],
    )  # fmt: skip
    TrainingRun(config).train()
    rows = load_metrics(out)
    difference = max(row["logprob_diff_max"] for row in rows)
    peak = (
        torch.cuda.max_memory_allocated(device)
        if on_gpu
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    )
    assert difference <= MAX_LOGPROB_DIFF[dtype], f"log-probabilities differ by {difference:.2g}"
    timings = [row["timing"] for row in rows[2:] or rows]
    return {
        **{
            name: statistics.median(timing[name] for timing in timings)
            for name in ("generate_tokens_per_second", "learn_tokens_per_second")
        },
        "peak_memory_gb": round(peak / 1e9, 3),
        "estimated_memory_gb": estimate(config),
        "logprob_diff_max": difference,
    }


def compare_trl(device: str, dtype: str, model: str, work: Path) -> dict[str, Any]:
    """Seconds per step of Glasshouse and of TRL in turns: `make bench` on the device."""
    if not BENCH.exists():
        return {"skipped": "TRL is not installed: make bench"}
    run_program(
        BENCH, "bench/bench.py", "--model", model, "--device", device, "--dtype", dtype, "--regime", "natural",
        "--rounds", "3", "--processes", "--skip-compare", "--out", str(work / "bench.json"),
    )  # fmt: skip
    return json.loads((work / "bench.json").read_text())["regimes"]["natural"]["ratios"]


def run_program(python: Path, *arguments: str) -> str:
    """The output of a program in another environment."""
    process = subprocess.run(
        [python, *arguments], cwd=device_checks.ROOT, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout[-500:] + process.stderr[-500:]
    return process.stdout


def run_vllm_proof(device: str, model: str, work: Path) -> dict[str, Any]:
    """On the CPU, where it is a rehearsal, only the checks that take less than some minutes."""
    only = ["--only", "tokens", "weights"] if device == "cpu" else []
    output = run_program(VLLM, "-m", "proofs.vllm", "--device", device, "--model", model, *only)
    return {"output": output[-2000:]}


def estimate(config: Config) -> float:
    """What `glasshouse plan` says about the peak."""
    [process] = plan_run(config).processes
    return round(process.peak / 1e9, 3)


if __name__ == "__main__":
    sys.exit(main())
