"""Read a run's config.yaml for display: a tree of plain values, and what is wrong with the file.

A list of runs reads many of them, so this uses libyaml's parser instead of the strict one of
`glasshouse.config`, which takes 25 s per megabyte; sizes and aliases are limited in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from glasshouse.checksums import read_regular_file
from glasshouse.config.yaml_parser import MAX_CONFIG_BYTES, MAX_DEPTH
from glasshouse.store.run_directory import CONFIG, CONFIG_CHECK, has_config_checksum

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_run_config(run: Path) -> tuple[dict[str, Any], str]:
    """Return the configuration and a problem; `{}` if it cannot be read.

    Example: `read_run_config(Path("runs/try"))` gives `({"seed": 0, …}, "")`
    """
    file = run / CONFIG
    try:
        data = read_regular_file(file)
        if len(data) > MAX_CONFIG_BYTES:
            return {}, f"is larger than {MAX_CONFIG_BYTES:,} bytes"
        text = data.decode()
        _refuse_aliases(text)
        tree = yaml.load(text, Loader=Loader)
        if not isinstance(tree, dict):
            return {}, "does not hold keys and values"
        problem = "" if has_config_checksum(file) else "does not match its checksum"
        return tree, problem
    except FileNotFoundError:
        return {}, "is missing"
    except OSError as error:
        return {}, f"cannot be read: {error}"
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return {}, f"is not valid: {str(error).splitlines()[0][:200]}"


def read_config_text(run: Path) -> str:
    """The text of config.yaml without its checksum; empty if it cannot be read."""
    try:
        text = read_regular_file(run / CONFIG)[:MAX_CONFIG_BYTES].decode("utf-8", "replace")
    except OSError:
        return ""
    return text.rpartition(CONFIG_CHECK)[0] or text


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
