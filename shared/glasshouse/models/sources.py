"""What a run is made from: the files that its configuration names, the path that computes, and the software.

Every checkpoint stores the SHA-256 of each source. `resume`, `eval` and `monitor` compare them: a run that
continued on other data, another chat template or other code would mix two experiments in one curve.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.utils import cached_file

from glasshouse import __version__
from glasshouse.config.loading import flatten
from glasshouse.config.schema import Config
from glasshouse.files import compute_checksum
from glasshouse.models.devices import DTYPES
from glasshouse.models.folders import locate_model
from glasshouse.models.llama import describe_path, is_llama_family
from glasshouse.models.policy import Policy, load_empty_model
from glasshouse.tasks.dataset import find_files

Sources = dict[str, dict[str, str]]
"""By the config key that names them: the name of each file, and its SHA-256."""

EVALUATION_KEYS = ("evaluate.file", "task.options", "imports", "generate.engine")
MODEL_FILES = (
    *("config.json", "generation_config.json", "model*.safetensors", "chat_template*"),
    *("*token*", "vocab.*", "merges.txt", "*.model"),
)
"""The files of a model folder that change what it computes; not its card or a README."""


def hash_sources(
    config: Config, keys: Collection[str] = ("model", "data.file", *EVALUATION_KEYS)
) -> Sources:
    """Hash what the keys of a configuration name. The modules of `imports` must have been imported.

    Example: `hash_sources(config)["data.file"]` gives `{"problems.jsonl": "9f86d081884c7d65…"}`
    """
    sources: Sources = {key: {} for key in keys}
    sources["generate.engine"] = {
        "compute path": f"{config.generate.engine}, {_model_path(config)}"
    }
    for key, name, file in _list_files(config, keys):
        while name in sources[key]:  # two scripts of one name
            name += " (another)"
        sources[key][name] = compute_checksum(file)["sha256"] if file.is_file() else "missing"
    return sources


def find_changes(
    state: Mapping[str, Any], sources: Sources, named: Collection[str] = ()
) -> list[str]:
    """Describe each source that differs from the one in a checkpoint's state, except those of the keys
    that the user named in the command."""
    stored: Sources = state.get("sources", sources)  # a run of an older version has none
    changes = []
    for key in sources.keys() - set(named):
        before, now = stored.get(key, {}), sources[key]
        for name in before.keys() | now.keys():
            old, new = (_shorten(known.get(name, "none")) for known in (before, now))
            if before.get(name) != now.get(name):
                changes.append(f"{name} ({key}): {old} → {new}")
    return sorted(changes)


def _shorten(digest: str) -> str:
    return f"SHA-256 {digest[:12]}…" if len(digest) == 64 else digest


def _list_files(config: Config, keys: Collection[str]) -> Iterator[tuple[str, str, Path]]:
    """Every file that these keys lead to: the key, the file's name, its path."""
    if "model" in keys:
        folder = locate_model(config.model)
        if folder is None:  # a hub's model has been loaded from its cache
            config_file = cached_file(config.model, "config.json", local_files_only=True)
            folder = Path(config_file).parent
        for file in sorted({file for pattern in MODEL_FILES for file in folder.glob(pattern)}):
            yield "model", file.name, file
    for key, name in (("data.file", config.data.file), ("evaluate.file", config.evaluate.file)):
        if name and key in keys:
            file = Path(name.format(task=config.task.name))
            yield key, str(file), file
    options = config.task.options
    if options.get("inner_task") == "dataset":
        options = options.get("inner_options", {})
    if (
        "dataset" in (config.task.name, config.task.options.get("inner_task"))
        and "task.options" in keys
    ):
        for option in ("file", "validation"):
            if source := options.get(option):
                yield from (("task.options", str(file), file) for file in find_files(source))
    # installed packages: the parts that the configuration names, in any key or value
    used = {str(part) for key, value in flatten(config) for part in (*key.split("."), value)}
    offered = [
        point.module
        for package in metadata.distributions()
        for point in package.entry_points
        if point.group.startswith("glasshouse.") and point.name in used
    ]
    for module in dict.fromkeys([*config.imports, *offered]):
        for name, file in _module_files(module):
            yield "imports", name, file


def _module_files(module: str) -> Iterator[tuple[str, Path]]:
    """The file of a module or of a script, by its last name since it may have moved; all files of a package."""
    spec = None if module.endswith(".py") else importlib.util.find_spec(module)
    file = Path(spec.origin or "") if spec else Path(module).expanduser()
    if file.name != "__init__.py":
        yield file.name, file
        return
    for part in file.parent.rglob("*.py"):
        yield str(part.relative_to(file.parent.parent)), part


def _model_path(config: Config) -> str:
    """Which of the implementations computes the model; adapters choose among them by other keys."""
    model = load_empty_model(config.model)
    if not is_llama_family(model.config):
        return "transformers"
    on_cpu = config.device in ("auto", "cpu") and not config.learn.lora_rank
    path = describe_path(model, DTYPES[config.dtype]) if on_cpu else "torch"
    return "kernel for small models" if path.startswith("kernel") else "Llama in torch"


def software_versions() -> dict[str, str]:
    """Return the versions of everything that can change the last bits of a result."""
    return {
        "glasshouse": __version__,
        "torch": str(torch.__version__),  # its own class would import torch where it is unpickled
        "transformers": transformers.__version__,
        "python": sys.version.split()[0],
        "machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}{_cpu_model()}",
        **({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}),
    }


def source_commit() -> str:
    """Return the commit of the code that runs: that of its image (GLASSHOUSE_REVISION) or of its git
    work tree, with `-dirty` if a file is changed; empty if neither is known."""
    if revision := os.environ.get("GLASSHOUSE_REVISION"):
        return revision
    package = Path(__file__).parent.parent
    # a package that is installed inside some other repository is not tracked by it
    if not _run_git(package, "ls-files", "--error-unmatch", "__init__.py"):
        return ""
    return _run_git(package, "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty")


def _run_git(folder: Path, *arguments: str) -> str:
    try:
        process = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return process.stdout.strip() if process.returncode == 0 else ""


def _cpu_model() -> str:
    """Vendor, family and model number: math libraries choose their kernels, which round differently, by model."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    fields = dict(line.replace("\t", "").split(":", 1) for line in lines if ":" in line)
    names = ("vendor_id", "cpu family", "model")
    return "".join(f" {fields[name].strip()}" for name in names if name in fields)


def fingerprint_weights(policy: Policy) -> str:
    """Return a digest of all weights."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(policy.weights().items()):
        digest.update(name.encode())
        digest.update(tensor.cpu().flatten().view(torch.uint8).numpy().data)  # numpy lacks bfloat16
    return digest.hexdigest()
