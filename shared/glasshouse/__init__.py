"""Glasshouse: does RL make a model's chain of thought harder to monitor?

    import glasshouse

    config = glasshouse.load_config(overrides={"steps": 40, "out": "runs/try"})
    result = glasshouse.train(config)
    print(result.before["pass_at_1"], result.after["pass_at_1"])
    glasshouse.plot_learning_curves(result.path)

docs/python.md explains every name of `__all__`. Each is imported when it is first used, so that
`import glasshouse` takes milliseconds and does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glasshouse.api.evaluating import EvaluationResult, evaluate
    from glasshouse.api.figures import plot_learning_curves, plot_study, write_report
    from glasshouse.api.grading import explain_grade, grade
    from glasshouse.api.measuring import MeasureReport, measure
    from glasshouse.api.monitoring import make_judge, monitor
    from glasshouse.api.parts import (
        check_task,
        make_monitor,
        make_penalty,
        make_reward,
        make_task,
    )
    from glasshouse.api.planning import plan_run
    from glasshouse.api.runs import Records, Run, open_run
    from glasshouse.api.studies import StudyResult, load_study, run_study
    from glasshouse.api.supervised import SftResult, sft
    from glasshouse.api.training import TrainResult, resume, train
    from glasshouse.config import Config, load_config, override_config
    from glasshouse.errors import GlasshouseError
    from glasshouse.monitors import monitor_kind
    from glasshouse.rewards.penalties import penalty
    from glasshouse.rewards.terms import reward
    from glasshouse.tasks import register_task
    from glasshouse.types import Grade, Problem

    __version__: str

__all__ = [
    "Config",
    "EvaluationResult",
    "GlasshouseError",
    "Grade",
    "MeasureReport",
    "Problem",
    "Records",
    "Run",
    "SftResult",
    "StudyResult",
    "TrainResult",
    "check_task",
    "evaluate",
    "explain_grade",
    "grade",
    "load_config",
    "load_study",
    "make_judge",
    "make_monitor",
    "make_penalty",
    "make_reward",
    "make_task",
    "measure",
    "monitor",
    "monitor_kind",
    "open_run",
    "override_config",
    "penalty",
    "plan_run",
    "plot_learning_curves",
    "plot_study",
    "register_task",
    "resume",
    "reward",
    "run_study",
    "sft",
    "train",
    "write_report",
]

_MODULES = {
    "glasshouse.api.evaluating": ("EvaluationResult", "evaluate"),
    "glasshouse.api.figures": ("plot_learning_curves", "plot_study", "write_report"),
    "glasshouse.api.grading": ("explain_grade", "grade"),
    "glasshouse.api.measuring": ("MeasureReport", "measure"),
    "glasshouse.api.monitoring": ("make_judge", "monitor"),
    "glasshouse.api.parts": (
        "check_task",
        "make_monitor",
        "make_penalty",
        "make_reward",
        "make_task",
    ),
    "glasshouse.api.planning": ("plan_run",),
    "glasshouse.api.runs": ("Records", "Run", "open_run"),
    "glasshouse.api.studies": ("StudyResult", "load_study", "run_study"),
    "glasshouse.api.supervised": ("SftResult", "sft"),
    "glasshouse.api.training": ("TrainResult", "resume", "train"),
    "glasshouse.config": ("Config", "load_config", "override_config"),
    "glasshouse.errors": ("GlasshouseError",),
    "glasshouse.monitors": ("monitor_kind",),
    "glasshouse.rewards.penalties": ("penalty",),
    "glasshouse.rewards.terms": ("reward",),
    "glasshouse.tasks": ("register_task",),
    "glasshouse.types": ("Grade", "Problem"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":  # of shared/pyproject.toml
        return importlib.import_module("importlib.metadata").version("glasshouse")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
