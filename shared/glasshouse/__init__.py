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

if TYPE_CHECKING:  # `as` makes a name public for type checkers
    from glasshouse.before_training.audit import RewardAudit as RewardAudit
    from glasshouse.before_training.audit import audit_reward as audit_reward
    from glasshouse.before_training.predict import Prediction as Prediction
    from glasshouse.before_training.predict import predict as predict
    from glasshouse.cli.train import run_experiment as run_experiment
    from glasshouse.config.loading import load_config as load_config
    from glasshouse.config.loading import override_config as override_config
    from glasshouse.config.schema import Config as Config
    from glasshouse.errors import GlasshouseError as GlasshouseError
    from glasshouse.generate.engines import engine as engine
    from glasshouse.learn.losses import algorithm as algorithm
    from glasshouse.measurement.evaluate import EvaluationResult as EvaluationResult
    from glasshouse.measurement.evaluate import evaluate as evaluate
    from glasshouse.measurement.file import MeasureReport as MeasureReport
    from glasshouse.measurement.file import RolloutFile as RolloutFile
    from glasshouse.measurement.file import measure as measure
    from glasshouse.measurement.interventions.base import intervention as intervention
    from glasshouse.measurement.monitor_run import monitor_run as monitor_run
    from glasshouse.monitors.base import monitor as monitor
    from glasshouse.monitors.factory import make_monitor as make_monitor
    from glasshouse.monitors.factory import parse_monitor as parse_monitor
    from glasshouse.rollout.grading import explain_grade as explain_grade
    from glasshouse.rollout.grading import grade as grade
    from glasshouse.rollout.grading import reward as reward
    from glasshouse.rollout.penalties import make_penalty as make_penalty
    from glasshouse.rollout.penalties import penalty as penalty
    from glasshouse.rollout.self_check import check_task as check_task
    from glasshouse.runs.curves import plot_learning_curves as plot_learning_curves
    from glasshouse.runs.run import Records as Records
    from glasshouse.runs.run import Run as Run
    from glasshouse.runs.run import open_run as open_run
    from glasshouse.study.figures import plot_study as plot_study
    from glasshouse.study.runner import StudyResult as StudyResult
    from glasshouse.study.runner import run_study as run_study
    from glasshouse.study.spec import load_study as load_study
    from glasshouse.tasks.base import make_task as make_task
    from glasshouse.tasks.base import task as task
    from glasshouse.track.trackers import tracker as tracker
    from glasshouse.training.layout import plan_run as plan_run
    from glasshouse.training.sft import SftResult as SftResult
    from glasshouse.training.sft import sft as sft
    from glasshouse.training.train import TrainResult as TrainResult
    from glasshouse.training.train import resume as resume
    from glasshouse.training.train import train as train
    from glasshouse.types import Grade as Grade
    from glasshouse.types import Problem as Problem
    from glasshouse.view.report import write_report as write_report

    __version__: str

_MODULES = {
    "glasshouse.before_training.audit": ("RewardAudit", "audit_reward"),
    "glasshouse.before_training.predict": ("Prediction", "predict"),
    "glasshouse.measurement.evaluate": ("EvaluationResult", "evaluate"),
    "glasshouse.runs.curves": ("plot_learning_curves",),
    "glasshouse.study.figures": ("plot_study",),
    "glasshouse.view.report": ("write_report",),
    "glasshouse.measurement.file": ("MeasureReport", "RolloutFile", "measure"),
    "glasshouse.measurement.monitor_run": ("monitor_run",),
    "glasshouse.cli.train": ("run_experiment",),
    "glasshouse.rollout.self_check": ("check_task",),
    "glasshouse.monitors.factory": ("make_monitor", "parse_monitor"),
    "glasshouse.tasks.base": ("make_task", "task"),
    "glasshouse.training.layout": ("plan_run",),
    "glasshouse.runs.run": ("Records", "Run", "open_run"),
    "glasshouse.study.runner": ("StudyResult", "run_study"),
    "glasshouse.study.spec": ("load_study",),
    "glasshouse.training.sft": ("SftResult", "sft"),
    "glasshouse.training.train": ("TrainResult", "resume", "train"),
    "glasshouse.config.schema": ("Config",),
    "glasshouse.config.loading": ("load_config", "override_config"),
    "glasshouse.errors": ("GlasshouseError",),
    "glasshouse.monitors.base": ("monitor",),
    "glasshouse.generate.engines": ("engine",),
    "glasshouse.learn.losses": ("algorithm",),
    "glasshouse.measurement.interventions.base": ("intervention",),
    "glasshouse.track.trackers": ("tracker",),
    "glasshouse.rollout.penalties": ("make_penalty", "penalty"),
    "glasshouse.rollout.grading": ("explain_grade", "grade", "reward"),
    "glasshouse.types": ("Grade", "Problem"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name == "__version__":  # of shared/pyproject.toml
        return importlib.import_module("importlib.metadata").version("glasshouse")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
