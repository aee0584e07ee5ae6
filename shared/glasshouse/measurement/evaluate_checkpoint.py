"""Evaluate a model on validation problems: a checkpoint like the run that saved it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glasshouse.config.loading import Overrides, merge_layers, resolve_layers
from glasshouse.config.schema import Config
from glasshouse.errors import RunDataError
from glasshouse.runs.checkpoints import STATE

RUN_KEYS = ("seed", "threads", "imports", "task", "generate", "reward", "evaluate")
"""Keys of a run's configuration that an evaluation depends on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """A model's accuracy on validation problems.

    Example: `evaluate("pocket", "sum_digits").accuracy`
    """

    task: str
    style: str
    options: Mapping[str, Any]
    """The task options that were used."""
    problems: int
    accuracy: float
    """Greedy answers, graded with `reward.answer_parser`."""
    accuracy_low: float
    accuracy_high: float
    """Wilson's 95 % interval."""
    values: dict[str, Any]
    """Everything that was measured, as `glasshouse eval --json` prints it."""
    warning: str = ""
    """Set if there are fewer validation problems than `evaluate.problems`."""


def evaluate(
    model: str | Path,
    task: str = "",
    *,
    style: str = "",
    overrides: Mapping[str, Any] | Sequence[str] = (),
) -> EvaluationResult:
    """Evaluate a checkpoint, a model folder, a hub name or an embedded model. A checkpoint is
    evaluated like its run, unless an argument says otherwise. Nothing is written.

    Example: `evaluate("runs/try/checkpoints/step-000060", overrides={"evaluate.problems": 500})`
    """
    from glasshouse.measurement.evaluate import evaluate_model
    from glasshouse.measurement.evaluation_setup import describe_shortage

    config = resolve_evaluation_config(str(model), overrides, task=task, style=style)
    values = evaluate_model(config)
    used = values["task"]
    return EvaluationResult(
        task=used["name"],
        style=used["style"],
        options=used["options"],
        problems=values["problems"],
        accuracy=values["accuracy"],
        accuracy_low=values["accuracy_low"],
        accuracy_high=values["accuracy_high"],
        values=values,
        warning=describe_shortage(config, values["problems"]),
    )


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
