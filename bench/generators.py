"""How much faster do two generators generate than one?

    python bench/generators.py [--rounds 7] [--problems 128]

One backend with one generator and one with two alternate on the same chunks; reports median seconds
and their ratio. There are enough chunks that neither generator waits long for the last one of the
other. `make bench` runs it and writes bench/generators.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

from workload import Workload

from glasshouse import randomness
from glasshouse.distributed.monarch.backend import MonarchBackend
from glasshouse.files import write_text
from glasshouse.measurement.evaluate import fill_task_options
from glasshouse.models.policy import Policy, load_policy
from glasshouse.rollout.collector import Chunk
from glasshouse.tasks.base import make_task
from glasshouse.types import Request

TARGET_RATIO = 1.8


def make_chunks(work: Workload, policy: Policy, salt: int, size: int = 16) -> list[Chunk]:
    config = work.config(1, policy)
    task = make_task(config.task.name, config.task.options)
    problems = work.problems(config).take(work.groups_per_step)
    prompts = [policy.encode_prompt(task.messages(p, config.task.style))[1] for p in problems]
    requests = [
        Request(
            prompt=prompt,
            noise_keys=tuple(randomness.key("bench", salt, n, k) for k in range(work.group_size)),
        )
        for n, prompt in enumerate(prompts)
    ]
    return [requests[start : start + size] for start in range(0, len(requests), size)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("build/bench/generators.json"))
    options = parser.parse_args()
    work = Workload(model="pocket", groups_per_step=options.problems)
    backends = {}
    for generators in (1, 2):
        config = work.config(1, backend="monarch", monarch={"generators": generators})
        policy = load_policy(config.model)
        backends[generators] = MonarchBackend(policy, fill_task_options(config, policy.card))
    sampling = work.config(1).generate.sampling()
    seconds: dict[int, list[float]] = {1: [], 2: []}
    try:
        for round_number in range(options.rounds + 2):
            results = []
            for generators, backend in backends.items():
                requests = make_chunks(work, backend.policy, round_number)
                started = time.perf_counter()
                results.append(backend.submit(requests, sampling, lambda: None).result())
                if round_number >= 2:  # the first rounds warm up
                    seconds[generators].append(time.perf_counter() - started)
            assert results[0] == results[1], "one and two generators disagree"
    finally:
        for backend in backends.values():
            backend.close()
    medians = {n: statistics.median(values) for n, values in seconds.items()}
    ratio = medians[1] / medians[2]
    report = {
        "problems": options.problems,
        "group_size": 8,
        "chunk_size": 16,
        "seconds": seconds,
        "ratio": ratio,
    }
    write_text(options.out, json.dumps(report, indent=1) + "\n")
    print(
        f"{options.problems} problems × 8 samples in chunks of 16: one generator {medians[1]:.3f} s, "
        f"two {medians[2]:.3f} s: {ratio:.2f} times as fast (target: {TARGET_RATIO})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
