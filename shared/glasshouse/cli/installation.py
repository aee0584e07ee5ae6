"""`glasshouse check` without a run: what is installed, and what each missing part would enable. Imports no torch."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from glasshouse.errors import find_requirements, install_command
from glasshouse.kernel.build import VARIANTS, find_built, find_compiler
from glasshouse.models.packaged import PACKAGED_MODELS
from glasshouse.terminal import format_bytes

EXTRAS = {
    "train": "training, and every command that runs a model",
    "kernel": "a C compiler for the kernel of small models, where the system has none",
    "lora": "low-rank adapters (learn.lora_rank)",
    "monitor": "fitting n-gram monitors and probes",
    "judge": "the LLM judge",
    "view": "the live page (glasshouse view)",
    "report": "figures of studies and of the demo",
    "parquet": "problem files and rollouts of other trainers as Parquet",
    "math": "answers that are mathematical expressions",
    "gym": "a hundred more procedural tasks",
    "monarch": "generators and learners in several processes, several hosts",
    "notebook": "progress bars in notebooks, tables of a run as data frames",
    "smollm2": "the packaged model SmolLM2-135M",
    "gemma3": "the packaged model Gemma 3 270M",
    "tensorboard": "tracker",
    "trackio": "tracker",
    "wandb": "tracker",
    "mlflow": "tracker",
}
"""What each extra enables."""


def describe_installation() -> Iterator[str]:
    """One line per part: Python, torch, device, kernel, disk, extras."""
    where = platform.platform(terse=True), platform.machine()
    yield f"glasshouse    {metadata.version('glasshouse')} in {Path(__file__).parent.parent}"
    yield f"Python        {platform.python_version()}, {', '.join(where)}, {sys.executable}"
    versions = [
        f"{name} {find_version(name) or 'not installed'}" for name in ("torch", "transformers")
    ]
    yield f"models        {', '.join(versions)}"
    yield f"device        {describe_device()}"
    yield f"small models  {describe_kernel()}"
    yield f"disk          {format_bytes(shutil.disk_usage(Path.cwd()).free)} free here"
    missing = [name for name in EXTRAS if not is_installed(name)]
    yield f"extras        {', '.join(name for name in EXTRAS if name not in missing) or 'none'}"
    if missing:
        yield "not installed, with the command that adds it:"
    for name in missing:
        yield f"  {name:<11} {EXTRAS[name]}\n  {'':<11} {installation(name)}"


def find_version(package: str) -> str:
    """The installed version of a package; empty if there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def is_installed(extra: str) -> bool:
    """Are all packages of an extra here, and the weights if it is a packaged model?"""
    packages = [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in find_requirements(extra)]
    packages += [m.package.partition("==")[0] for m in PACKAGED_MODELS.values() if m.extra == extra]
    return all(map(find_version, packages))


def installation(extra: str) -> str:
    """The command that adds an extra."""
    models = [model for model in PACKAGED_MODELS.values() if model.extra == extra]
    return models[0].installation if models else install_command(extra)


def describe_device() -> str:
    """The CPU, and whether torch could use a GPU: by the file that names its build, and by the driver."""
    cores = f"CPU, {os.cpu_count()} cores"
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return cores
    version = Path(spec.origin).with_name("version.py").read_text()
    cuda = re.search(r"^cuda\b.*= '(.+)'$", version, re.MULTILINE)
    if not cuda:
        return f"{cores}; this build of torch uses no GPU"
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10)
        gpus = listed.stdout.strip().splitlines() if listed.returncode == 0 else []
    except (OSError, subprocess.SubprocessError):
        gpus = []
    return f"{cores}; CUDA {cuda[1]}, {', '.join(gpus) or 'no GPU found'}"


def describe_kernel() -> str:
    """Whether the kernel is compiled, will be at the first training, or cannot be."""
    try:
        compiler = find_compiler()
        built = [variant for variant in VARIANTS if find_built(variant)]
    except OSError as error:
        return f"torch: {error}"
    if built:
        return f"kernel ({built[0]}), compiled"
    return f"kernel, compiled at the first training by {compiler[0]}"
