"""Compiles `small_llama.c` for this CPU and loads it: once per compiler and kind of CPU, into the user's cache.

The name of a compiled file holds the hash of its source, compiler and flags, and that of its content, which is checked
before it is loaded. Without a compiler or a writable cache there is no kernel, and models take the general path.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from glasshouse.errors import install_command

SOURCE = Path(__file__).with_name("small_llama.c")
SWITCH = "GLASSHOUSE_KERNEL"
"""Environment variable: the name of a variant, or `off`."""
FLAGS = ["-std=gnu11", "-O3", "-fPIC", "-shared", "-ffp-contract=off", "-fno-math-errno"]
VARIANTS = {
    "avx512": ["-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mfma"],
    "avx2": ["-mavx2", "-mfma"],
    "baseline": [],
}
"""Flags by the width of the registers. All variants compute the same bits."""
FUNCTIONS = (
    "adamw", "backward", "generate", "logprobs", "pack_weights", "panel_count", "parameter_count", "rotary_tables",
    "sum_squares", "tape_size",
)  # fmt: skip
"""What `small_llama` calls."""
TIMEOUT = 300


class Kernel(NamedTuple):
    """The loaded library, or why there is none."""

    library: ctypes.CDLL | None
    description: str
    """`kernel (avx2)`, or `torch (no C compiler: …)`."""


@cache
def load_kernel() -> Kernel:
    """The kernel of this process, compiled first if it is not in the cache."""
    variant = os.environ.get(SWITCH) or find_variant()
    if variant not in VARIANTS:
        return Kernel(None, f"torch ({SWITCH}={variant})")
    try:
        return Kernel(ctypes.CDLL(str(build_kernel(variant))), f"kernel ({variant})")
    except (OSError, subprocess.SubprocessError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        return Kernel(None, f"torch (the kernel for small models could not be built: {reason})")


def find_variant() -> str:
    """The widest registers of this CPU that torch uses."""
    import torch

    return {"AVX512": "avx512", "AVX2": "avx2"}.get(
        torch.backends.cpu.get_cpu_capability(), "baseline"
    )


def build_kernel(variant: str, folder: Path | None = None) -> Path:
    """The compiled file of this variant in the cache; raises OSError or SubprocessError if it cannot be made."""
    folder = folder or cache_folder()
    if found := find_built(variant, folder):
        return found
    command, key = compile_command(variant)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        built = Path(work) / "kernel.so"
        subprocess.run(
            [*command, str(SOURCE), "-o", str(built)],
            check=True,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            cwd=work,
        )
        target = folder / name_file(key, built)
        os.replace(built, target)
    return target


def compile_command(variant: str) -> tuple[list[str], str]:
    """The compiler with its flags, and the hash of this command and the source."""
    command = [*find_compiler(), *FLAGS, *VARIANTS[variant]]
    key = hashlib.sha256(repr(command).encode() + SOURCE.read_bytes()).hexdigest()
    return command, key[:16]


def find_built(variant: str, folder: Path | None = None) -> Path | None:
    """The intact compiled file of this variant in the cache; any other file of its name is removed."""
    _, key = compile_command(variant)
    for file in (folder or cache_folder()).glob(f"{key}-*.so"):
        with suppress(OSError):  # it cannot be loaded, or is gone
            is_own = file.stat().st_uid in (os.getuid(), 0)
            if is_own and file.name == name_file(key, file):
                library = ctypes.CDLL(str(file))
                if all(hasattr(library, name) for name in FUNCTIONS):
                    return file
        print(f"{file} is damaged or not yours; compiling the kernel again.", file=sys.stderr)
        with suppress(OSError):
            file.unlink()
    return None


def name_file(key: str, file: Path) -> str:
    """The name of a compiled file with this content."""
    return f"{key}-{hashlib.sha256(file.read_bytes()).hexdigest()[:32]}.so"


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "glasshouse"


def find_compiler() -> list[str]:
    """The system's C compiler, or that of the package `ziglang` (extra `kernel`)."""
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [os.path.realpath(found)]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    raise OSError(f"no C compiler; install one, or run: {install_command('kernel')}")


if __name__ == "__main__":
    print(load_kernel().description)
