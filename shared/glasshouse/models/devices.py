"""Where a model runs and in which number format (the config keys `device` and `dtype`), and whether it fits there.

What is trained, its gradients and its optimizer state are always float32; `dtype` is what matrix products are computed
in. `choose_formats` says how the rest is held. The memory of training is estimated in `training.memory`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from glasshouse.config.schema import Config
from glasshouse.errors import ConfigError

GB = 1e9
CGROUP = Path("/sys/fs/cgroup")
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Options of glibc's mallopt."""

WEIGHT_DTYPE = torch.float32
"""What is trained is held in this, whatever the model's config.json says."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


LARGE_MODEL_PARAMETERS = 10_000_000


def is_large(model: Any) -> bool:
    """The one definition of a large model. Some choices pay only for large models, and the published results of small
    ones must keep every bit: small models keep the plain choice each time. All choices together make a step of
    SmolLM2-135M 5.3 times as fast as TRL's (docs/benchmarks.md)."""
    return sum(p.numel() for p in model.parameters()) >= LARGE_MODEL_PARAMETERS


@dataclass(frozen=True, slots=True)
class Formats:
    """How a model is held in memory."""

    weights: torch.dtype
    """Of the model; its adapters are always `WEIGHT_DTYPE`."""
    reference: torch.dtype | None
    """Of the copy of the starting policy; None: there is no copy."""


def choose_formats(config: Config, parameters: int, *, training: bool = True) -> Formats:
    """The one rule for how a model is loaded, which `glasshouse plan` and the memory check ask too.

    Weights that nobody trains (with LoRA, or without training) are held on a GPU in the `dtype` of the products;
    FSDP wants one format. Without its adapters a model is its own reference, and without a KL term
    (`learn.kl_coef`) and KL metric (`diagnostics.kl_every`) none is needed."""
    learn, dtype = config.learn, DTYPES[config.dtype]
    is_frozen = bool(learn.lora_rank) or not training
    on_gpu = choose_device_name(config.device, parameters).startswith("cuda")
    has_reference = training and bool(learn.kl_coef or config.diagnostics.kl_every is not None)
    return Formats(
        weights=dtype if is_frozen and on_gpu and learn.sharding == "none" else WEIGHT_DTYPE,
        reference=dtype if has_reference and not learn.lora_rank else None,
    )


def configure_torch(threads: int) -> None:
    """Set the number of threads and deterministic algorithms."""
    # cuBLAS is deterministic only with this, set before its first call.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(threads)
    # not use_deterministic_algorithms: it imports torch._inductor, which takes longer than torch itself
    torch.set_deterministic_debug_mode("warn")
    # Filling empty tensors costs 6 % of a step; nothing reads them before they are written.
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010


@contextmanager
def use_one_torch_thread() -> Iterator[None]:
    """While the kernel for small models computes with threads of its own. Those of torch would wait for work in a loop,
    which takes the cores from them, and their number would decide the order of sums."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def resolve_device(name: str, parameters: int, index: int = 0, key: str = "device") -> torch.device:
    """The device of a config key for a model of this many parameters; raises if this machine lacks it.
    `cuda` without a number is divided among processes: process `index` gets GPU `index` modulo their
    number.

    Example: `resolve_device("cuda:1", parameters=135_000_000)`
    """
    name = choose_device_name(name, parameters)
    if name.split(":")[0] == "cuda":
        _require_gpu(name, key)
        name = name if ":" in name else f"cuda:{index % _gpu_count()}"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).split("\n")[0].split(". ")[0]
        raise ConfigError(
            f'{key}: PyTorch cannot use the device "{name}" on this machine ({reason}). Set it to auto, '
            "cpu, or cuda."
        ) from None
    return device


def choose_device_name(name: str, parameters: int) -> str:
    """The name without `auto`: a GPU if there is one, for a large model."""
    if name != "auto":
        return name
    return "cuda" if _gpu_count() and parameters >= LARGE_MODEL_PARAMETERS else "cpu"


def resolve_dtype(name: str, device: torch.device, parameters: int = 0) -> torch.dtype:
    """The dtype of the config key `dtype`; raises if the device cannot compute in it, or computes a large model slower
    than in float32."""
    dtype = DTYPES[name]
    is_large = parameters >= LARGE_MODEL_PARAMETERS
    if dtype == torch.bfloat16 and device.type == "cpu" and is_large and not cpu_has_bfloat16():
        raise ConfigError(
            "dtype: this CPU has no instructions for bfloat16 (avx512_bf16, amx_bf16), so that it would be slower than "
            "float32. Set dtype=float32."
        )
    if dtype == torch.bfloat16 and device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if major < 8:
            raise ConfigError(
                f"dtype: {torch.cuda.get_device_name(device)} (compute capability {major}.{minor}) has no "
                "bfloat16 arithmetic; it needs 8.0 (A100, RTX 30) or later. Set dtype=float32."
            )
    return dtype


def cpu_has_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the CPU multiplies bfloat16; True where its flags are unknown."""
    try:
        flags = {word for line in cpuinfo.read_text().splitlines() for word in line.split()}
    except OSError:
        return True
    return bool(flags & {"avx512_bf16", "amx_bf16", "bf16"})


def _gpu_count() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _require_gpu(name: str, key: str) -> None:
    count = _gpu_count()
    if not count:
        raise ConfigError(
            f"{key} is {name}, but PyTorch ({torch.__version__}) sees no GPU. Check that this is a CUDA build, that "
            f"nvidia-smi lists a GPU and that CUDA_VISIBLE_DEVICES does not hide it, or set {key}=cpu."
        )
    number = name.partition(":")[2]
    if number and int(number) >= count:
        known = ", ".join(f"cuda:{i}" for i in range(count))
        raise ConfigError(f"{key} is {name}, but this machine has only {known}.")


def available_memory(device: torch.device) -> int | None:
    """Free bytes of the device; None if unknown. On the CPU, the limit of a container counts too."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    limits = []
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        [line] = [line for line in lines if line.startswith("MemAvailable")]
        limits.append(int(line.split()[1]) * 1024)
    with suppress(OSError, ValueError):  # "max" is not a number
        limit, used = (int((CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        statistics = (CGROUP / "memory.stat").read_text().splitlines()
        reclaimable = dict(line.split() for line in statistics).get("inactive_file", 0)
        limits.append(limit - used + int(reclaimable))
    return min(limits) if limits else None


def keep_freed_memory() -> None:
    """Lets glibc reuse the memory of freed tensors in this process instead of returning it to the system.

    By default every tensor of more than 32 MB gets new pages, which the system clears one by one: an
    elementwise operation then takes four times as long. Without glibc nothing is changed."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)  # never


def return_freed_memory() -> None:
    """Returns to the system what `keep_freed_memory` keeps: after an evaluation, whose caches are larger than those of
    a step, and after a run in a process that goes on with another."""
    with suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def check_generator_memory(
    parameters: int, config: Config, weights: torch.dtype, device: torch.device
) -> None:
    """Raises if a process that only generates clearly cannot hold the model: weights and their packed or
    rounded copy. The KV cache, which grows with use, is not counted."""
    available = available_memory(device)
    required = (weights.itemsize + DTYPES[config.dtype].itemsize) * parameters
    if available is None or required <= available:
        return
    smaller = "" if config.dtype == "bfloat16" else "dtype=bfloat16, "
    raise ConfigError(
        f'The model "{config.model}" ({parameters / 1e6:,.0f} million parameters) needs about '
        f"{required / GB:.1f} GB on {device} to generate, but only {available / GB:.1f} GB are free. Set "
        f"{smaller}generate.device to a larger device, or choose a smaller model."
    )
