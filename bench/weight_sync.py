"""CPU seconds per GB of weights from the learner to generators: `python -m bench.weight_sync [--host]`.

The tensors have the shapes of a Llama of 0.2 billion parameters (0.8 GB in float32). Each part is measured in this
process, several times in turn, and the median is printed:

    publish     the learner writes a version to the shared file
    verified    the same every `monarch.verify_every` versions, with a checksum
    generator   a generator copies the version into its model
    compare     a generator checks its weights against the file
    crc32, blake2b, xxh3   hashes of the same bytes

With `--host` they are instead sent from the shared file to a worker at another loopback address, as to another host:
over mutual TLS, into the file of that host.

    sent        CPU seconds at both ends together
    verified    the same every `monarch.verify_every` versions: the host compares the checksum
    clock       seconds until the host has the version
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from proofs.hosts_cluster import Cluster
from proofs.network import LoopbackNetwork

from glasshouse.config.loading import load_config
from glasshouse.distributed.hosts.host_pool import HostPool
from glasshouse.distributed.hosts.worker import session_processes
from glasshouse.distributed.monarch.actors import SharedWeights, WeightCopyActor
from glasshouse.distributed.monarch.processes import ActorProcesses, Host


def make_tensors(layers: int) -> list[torch.Tensor]:
    """Matrices of a hidden size of 1,024 and an MLP of 3,072, filled with random numbers."""
    shapes = [(1024, 1024)] * 4 + [(3072, 1024)] * 3
    return [torch.randn(shape) for _ in range(layers) for shape in shapes]


def measure(
    rounds: int,
    parts: dict[str, Callable[[], object]],
    clock: Callable[[], float] = time.process_time,
) -> dict[str, float]:
    """Median CPU seconds of each part; the parts take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(rounds + 1):
        for name, run in parts.items():
            started = clock()
            run()
            seconds[name].append(clock() - started)
    return {name: median(values[1:]) for name, values in seconds.items()}  # the first maps pages


def measure_local(tensors: list[torch.Tensor], rounds: int, gigabytes: float) -> None:
    numel = sum(t.numel() for t in tensors)
    raw = torch.cat([t.reshape(-1) for t in tensors]).numpy().data.cast("B")
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
        show(str(dtype).removeprefix("torch."), measure(rounds, parts), gigabytes)
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
    show("hashes", measure(rounds, hashes), gigabytes)


def measure_host(tensors: list[torch.Tensor], rounds: int, gigabytes: float) -> None:
    """Starts a worker at another loopback address, sends versions to it and ends it."""
    numel = sum(t.numel() for t in tensors)
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(LoopbackNetwork(4), Path(folder))
        try:
            cluster.start_worker(2)
            session = cluster.session_leader(2)

            def read_cpu() -> float:
                """CPU seconds of this process and all of the worker's."""
                return time.process_time() + sum(map(read_cpu_seconds, session_processes(session)))

            config = load_config(
                [], [*cluster.overrides, f"hosts.addresses=[{cluster.address(2)}]"]
            )
            with contextlib.closing(HostPool(config.hosts)) as hosts:
                [(name, mesh)] = hosts.meshes.items()
                for dtype in (torch.float32, torch.bfloat16):
                    weights = SharedWeights.create(numel, dtype=dtype)
                    weights.write(0, tensors, verify=False)
                    weights.write(1, tensors)
                    copy = ActorProcesses(Host(mesh, name), "weights", WeightCopyActor, config)
                    copy.start(numel, weights.slots, dtype)

                    def send(version: int) -> None:
                        failures = weights.send(version, {name: copy})  # noqa: B023
                        assert not failures, failures

                    parts: dict[str, Callable[[], object]] = {
                        "sent": lambda: send(0),
                        "verified": lambda: send(1),
                    }
                    seconds = measure(rounds, parts, read_cpu)
                    on_clock = measure(rounds, {"clock": parts["sent"]}, time.perf_counter)
                    show(str(dtype).removeprefix("torch."), {**seconds, **on_clock}, gigabytes)
                    copy.kill()
                    weights.close()
        finally:
            cluster.close()


def read_cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))


def show(name: str, seconds: dict[str, float], gigabytes: float) -> None:
    parts = (f"{part} {value / gigabytes:.3f}" for part, value in seconds.items())
    print(f"{name}: {', '.join(parts)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--host", action="store_true", help="measure sending to another host")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tensors = make_tensors(options.layers)
    numel = sum(t.numel() for t in tensors)
    gigabytes = 4 * numel / 1e9
    print(f"{numel:,} numbers, {gigabytes:.2f} GB in float32; CPU seconds per GB of float32")
    (measure_host if options.host else measure_local)(tensors, options.rounds, gigabytes)


if __name__ == "__main__":
    main()
