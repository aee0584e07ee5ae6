"""Evaluate a model on held-out problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["EvaluationResult", "evaluate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """A model's accuracy on held-out problems.

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
    """Set if there are fewer held-out problems than `evaluate.problems`."""


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
    from glasshouse.measurement.checkpoint_settings import resolve_evaluation_config
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
