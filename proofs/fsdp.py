"""A learner that is divided among ranks (`learn.sharding: fsdp`): `make proofs ONLY=fsdp`.

    python -m proofs.fsdp [equality lora smollm2 resume killed hung]

equality, lora   a random Llama of 20 million parameters, full and with LoRA: one and two ranks against one process
smollm2          the same with SmolLM2 (not by default: it needs the extra `smollm2` and 5 GB)
resume           a run on two ranks, continued on one, three and two
killed, hung     a rank that is killed, or stopped, while the run generates, learns or saves: the run ends with a
                 sentence, no process remains, and it resumes
"""

from __future__ import annotations

import ctypes
import gc
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from glasshouse.config.schema import LearnConfig
from glasshouse.learn.learner import Learner
from glasshouse.learn.microbatches import TrainingSample
from glasshouse.learn.sharded import ShardedLearner
from glasshouse.models.adapters import add_adapters
from glasshouse.models.policy import Policy, load_policy
from glasshouse.runs import checkpoints
from glasshouse.runs.run_directory import load_metrics
from proofs.checks import Check, run_checks
from proofs.monarch_runs import MODEL
from proofs.processes import child_pids, wait_for_exit, wait_until

STEPS = 3
LEARNING_RATE = 1e-4
WEIGHT_BOUND, METRIC_BOUND = 1e-5, 1e-4
"""Largest differences from one process after `STEPS` updates: of a weight, and of a metric relative to 1 or to its
size. AdamW moves a weight by at most about the learning rate per step, whatever the size of its gradient, so that a
rounding difference of a gradient near 0 can become a tenth of that."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""Options of glibc's mallopt."""
SMALL_RUN = [
    MODEL, "data.groups_per_step=4", "generate.group_size=4", "generate.max_tokens=24", "generate.chunk_size=2",
    "reward.terms={closeness: 1}", "learn.microbatch_tokens=64", "evaluate.problems=0", "checkpoints.every=1",
    "learn.sharding=fsdp", "backend=monarch", "monarch.generators=1", "monarch.verify_every=1",
    "monarch.spawn_timeout=1200",
]  # fmt: skip


# --- equality with one process, and memory -----------------------------------------------------


def make_policy(name: str) -> Policy:
    if name == "smollm2":
        return load_policy("smollm2")
    config = LlamaConfig(
        hidden_size=384, intermediate_size=1024, num_hidden_layers=8, num_attention_heads=6,
        num_key_value_heads=3, vocab_size=20_000, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    policy = Policy(name, LlamaForCausalLM(config).eval(), None, {})
    return add_adapters(policy, 8, seed=0) if name == "lora" else policy


def make_samples() -> list[TrainingSample]:
    """Four prompts of 24 tokens with four completions each; a quarter of them has zero advantage."""
    draw = random.Random(0)
    samples = []
    for _ in range(4):
        prompt = tuple(draw.randrange(20_000) for _ in range(24))
        for row in range(4):
            tokens = tuple(draw.randrange(20_000) for _ in range(draw.randrange(4, 24)))
            logprobs = tuple(-10.0 - draw.random() for _ in tokens)
            advantage = draw.uniform(-1, 1) if row else 0.0
            samples.append(
                TrainingSample(
                    prompt=prompt, tokens=tokens, sampler_logprobs=logprobs, advantage=advantage
                )
            )
    return samples


def train_rank(name: str, rank: int, world_size: int, folder: Path) -> None:
    """Trains `STEPS` updates; `world_size` 0 is the learner without sharding."""
    torch.set_num_threads(1)
    measure_live_memory()
    before = read_memory("VmRSS")
    config = LearnConfig(
        microbatch_tokens=256, learning_rate=LEARNING_RATE, activation_checkpointing=True
    )
    options: dict[str, Any] = {"max_tokens": 32, "steps": STEPS}
    if world_size:
        store = dist.FileStore(str(folder / f"store-{world_size}"), world_size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
        learner: Learner = ShardedLearner(
            make_policy(name), config, device=torch.device("cpu"), **options
        )
    else:
        learner = Learner(make_policy(name), config, **options)
    gc.collect()
    loaded = read_memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts here
    started = time.monotonic()
    metrics = [learner.update(make_samples()) for _ in range(STEPS)]
    seconds = (time.monotonic() - started) / STEPS
    peak = read_memory("VmHWM")
    tensors = learner.whole_tensors() if isinstance(learner, ShardedLearner) else learner.parameters
    weights = {str(number): t.detach().clone() for number, t in enumerate(tensors)}
    if rank == 0:
        save_file(weights, folder / f"weights-{world_size}.safetensors")
    report = {
        "metrics": metrics, "seconds per step": round(seconds, 2),
        "MB after loading": round((loaded - before) / 1e6), "peak MB": round((peak - before) / 1e6),
    }  # fmt: skip
    (folder / f"report-{world_size}-{rank}.json").write_text(json.dumps(report))
    if world_size:
        dist.barrier()


def measure_live_memory() -> None:
    """Lets glibc return freed memory to the system at once, so that the peak is that of live memory."""
    mallopt = ctypes.CDLL(None).mallopt
    for option, value in ((M_MMAP_THRESHOLD, 65536), (M_TRIM_THRESHOLD, 65536), (M_ARENA_MAX, 1)):
        mallopt(option, value)


def read_memory(field: str) -> int:
    """Bytes of a line of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def compare_ranks(name: str, folder: Path) -> dict[str, Any]:
    """One process against one and two ranks."""
    fork = multiprocessing.get_context("fork")  # the imports are shared
    results: dict[str, Any] = {}
    for world_size in (0, 1, 2):
        ranks = [
            fork.Process(target=train_rank, args=(name, rank, world_size, folder))
            for rank in range(max(1, world_size))
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
            assert process.exitcode == 0, f"{world_size} ranks failed"
        reports = [
            json.loads((folder / f"report-{world_size}-{rank}.json").read_text())
            for rank in range(len(ranks))
        ]
        results[f"{world_size} ranks" if world_size else "one process"] = {
            **measure_differences(folder, world_size, reports[0]["metrics"]),
            **{
                key: [report[key] for report in reports]
                for key in ("seconds per step", "MB after loading", "peak MB")
            },
        }
    return results


def measure_differences(
    folder: Path, world_size: int, metrics: list[dict[str, float]]
) -> dict[str, float]:
    expected = json.loads((folder / "report-0-0.json").read_text())["metrics"]
    tensors = [load_file(folder / f"weights-{size}.safetensors") for size in (0, world_size)]
    weights = max((tensors[0][key] - tensors[1][key]).abs().max().item() for key in tensors[0])
    relative = max(
        abs(new[key] - old[key]) / max(1.0, abs(old[key]))
        for old, new in zip(expected, metrics, strict=True)
        for key in old
    )
    assert metrics[-1]["learned_rows"] == 12, "rows of zero advantage were not skipped"
    assert weights < WEIGHT_BOUND, weights
    assert relative < METRIC_BOUND, relative
    return {"largest weight difference": weights, "largest metric difference": relative}


# --- runs on Monarch ---------------------------------------------------------------------------


def command(out: Path, ranks: int, steps: int, *overrides: str) -> list[str]:
    settings = [*SMALL_RUN, f"out={out}", f"steps={steps}", f"monarch.learners={ranks}", *overrides]
    return [sys.executable, "-m", "glasshouse", "train", *settings]


def train(out: Path, ranks: int, steps: int, *overrides: str) -> None:
    done = subprocess.run(
        command(out, ranks, steps, *overrides), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def weight_difference(one: Path, other: Path, step: int) -> float:
    name = f"checkpoints/step-{step:06d}/model.safetensors"
    first, second = load_file(one / name), load_file(other / name)
    return max((first[key] - second[key]).abs().max().item() for key in first)


def resume(folder: Path) -> dict[str, Any]:
    """Two ranks, then one, three and two, a step each; against two ranks without a break."""
    straight, broken = folder / "straight", folder / "broken"
    train(straight, 2, 4)
    for steps, ranks in ((1, 2), (2, 1), (3, 3), (4, 2)):
        train(broken, ranks, steps)
    found = checkpoints.list_checkpoints(broken / "checkpoints")
    assert not any(checkpoint.damage for checkpoint in found)
    difference = weight_difference(straight, broken, 4)
    assert difference < 1e-3, difference
    losses = [[row["loss"] for row in load_metrics(out)] for out in (straight, broken)]
    return {"ranks": "2 → 1 → 3 → 2", "largest weight difference": difference, "losses": losses}


def find_ranks(pids: list[int]) -> list[int]:
    """The processes of the learner: the ranks write to one log, each generator to its own."""
    by_log: dict[bytes, list[int]] = {}
    for pid in pids:
        *_, log = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        by_log.setdefault(log, []).append(pid)
    [ranks] = [group for group in by_log.values() if len(group) == 2]
    return ranks


class Disturbance(threading.Thread):
    """Sends a signal to a rank as soon as a condition holds."""

    def __init__(
        self, run: subprocess.Popen[str], condition: Callable[[], object], kind: int
    ) -> None:
        super().__init__(daemon=True)
        self.run_process, self.condition, self.kind = run, condition, kind
        self.pids: list[int] = []
        self.time = 0.0

    def run(self) -> None:
        wait_until(self.condition, timeout=1800, poll=0.002)
        self.pids = child_pids(self.run_process.pid)
        os.kill(find_ranks(self.pids)[-1], self.kind)
        self.time = time.monotonic()


def disturb(out: Path, kind: int, moment: str, *overrides: str) -> float:
    """Runs on two ranks, disturbs one of them at a moment; returns the seconds until the run has ended."""
    run = subprocess.Popen(
        command(out, 2, 200, *overrides), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    saved = out / "checkpoints"
    conditions: dict[str, Callable[[], object]] = {
        "learning": lambda: len(list(saved.glob("step-*"))) >= 2,
        "saving": lambda: (saved / "step-000001").exists() and list(saved.glob("*.writing")),
    }
    disturbance = Disturbance(run, conditions[moment], kind)
    disturbance.start()
    _, errors = run.communicate(timeout=2400)
    seconds = time.monotonic() - disturbance.time
    assert run.returncode == 2, (run.returncode, errors)
    assert "The learner failed" in errors, errors
    assert "Traceback" not in errors, errors
    assert wait_for_exit(disturbance.pids, timeout=30), "a process remains"
    assert not list(saved.glob("*.writing"))
    found, damaged = checkpoints.newest_checkpoint(saved)
    assert found is not None
    assert not damaged
    train(out, 1, found.step + 1, *overrides)
    return round(seconds, 1)


def killed(folder: Path) -> dict[str, Any]:
    """A killed rank ends the run within 10 s; it resumes on one rank."""
    seconds = {
        moment: disturb(folder / moment, signal.SIGKILL, moment)
        for moment in ("learning", "saving")
    }
    assert max(seconds.values()) < 10, seconds
    return {"seconds until the run has ended": seconds}


def hung(folder: Path) -> dict[str, Any]:
    """A stopped rank ends the run within monarch.update_timeout and 15 s."""
    seconds = disturb(folder / "run", signal.SIGSTOP, "learning", "monarch.update_timeout=20")
    assert seconds < 35, seconds
    return {"seconds until the run has ended": seconds, "monarch.update_timeout": 20}


PROOFS: dict[str, Check] = {
    "equality": lambda folder: compare_ranks("llama-20m", folder),
    "lora": lambda folder: compare_ranks("lora", folder),
    "resume": resume,
    "killed": killed,
    "hung": hung,
    "smollm2": lambda folder: compare_ranks("smollm2", folder),
}


def main(names: list[str]) -> int:
    return run_checks(PROOFS, names or [name for name in PROOFS if name != "smollm2"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
