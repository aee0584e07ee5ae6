"""config.yaml of a run: written with its checksum, compared with the copy in every checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glasshouse.config.loading import diff_configs, load_config, to_yaml
from glasshouse.config.schema import Config
from glasshouse.config.yaml_files import read_yaml_file
from glasshouse.errors import ConfigError, GlasshouseError, RunError
from glasshouse.files import read_regular_file
from glasshouse.runs.checkpoints import STATE, newest_checkpoint, read_state
from glasshouse.terminal import shell_command

CONFIG = "config.yaml"
CONFIG_CHECK = "# sha256 "
"""Begins the last line of config.yaml: the checksum of the lines before."""


@dataclass(frozen=True, slots=True)
class RunDamage:
    """One damaged part of a run directory."""

    file: str
    """Path in the run directory."""
    problem: str
    """What is wrong, as the end of a sentence that begins with the file."""
    remedy: str
    """What is lost, what still works, and what to do."""

    def __str__(self) -> str:
        return f"{self.file} {self.problem}. {self.remedy}"


def is_run_directory(path: Path) -> bool:
    return (path / CONFIG).is_file()


def config_text(config: Config) -> str:
    """The content of config.yaml: the configuration and, in the last line, its checksum."""
    text = to_yaml(config)
    return f"{text}{CONFIG_CHECK}{hashlib.sha256(text.encode()).hexdigest()}\n"


def has_config_checksum(file: Path) -> bool:
    """Is config.yaml, byte for byte, what a run wrote?"""
    text, mark, digest = read_regular_file(file).rpartition(CONFIG_CHECK.encode())
    return bool(mark) and digest == f"{hashlib.sha256(text).hexdigest()}\n".encode()


def load_run_config(run: Path) -> Config:
    """Load the configuration that a run was started with; raise if it was changed since."""
    config, damage = load_verified_config(run)
    if damage:
        raise RunError(f"{run / CONFIG} {damage[0].problem}. {damage[0].remedy}")
    return config


def config_diff(run: Path, config: Config) -> list[str]:
    """List the keys, except `out` and `trackers`, in which a run's configuration differs from
    `config`."""
    run_config = load_run_config(run)
    if not config.task.options:  # the run's options were filled in from its model
        task = config.task.model_copy(update={"options": run_config.task.options})
        config = config.model_copy(update={"task": task})
    return [key for key in diff_configs(run_config, config) if key not in ("out", "trackers")]


def load_verified_config(run: Path) -> tuple[Config, list[RunDamage]]:
    """Load a run's configuration. If config.yaml was changed since the run wrote it, return the copy
    in the newest valid checkpoint and the damage; without such a copy, raise if it cannot be used."""
    file, config = run / CONFIG, None
    try:
        config = load_config([file])
        if has_config_checksum(file):
            return config, []
        problem = "does not match its checksum, and there is no valid checkpoint to compare it with"
    except (FileNotFoundError, NotADirectoryError):
        problem = "is missing"
    except (OSError, ConfigError, RecursionError) as error:
        problem = f"cannot be used: {str(error).rstrip('.')}"
    newest, _ = newest_checkpoint(run / "checkpoints")
    copy = None
    if newest is not None:
        with suppress(KeyError, ValueError):  # of another version
            copy = Config.model_validate(read_state(newest.path)["config"])
    if newest is None or copy is None:
        if config is None:
            raise RunError(f"{run} is not a run directory: its {CONFIG} {problem}.")
        remedy = (
            "It may have been changed, so the run is not resumed. Restore it from a copy, or start a "
            "new run with another out=…."
        )
        return config, [RunDamage(CONFIG, problem, remedy)]
    state_file = f"checkpoints/{newest.name}/{STATE}"
    if config is not None:
        changed = {key: pair for key, pair in diff_configs(copy, config).items() if key != "out"}
        if not changed:
            return config, []
        listed = [f"{key} ({old!r} → {new!r})" for key, (old, new) in changed.items()]
        listed[5:] = [f"and {len(listed) - 5} more"] if len(listed) > 5 else []
        problem = (
            f"differs from the configuration of the run, kept in {state_file}: {', '.join(listed)}"
        )
    remedy = (
        f'Write the old values back, or replace the file with the value of "config" in {state_file} '
        f"(JSON is valid YAML). To change a key, pass it: {shell_command(['glasshouse', 'resume', run])} "
        "KEY=VALUE. Commands that only read the run use the checkpoint's copy."
    )
    return copy, [RunDamage(CONFIG, problem, remedy)]


# --- as a tree of plain values -----------------------------------------------------------------


def read_run_config(run: Path) -> tuple[dict[str, Any], str, str]:
    """Return the configuration, its text without the checksum, and a problem; `{}` if it cannot be read.
    A list of runs reads many of them, so a file with its checksum is not validated.

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
