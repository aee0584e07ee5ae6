"""Read a run's config.yaml for display: a tree of plain values, and what is wrong with the file.

A list of runs reads many of them, so a file with its checksum is parsed by libyaml instead of the strict
parser of `glasshouse.config`, which takes 25 s per megabyte. A file that was changed since the run wrote
it is read as by every other command: strictly, and against the copy in the newest checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from glasshouse.checksums import read_regular_file
from glasshouse.config import to_yaml
from glasshouse.config.yaml_parser import MAX_CONFIG_BYTES, MAX_DEPTH
from glasshouse.errors import GlasshouseError
from glasshouse.store.run_directory import CONFIG, CONFIG_CHECK, has_config_checksum
from glasshouse.store.verify import load_verified_config

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_run_config(run: Path) -> tuple[dict[str, Any], str, str]:
    """Return the configuration, its text without the checksum, and a problem; `{}` if it cannot be read.

    Example: `read_run_config(Path("runs/try"))` gives `({"seed": 0, …}, "seed: 0\\n…", "")`
    """
    file = run / CONFIG
    try:
        if file.stat().st_size <= MAX_CONFIG_BYTES and has_config_checksum(file):
            text = read_regular_file(file).decode().rpartition(CONFIG_CHECK)[0]
            _refuse_aliases(text)
            tree = yaml.load(text, Loader=Loader)
            if isinstance(tree, dict):
                return tree, text, ""
    except (OSError, yaml.YAMLError, ValueError, RecursionError):
        pass  # the strict parser says what is wrong
    try:
        config, damage = load_verified_config(run)
    except GlasshouseError as error:
        return {}, "", f"cannot be used: {error}"
    return config.model_dump(mode="json"), to_yaml(config), damage[0].problem if damage else ""


def flatten_config(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys: `("learn.learning_rate", 0.0003)`; an empty section is yielded as `{}`."""
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from flatten_config(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def config_value(tree: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """Example: `config_value(config, "learn.algorithm", "")`"""
    value: Any = tree
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return default
        value = value[name]
    return value


def _refuse_aliases(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=Loader):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("an alias is not allowed")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
