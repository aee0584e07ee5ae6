"""What a run is made from: the files that its configuration names, and the path that computes.

Every checkpoint stores the SHA-256 of each source. `resume`, `eval` and `monitor` compare them: a run that
continued on other data, another chat template or other code would mix two experiments in one curve.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from transformers.utils import cached_file

from glasshouse.config.loading import flatten
from glasshouse.config.schema import Config
from glasshouse.files import compute_checksum
from glasshouse.models.devices import is_large
from glasshouse.models.llama import is_llama_family
from glasshouse.models.policy import load_empty_model, locate_model

Sources = dict[str, dict[str, str]]
"""By the config key that names them: the name of each file, and its SHA-256."""

EVALUATION_KEYS = ("evaluate.file", "imports", "generate.engine")
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
    return "large Llama" if is_large(model) else "small Llama"
