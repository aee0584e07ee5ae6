"""How much faster do two generators generate than one?

    python bench/generators.py [--rounds 7] [--problems 128]

One placement with one generator and one with two live side by side and take turns with the same chunks;
medians of seconds, and their ratio. Enough chunks that neither waits long for the other's last one.
`make bench` runs it and writes bench/generators.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

from workload import Work

from glasshouse import models as policies
from glasshouse import randomness
from glasshouse.backends.base import Chunk
from glasshouse.backends.monarch import Monarch
from glasshouse.tasks import make
from glasshouse.train import build
from glasshouse.types import Request

WANTED = 1.8


def chunks(work: Work, policy: policies.Policy, salt: int, size: int = 16) -> list[Chunk]:
    config = work.config(1, policy)
    task = make(config.task.name, config.task.options)
    problems = work.stream(config).take(work.problems)
    prompts = [policy.prompt(task.messages(p, config.task.style))[1] for p in problems]
    requests = [
        Request(
            prompt=prompt,
            keys=tuple(randomness.key("bench", salt, n, k) for k in range(work.samples)),
        )
        for n, prompt in enumerate(prompts)
    ]
    return [requests[start : start + size] for start in range(0, len(requests), size)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("generators.json"))
    options = parser.parse_args()
    work = Work(
        model="pocket", regime="natural", problems=options.problems, samples=8, max_tokens=72
    )
    placements = {}
    for generators in (1, 2):
        config = work.config(1, placement="monarch", monarch={"generators": generators})
        policy = policies.load(config.model)
        placements[generators] = Monarch(policy, build.with_ranges(config, policy))
    sampling = build.sampling(work.config(1))
    seconds: dict[int, list[float]] = {1: [], 2: []}
    try:
        for turn in range(options.rounds + 2):
            made = []
            for generators, placement in placements.items():
                asked = chunks(work, placement.policy, turn)
                started = time.perf_counter()
                made.append(placement.generate(asked, sampling, lambda: None))
                if turn >= 2:  # the first ones warm up
                    seconds[generators].append(time.perf_counter() - started)
            assert made[0] == made[1], "one and two generators disagree"
    finally:
        for placement in placements.values():
            placement.close()
    medians = {n: statistics.median(values) for n, values in seconds.items()}
    ratio = medians[1] / medians[2]
    report = {
        "problems": options.problems,
        "samples": 8,
        "chunk": 16,
        "seconds": seconds,
        "ratio": ratio,
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(
        f"{options.problems} problems × 8 samples in chunks of 16: one generator {medians[1]:.3f} s, "
        f"two {medians[2]:.3f} s: {ratio:.2f} times as fast (wanted: {WANTED})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
