"""A real pretrained model beside TRL's GRPOTrainer: seconds per step, share of GEMM speed, memory.

    make bench ONLY=real                                    # its own environment, then this script
    python bench/real_models.py --model smollm2 --rounds 2 --out build/bench/real_models.json
    python bench/real_models.py --contenders full lora 2+2 --rounds 3       # without TRL

16 problems × 8 samples of up to 64 tokens, two cores, float32 but for `bf16`. Both sides are set up as in bench.py:
all weights beside TRL with all weights, LoRA beside TRL with the same adapters. They take turns, each time in a new
process, so that one of them is in memory at a time. The mean of all three steps of a process counts. TRL uses two
threads and 8 microbatches (one microbatch needs more than 24 GB). Ours learns from all rows, as TRL does: by default it
would leave out rows of zero advantage, and SmolLM2, which does not solve this task, would have no others. The KL metric
is measured in the first step and then every tenth, its default for large models.

The share of GEMM speed is that of gemm.py, which runs before and after each of our steps, since the speed of a
shared machine changes from minute to minute: the median of these runs counts. The share of the fastest calls is
given, too, and both for two yardsticks.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench import compute_ratios, print_table, start_worker, summarize, write_results
from gemm import YARDSTICKS, Summary
from worker_process import FOLDER
from workload import STYLE, Workload

from glasshouse.kernel.small_llama import count_common_tokens
from glasshouse.models.chat_template import render_prompt
from glasshouse.models.folders import locate_model
from glasshouse.models.policy import load_tokenizer
from glasshouse.tasks.base import make_task

STEPS = 3
"""Of each process; all count."""
CONTENDERS: dict[str, dict[str, Any]] = {
    "full": {"threads": 2, "skip": False},
    "lora": {"threads": 2, "skip": False, "learn": {"lora_rank": 16}},
    "2+2": {
        "threads": 1, "skip": False, "backend": "monarch", "chunk_size": 8, "gradient_blocks": 2,
        "monarch": {"generators": 2, "learners": 2},
    },
    "bf16": {"threads": 2, "skip": False, "dtype": "bfloat16"},
    "TRL": {"threads": 2, "cache": "dynamic", "microbatches": 8},
    "TRL lora": {"threads": 2, "cache": "dynamic", "microbatches": 8, "lora_rank": 16},
}  # fmt: skip
"""Ours in one process with two threads, the same with LoRA, on four processes, in bfloat16; TRL in its best setting,
and the same with LoRA."""
RIVALS = {"full": "TRL", "2+2": "TRL", "bf16": "TRL", "lora": "TRL lora"}
Gemm = dict[str, dict[str, dict[str, dict[str, float]]]]
"""Seconds per token by phase, yardstick, `median` or `fastest`, and part of the model, of one run of gemm.py."""


def measure(
    work: Workload, names: list[str], rounds: int
) -> tuple[dict[str, dict[str, Any]], list[Gemm]]:
    """Medians of each contender over interleaved rounds, and the runs of gemm.py between them."""
    replies: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in names}
    gemm: list[Gemm] = []
    for number in range(rounds):
        for name in names:
            is_ours = name in RIVALS
            gemm += [measure_gemm(work.model)] if is_ours else []
            worker = start_worker(name, CONTENDERS[name], work)
            try:
                replies[name].append([worker.run("step") for _ in range(STEPS)])
            finally:
                worker.close()
            gemm += [measure_gemm(work.model)] if is_ours else []
            print(f"round {number + 1}, {name}: {replies[name][-1]}", file=sys.stderr)
    measured = {}
    for name, processes in replies.items():
        steps = [step for process in processes for step in process]
        phases = steps[0].get("phases", {})
        measured[name] = summarize(steps) | {
            "step_seconds": statistics.fmean(step["seconds"] for step in steps),
            "tokens_per_step": statistics.fmean(step["tokens"] for step in steps),
            "phases": {p: statistics.fmean(step["phases"][p] for step in steps) for p in phases},
            "all_steps_seconds": [[round(s["seconds"], 2) for s in part] for part in processes],
        }
    return measured, gemm


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
    command = [sys.executable, FOLDER / "gemm.py", "--model", model, "--threads", "2", "--json"]
    variables = {"PYTHONPATH": str(FOLDER.parent / "shared"), "OMP_NUM_THREADS": "2"}
    output = subprocess.run(
        command, env=os.environ | variables, check=True, capture_output=True, text=True
    )
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


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2", help="a packaged model or a model folder")
    parser.add_argument("--rounds", type=int, default=2)
    default = ["full", "lora", "TRL", "TRL lora"]
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=default)
    parser.add_argument("--out", type=Path, default=Path("build/bench/real_models.json"))
    options = parser.parse_args()
    # The learning rate is low, so that the length of completions does not change between the steps.
    sizes = {"groups_per_step": 16, "max_tokens": 64, "learning_rate": 1e-6}
    work = Workload(model=str(locate_model(options.model) or options.model), **sizes)
    measured, gemm = measure(work, options.contenders, options.rounds)
    ratios: dict[str, Any] = {}
    for name, rival in RIVALS.items():
        pair = {n: measured[n] for n in (name, rival) if n in measured}
        ratios |= {k: v for k, v in compute_ratios(pair).items() if k == name}
    prompt_tokens = count_prompt_tokens(work)
    # LoRA needs no gradients of weights, so that its share would be of other products
    shares = {
        name: compute_shares(measured[name], gemm, prompt_tokens)
        for name in measured.keys() & {"full", "2+2"}
    }
    title = f"16 × 8 completions of up to 64 tokens, {options.model}, two cores"
    print_table(title, measured, ratios)
    for name, phases in shares.items():
        for phase, by_yardstick in phases.items():
            for yardstick, share in by_yardstick.items():
                print(f"{name}, {phase}: {share['median']:.0%} of {YARDSTICKS[yardstick]}, "
                      f"{share['fastest']:.0%} of its fastest calls")  # fmt: skip
    result = {"model": options.model, "prompt_tokens": prompt_tokens, "contenders": measured}
    result |= {"ratios": ratios, "gemm": gemm, "shares": shares}
    write_results(options.out, result, options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
