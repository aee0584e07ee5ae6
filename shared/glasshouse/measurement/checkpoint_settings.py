"""The configuration of `glasshouse eval`: a checkpoint is evaluated like the run that saved it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glasshouse.config.loading import Overrides, merge_layers, resolve_layers
from glasshouse.config.schema import Config
from glasshouse.errors import RunDataError
from glasshouse.runs.checkpoints import STATE

RUN_KEYS = ("seed", "threads", "imports", "task", "generate", "reward", "evaluate")
"""Keys of a run's configuration that an evaluation depends on."""


def resolve_evaluation_config(
    model: str, overrides: Overrides = (), *, task: str = "", style: str = ""
) -> Config:
    """Return the configuration to evaluate a model with: the defaults; if the model is a checkpoint,
    the task, its options and the other settings of its run; then the arguments. Another task than the
    run's starts without the run's task options.

    Example: `resolve_evaluation_config("runs/try/checkpoints/step-000060", ["evaluate.problems=500"])`
    """
    arguments: dict[str, Any] = {"model": model, "steps": 0, "task": {}}
    if task:
        arguments["task"]["name"] = task
    if style:
        arguments["task"]["style"] = style
    run = read_checkpoint_config(Path(model))
    settings = {key: run[key] for key in RUN_KEYS if key in run}
    requested = merge_layers([arguments, overrides]).get("task") or {}
    if (
        "task" in settings
        and requested.get("name", settings["task"]["name"]) != settings["task"]["name"]
    ):
        settings["task"] = {"style": settings["task"]["style"]}
    if "evaluate" in settings and not settings["evaluate"].get("problems"):
        settings["evaluate"] = {k: v for k, v in settings["evaluate"].items() if k != "problems"}
    command_line = "the command line"
    return resolve_layers(
        [(str(Path(model) / STATE), settings), (command_line, arguments), (command_line, overrides)]
    )


def read_checkpoint_config(checkpoint: Path) -> Mapping[str, Any]:
    """Return the configuration of the run that saved a checkpoint; empty for any other model."""
    file = checkpoint / STATE
    if not file.is_file():
        return {}
    try:
        config = json.loads(file.read_text())["config"]
        if not isinstance(config["task"]["name"], str) or not isinstance(config["evaluate"], dict):
            raise TypeError
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise RunDataError(
            f"{file} cannot be read, so the task of this checkpoint is unknown. Restore the file."
        ) from None
    settings: dict[str, Any] = config
    return settings
