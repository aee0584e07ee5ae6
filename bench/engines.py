"""Tokens per second of the torch engine and of vLLM, by batch size.

    .venv-vllm/bin/python bench/engines.py [--models pocket smollm2] [--batches 1 4 16 64 256] [--tokens 32]

Groups of eight samples of one prompt (fewer for smaller batches), completions of equal length, so that both
engines compute the same number of tokens; one thread, float32, the engines take turns. Seconds are CPU seconds
of the process, so that other processes on the machine count little. `make bench` runs it if vLLM is installed
(`make vllm-setup`), and writes bench/engines.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from glasshouse import randomness
from glasshouse.config.loading import load_config
from glasshouse.errors import GlasshouseError
from glasshouse.files import write_text
from glasshouse.generate.engines import Generator
from glasshouse.generate.torch_engine import TorchGenerator
from glasshouse.generate.vllm.engine import VllmGenerator
from glasshouse.models.devices import configure_torch
from glasshouse.models.policy import Policy, load_policy
from glasshouse.types import Request, SamplingParams

GROUP = 8


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["pocket", "smollm2"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 4, 16, 64, 256])
    parser.add_argument("--tokens", type=int, default=32, help="new tokens per completion")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("build/bench/engines.json"))
    options = parser.parse_args()
    configure_torch(threads=1)
    rows: list[dict[str, Any]] = []
    for model in options.models:
        try:
            rows += measure_model(model, options)
        except GlasshouseError as error:
            print(f"{model}: {error}")
            rows.append({"model": model, "error": str(error)})
        write_text(options.out, json.dumps(rows, indent=1) + "\n")
    return 0


def measure_model(model: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    policy = load_policy(model)
    config = load_config([], ["generate.kv_cache_mb=1024"]).generate
    engines = {"vllm": VllmGenerator(policy, config), "torch": TorchGenerator(policy, 1024)}
    policy.model.generation_config.eos_token_id = []  # every completion has the same length
    for engine in engines.values():  # the first call allocates
        measure(engine, make_requests(policy, GROUP, -1), options.tokens)
    rows = []
    for batch in options.batches:
        seconds: dict[str, list[float]] = {name: [] for name in engines}
        for round_number in range(options.rounds):
            for name, engine in engines.items():
                took = measure(engine, make_requests(policy, batch, round_number), options.tokens)
                seconds[name].append(took)
        speeds = {n: batch * options.tokens / statistics.median(s) for n, s in seconds.items()}
        rows.append({"model": model, "batch": batch, "tokens": options.tokens,
                     "tokens_per_second": speeds, "seconds": seconds})  # fmt: skip
        text = ", ".join(f"{name} {speed:,.0f} tokens/s" for name, speed in speeds.items())
        print(f"{model}, batch {batch}: {text}", flush=True)
    engines["vllm"].close()
    return rows


def make_requests(policy: Policy, batch: int, salt: int) -> list[Request]:
    groups = max(1, batch // GROUP)
    requests = []
    for number in range(groups):
        text = f"What is {17 + 31 * number} + {salt + 5}? Think step by step, then give the answer."
        _, prompt = policy.encode_prompt([{"role": "user", "content": text}])
        samples = batch // groups
        keys = tuple(randomness.key("engines", salt, number, k) for k in range(samples))
        requests.append(Request(prompt=prompt, noise_keys=keys))
    return requests


def measure(engine: Generator, requests: list[Request], tokens: int) -> float:
    started = time.process_time()
    completions = engine.generate(requests, SamplingParams(max_tokens=tokens))
    took = time.process_time() - started
    assert all(len(c.tokens) == tokens for group in completions for c in group)
    return took


if __name__ == "__main__":
    sys.exit(main())
