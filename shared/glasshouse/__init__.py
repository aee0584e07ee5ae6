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
    from glasshouse.cli.figures import plot_learning_curves, plot_study, write_report
    from glasshouse.cli.measure_report import write_measure_report
    from glasshouse.cli.parts import make_monitor, make_penalty, make_reward
    from glasshouse.cli.train import run_experiment
    from glasshouse.config.loading import load_config, override_config
    from glasshouse.config.schema import Config
    from glasshouse.errors import GlasshouseError
    from glasshouse.measurement.api import measure
    from glasshouse.measurement.evaluate_checkpoint import EvaluationResult, evaluate
    from glasshouse.measurement.file import MeasureReport
    from glasshouse.measurement.monitoring import make_judge, monitor_run
    from glasshouse.monitors.base import monitor
    from glasshouse.rollout.explain import explain_grade, grade
    from glasshouse.rollout.penalties import penalty
    from glasshouse.rollout.self_check import check_task
    from glasshouse.rollout.terms import reward
    from glasshouse.runs.run import Records, Run, open_run
    from glasshouse.study.api import StudyResult, load_study, run_study
    from glasshouse.tasks.catalogue import make_task
    from glasshouse.training.layout import plan_run
    from glasshouse.training.sft_api import SftResult, sft
    from glasshouse.training.train import TrainResult, resume, train
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
    "algorithm",
    "check_task",
    "engine",
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
    "monitor_run",
    "open_run",
    "override_config",
    "penalty",
    "plan_run",
    "plot_learning_curves",
    "plot_study",
    "resume",
    "reward",
    "run_experiment",
    "run_study",
    "sft",
    "task",
    "tracker",
    "train",
    "write_measure_report",
    "write_report",
]

_MODULES = {
    "glasshouse.measurement.evaluate_checkpoint": ("EvaluationResult", "evaluate"),
    "glasshouse.cli.figures": ("plot_learning_curves", "plot_study", "write_report"),
    "glasshouse.cli.measure_report": ("write_measure_report",),
    "glasshouse.rollout.explain": ("explain_grade", "grade"),
    "glasshouse.measurement.api": ("MeasureReport", "measure"),
    "glasshouse.measurement.monitoring": ("make_judge", "monitor_run"),
    "glasshouse.cli.train": ("run_experiment",),
    "glasshouse.cli.parts": (
        "check_task",
        "make_monitor",
        "make_penalty",
        "make_reward",
        "make_task",
    ),
    "glasshouse.training.layout": ("plan_run",),
    "glasshouse.runs.run": ("Records", "Run", "open_run"),
    "glasshouse.study.api": ("StudyResult", "load_study", "run_study"),
    "glasshouse.training.sft_api": ("SftResult", "sft"),
    "glasshouse.training.train": ("TrainResult", "resume", "train"),
    "glasshouse.config.schema": ("Config",),
    "glasshouse.config.loading": ("load_config", "override_config"),
    "glasshouse.errors": ("GlasshouseError",),
    "glasshouse.monitors.base": ("monitor",),
    "glasshouse.generate.engines": ("engine",),
    "glasshouse.learn.losses": ("algorithm",),
    "glasshouse.track.base": ("tracker",),
    "glasshouse.rollout.penalties": ("penalty",),
    "glasshouse.rollout.terms": ("reward",),
    "glasshouse.tasks.base": ("task",),
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
