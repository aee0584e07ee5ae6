"""CPU seconds per GB of weights from the learner to generators: `python bench/weight_sync.py`.

The tensors have the shapes of a Llama of 0.2 billion parameters (0.8 GB in float32). Each part is measured in this
process, several times in turn, and the median is printed:

    publish     the learner writes a version to the shared file
    verified    the same every `monarch.verify_every` versions, with a checksum
    generator   a generator copies the version into its model
    compare     a generator checks its weights against the file
    crc32, blake2b, xxh3   hashes of the same bytes
"""

from __future__ import annotations

import argparse
import hashlib
import time
import zlib
from collections.abc import Callable
from statistics import median

import torch

from glasshouse.distributed.monarch.actors import SharedWeights


def make_tensors(layers: int) -> list[torch.Tensor]:
    """Matrices of a hidden size of 1,024 and an MLP of 3,072, filled with random numbers."""
    shapes = [(1024, 1024)] * 4 + [(3072, 1024)] * 3
    return [torch.randn(shape) for _ in range(layers) for shape in shapes]


def measure(rounds: int, parts: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median CPU seconds of each part; the parts take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(rounds + 1):
        for name, run in parts.items():
            started = time.process_time()
            run()
            seconds[name].append(time.process_time() - started)
    return {name: median(values[1:]) for name, values in seconds.items()}  # the first maps pages


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tensors = make_tensors(options.layers)
    numel = sum(t.numel() for t in tensors)
    gigabytes = 4 * numel / 1e9
    raw = torch.cat([t.reshape(-1) for t in tensors]).numpy().data.cast("B")
    print(f"{numel:,} numbers, {gigabytes:.2f} GB in float32; CPU seconds per GB of float32")
    copies = [torch.empty_like(t) for t in tensors]
    for dtype in (torch.float32, torch.bfloat16):
        weights = SharedWeights.create(numel, dtype=dtype)
        weights.write(0, tensors, verify=False)
        parts: dict[str, Callable[[], object]] = {
            "publish": lambda: weights.write(0, tensors, verify=False),  # noqa: B023
            "verified": lambda: weights.write(1, tensors),  # noqa: B023
            "generator": lambda: weights.read(0, copies),  # noqa: B023
            "compare": lambda: weights.matches(0, copies),  # noqa: B023
        }
        show(str(dtype).removeprefix("torch."), measure(options.rounds, parts), gigabytes)
        weights.close()
    hashes: dict[str, Callable[[], object]] = {
        "crc32": lambda: zlib.crc32(raw),
        "blake2b": lambda: hashlib.blake2b(raw).digest(),
    }
    try:
        import xxhash

        hashes["xxh3"] = lambda: xxhash.xxh3_64(raw).digest()
    except ImportError:
        pass  # its row is left out
    show("hashes", measure(options.rounds, hashes), gigabytes)


def show(name: str, seconds: dict[str, float], gigabytes: float) -> None:
    parts = (f"{part} {value / gigabytes:.3f}" for part, value in seconds.items())
    print(f"{name}: {', '.join(parts)}", flush=True)


if __name__ == "__main__":
    main()
