"""Read a run's config.yaml for display: a tree of plain values, and what is wrong with the file.

A list of runs reads many of them, so a file with its checksum is not validated. A file that was changed since
the run wrote it is read as by every other command: validated, and compared with the newest checkpoint's copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glasshouse.checksums import read_regular_file
from glasshouse.config.rendering import to_yaml
from glasshouse.config.yaml_files import read_yaml_file
from glasshouse.errors import GlasshouseError
from glasshouse.runs.run_directory import CONFIG, CONFIG_CHECK, has_config_checksum
from glasshouse.runs.verify import load_verified_config


def read_run_config(run: Path) -> tuple[dict[str, Any], str, str]:
    """Return the configuration, its text without the checksum, and a problem; `{}` if it cannot be read.

    Example: `read_run_config(Path("runs/try"))` gives `({"seed": 0, …}, "seed: 0\\n…", "")`
    """
    file = run / CONFIG
    try:
        if has_config_checksum(file):
            text = read_regular_file(file).decode().rpartition(CONFIG_CHECK)[0]
            return read_yaml_file(file), text, ""
    except (OSError, ValueError):
        pass  # validation says what is wrong
    try:
        config, damage = load_verified_config(run)
    except GlasshouseError as error:
        return {}, "", f"cannot be used: {error}"
    return config.model_dump(mode="json"), to_yaml(config), damage[0].problem if damage else ""


def config_value(tree: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """Example: `config_value(config, "learn.algorithm", "")`"""
    value: Any = tree
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return default
        value = value[name]
    return value
