"""A real pretrained model beside TRL's GRPOTrainer: seconds per step, share of GEMM speed, memory.

    make bench ONLY=real                                    # its own environment, then this script
    python bench/real_models.py --model smollm2 --rounds 2 --out build/bench/real_models.json
    python bench/real_models.py --contenders full lora 2+2 --rounds 3       # without TRL

16 problems × 8 samples of up to 64 tokens, float32, two cores. Both sides are set up as in bench.py. They take
turns, each time in a new process, so that one of them is in memory at a time. The third step of each process counts:
in the first two ours still obtains memory from the system, in the second because the optimizer's state is created at
the end of the first. The durations of all three are recorded. TRL uses two threads and 8 microbatches (one
microbatch needs more than 24 GB). Ours learns from all rows, as TRL does: by default it would leave out rows of zero
advantage, and SmolLM2, which does not solve this task, would have no others. The KL metric is measured every tenth
step, its default for large models, so not in the steps that count.

The share of GEMM speed is that of gemm.py, which runs before and after each of our steps, since the speed of a
shared machine changes from minute to minute: the median of these runs counts. The share of the fastest calls is
given, too, and both for two yardsticks.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import median_of
from gemm import YARDSTICKS, Summary
from rich.console import Console
from rich.table import Table
from worker_process import FOLDER, WorkerProcess
from workload import STYLE, Workload

from glasshouse.files import write_text
from glasshouse.models.chat_template import render_prompt
from glasshouse.models.policy import load_tokenizer, locate_model
from glasshouse.models.shared_prefix import count_common_tokens
from glasshouse.tasks.base import make_task

OURS = "glasshouse_worker.py"
LEARNING_RATE = 1e-6
"""Low, so that the length of completions does not change between the steps that are compared."""
STEPS = 3
"""Of each process; the last one counts."""
LORA = {"lora_rank": 16}
CONTENDERS: dict[str, dict[str, Any]] = {
    "full": {"script": OURS, "threads": 2, "skip": False},
    "lora": {"script": OURS, "threads": 2, "skip": False, "learn": LORA},
    "2+2": {
        "script": OURS, "threads": 1, "skip": False, "backend": "monarch", "chunk_size": 8,
        "gradient_blocks": 2, "monarch": {"generators": 2, "learners": 2},
    },
    "trl": {"script": "trl_worker.py", "threads": 2, "cache": "dynamic", "microbatches": 8},
}  # fmt: skip
Gemm = dict[str, dict[str, dict[str, dict[str, float]]]]
"""Seconds per token by phase, yardstick, `median` or `fastest`, and part of the model, of one run of gemm.py."""
TITLES = {
    "full": "Glasshouse, one process, two threads",
    "lora": "the same, LoRA of rank 16",
    "2+2": "Glasshouse, 2 generators + 2 learners",
    "trl": "TRL, two threads, 8 microbatches",
}


def measure(
    work: Workload, names: list[str], rounds: int
) -> tuple[dict[str, dict[str, Any]], list[Gemm]]:
    """Medians of each contender over interleaved rounds, and the runs of gemm.py between them."""
    console = Console(stderr=True)
    steps: dict[str, list[dict[str, Any]]] = {name: [] for name in names}  # those that count
    durations: dict[str, list[list[float]]] = {name: [] for name in names}  # of all
    gemm: list[Gemm] = []
    for number in range(rounds):
        for name in names:
            settings = {k: v for k, v in CONTENDERS[name].items() if k != "script"}
            settings["work"] = asdict(work)
            if name != "trl":
                gemm.append(measure_gemm(work.model))
            worker = WorkerProcess(
                CONTENDERS[name]["script"], settings, CONTENDERS[name]["threads"]
            )
            try:
                replies = [worker.run("step") for _ in range(STEPS)]
            finally:
                worker.close()
            steps[name].append(replies[-1])
            durations[name].append([round(reply["seconds"], 2) for reply in replies])
            if name != "trl":
                gemm.append(measure_gemm(work.model))
            console.print(f"[dim]round {number + 1}, {name}: {durations[name][-1]}, {replies[-1]}")
    return {
        name: {**summarize(steps[name]), "all_steps_seconds": durations[name]} for name in names
    }, gemm


def summarize(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds, and the largest peak of memory."""
    return {
        "step_seconds": median_of(steps, "seconds"),
        "step_seconds_each": [round(step["seconds"], 2) for step in steps],
        "step_cpu_seconds": median_of(steps, "cpu_seconds"),
        "tokens_per_step": median_of(steps, "tokens"),
        "completions_per_step": steps[-1]["rows"],
        "peak_mb": max(step["peak_mb"] for step in steps),
        "phases": median_phases(steps),
    }


def compute_ratios(measured: dict[str, Any]) -> dict[str, Any]:
    """TRL's time per step and per token, and its memory, divided by ours."""
    if "trl" not in measured:
        return {}
    trl = measured["trl"]
    return {
        name: {
            "step": trl["step_seconds"] / ours["step_seconds"],
            "step_per_token": (trl["step_seconds"] / trl["tokens_per_step"])
            / (ours["step_seconds"] / ours["tokens_per_step"]),
            "memory": trl["peak_mb"] / ours["peak_mb"],
        }
        for name, ours in measured.items()
        if name != "trl"
    }


def median_phases(steps: list[dict[str, Any]]) -> dict[str, float]:
    names = steps[0].get("phases", {})
    return {name: statistics.median(step["phases"][name] for step in steps) for name in names}


def count_prompt_tokens(work: Workload) -> int:
    """Tokens of the prompts of a step, their common start once."""
    tokenizer = load_tokenizer(work.model)
    config = work.config(1)
    task = make_task(config.task.name, config.task.options)
    prompts = [
        tokenizer(render_prompt(tokenizer, task.messages(p, STYLE), work.model))["input_ids"]
        for p in work.problems(config).take(work.groups_per_step)
    ]
    common = count_common_tokens(prompts)
    return common + sum(len(prompt) - common for prompt in prompts)


def measure_gemm(model: str) -> Gemm:
    """Seconds per token of the matrix products, measured in a separate process."""
    command = [
        sys.executable,
        str(FOLDER / "gemm.py"),
        "--model",
        model,
        "--threads",
        "2",
        "--json",
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(FOLDER.parent / "shared"),
        "OMP_NUM_THREADS": "2",
    }
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    report: Gemm = json.loads(output.stdout)
    return report


def compute_shares(
    measured: dict[str, Any], gemm: list[Gemm], prompt_tokens: int
) -> dict[str, dict[str, dict[str, float]]]:
    """Time of the needed matrix products as a share of the phases `generate` and `learn`, by yardstick: with the
    median of all runs of gemm.py, and with their fastest calls."""
    tokens, rows = measured["tokens_per_step"], measured["completions_per_step"]
    in_blocks = prompt_tokens + tokens - rows  # the last token of a completion predicts nothing

    def share(phase: str, key: str, yardstick: str, summary: str, combine: Summary) -> float:
        seconds = [run[phase][yardstick][summary] for run in gemm]
        blocks, head = (combine([each[part] for each in seconds]) for part in ("blocks", "head"))
        return (in_blocks * blocks + tokens * head) / float(measured["phases"][key])

    return {
        phase: {
            yardstick: {
                summary: share(phase, key, yardstick, summary, combine)
                for summary, combine in (("median", statistics.median), ("fastest", min))
            }
            for yardstick in YARDSTICKS
        }
        for phase, key in (("learning", "learn"), ("generation", "generate"))
    }


def print_results(result: dict[str, Any]) -> None:
    console = Console(width=max(130, Console().width))
    table = Table(title=f"16 × 8 completions of up to 64 tokens, {result['model']}, two cores")
    table.add_column("")
    heads = ("s per step", "× TRL", "per token", "generate s", "learn s", "tokens", "peak MB")
    for head in heads:
        table.add_column(head, justify="right")
    for name, f in result["contenders"].items():
        ratio, phases = result["ratios"].get(name, {}), f["phases"]
        table.add_row(
            TITLES[name],
            f"{f['step_seconds']:.1f}",
            *(f"{ratio[r]:.2f}" if ratio else "" for r in ("step", "step_per_token")),
            *(f"{phases[p]:.1f}" if phases else "" for p in ("generate", "learn")),
            f"{f['tokens_per_step']:.0f}",
            f"{f['peak_mb']:,.0f}",
        )
    console.print(table)
    shares = Table(title="Share of GEMM speed, by yardstick (in brackets: of its fastest calls)")
    for head in ("", "phase", *YARDSTICKS.values()):
        shares.add_column(head)
    for name, phases in result["shares"].items():
        for phase, by_yardstick in phases.items():
            cells = (f"{s['median']:.0%} ({s['fastest']:.0%})" for s in by_yardstick.values())
            shares.add_row(TITLES[name], phase, *cells)
    console.print(shares)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2", help="a packaged model or a model folder")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--contenders", nargs="+", choices=CONTENDERS, default=["full", "lora", "trl"]
    )
    parser.add_argument("--out", type=Path, default=Path("build/bench/real_models.json"))
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    model = str(locate_model(options.model) or options.model)
    work = Workload(
        model=model, regime="natural", groups_per_step=16, group_size=8, max_tokens=64,
        learning_rate=LEARNING_RATE,
    )  # fmt: skip
    measured, gemm = measure(work, options.contenders, options.rounds)
    prompt_tokens = count_prompt_tokens(work)
    result = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpus": os.cpu_count(), "system": platform.platform(), "load": os.getloadavg()},
        "model": Path(options.model).name,
        "rounds": options.rounds,
        "prompt_tokens": prompt_tokens,
        "contenders": measured,
        "ratios": compute_ratios(measured),
        "gemm": gemm,
        # LoRA needs no gradients of weights, so that its share would be of other products
        "shares": {
            name: compute_shares(f, gemm, prompt_tokens)
            for name, f in measured.items()
            if name in ("full", "2+2")
        },
    }
    print_results(result)
    write_text(options.out, json.dumps(result, indent=1) + "\n")
    print(f"wrote {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
