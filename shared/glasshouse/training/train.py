"""Train and resume runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from glasshouse.config.loading import load_config, override_config
from glasshouse.config.schema import Config
from glasshouse.errors import ConfigError, RunError
from glasshouse.runs.run_directory import is_run_directory, load_run_config, load_summary
from glasshouse.terminal import shell_command

if TYPE_CHECKING:
    from glasshouse.runs.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """What a training run leaves.

    Example: `train(config).after["pass_at_1"]`, the accuracy of sampled answers
    """

    path: Path
    """The run directory."""
    outcome: Literal["finished", "interrupted", "stopped"]
    """`interrupted`: every complete step is saved; `stopped`: killed before that, the last checkpoint
    is there. `resume(path)` continues both."""
    steps: int
    """Steps that are done and saved."""
    before: Mapping[str, Any] | None
    """The evaluation before the first step, as in summary.json."""
    after: Mapping[str, Any] | None
    """The evaluation after the last step; None unless the run is finished."""
    checkpoint: Path | None
    seconds: float | None
    """Time of this call, without loading the model; None if it was stopped."""

    def open(self) -> Run:
        """The run's metrics, events and rollouts."""
        from glasshouse.runs.run import open_run

        return open_run(self.path)


def train(
    config: Config | str | Path | None = None, *, progress: bool = True, verbose: bool = False
) -> TrainResult:
    """Evaluate, train, evaluate again. If `config.out` holds an interrupted run of the same
    configuration, it is resumed.

    `config` is a configuration, a YAML file, or None for the defaults: the embedded model learns
    digit sums in about a minute. `progress` shows a progress bar, also in a notebook; `verbose`
    prints one completion of every step.

    Example: `train(load_config(overrides={"steps": 20, "out": "runs/try"}))`
    """
    if isinstance(config, Mapping):
        raise ConfigError("train takes a Config: write train(load_config(overrides={…})).")
    if not isinstance(config, Config):
        config = load_config([config] if config else [])
    # a finished run stays finished: only `resume` with a number of steps continues it
    path = Path(config.out)
    summary = load_summary(path) if config.out and is_run_directory(path) else None
    if summary and "interrupted_at" not in summary and config.steps > summary["steps_done"]:
        command = shell_command(["glasshouse", "resume", path, f"steps={config.steps}"])
        raise RunError(
            f"{path} holds a run that is finished after {summary['steps_done']} steps. Choose another "
            f"directory with out=…, or train it longer with: {command}"
        )
    return _train(config, progress, verbose)


def _train(
    config: Config, progress: bool, verbose: bool, *, accept_changes: bool = False
) -> TrainResult:
    from glasshouse.training.display import Display, TerminalDisplay
    from glasshouse.training.run import TrainingRun

    display = TerminalDisplay(verbose=verbose) if progress else Display()
    return _to_result(TrainingRun(config, display).train(accept_changes=accept_changes))


def resume(
    path: str | Path,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    *,
    accept_changes: bool = False,
    progress: bool = True,
    verbose: bool = False,
) -> TrainResult:
    """Continue an interrupted run from its newest valid checkpoint. `{"steps": N}` trains longer; keys that
    change the numbers need a new run. A run whose files (problems, model, imported code) changed is refused unless
    `accept_changes`.

    Example: `resume("runs/try", {"steps": 200})`
    """
    saved = load_run_config(Path(path))  # raises if this is not a run directory
    config = override_config(override_config(saved, overrides), {"out": str(path)})
    return _train(config, progress, verbose, accept_changes=accept_changes)


def _to_result(summary: Mapping[str, Any]) -> TrainResult:
    if "stopped_after" in summary:
        path, saved = Path(summary["run"]), int(summary["stopped_after"])
        checkpoint = path / "checkpoints" / f"step-{saved:06d}" if saved >= 0 else None
        nothing: dict[str, Any] = dict.fromkeys(("before", "after", "seconds"))
        steps = max(0, saved)
        return TrainResult(
            path=path, outcome="stopped", steps=steps, checkpoint=checkpoint, **nothing
        )
    return TrainResult(
        path=Path(summary["run"]),
        outcome="interrupted" if "interrupted_at" in summary else "finished",
        steps=summary["steps_done"],
        before=summary["before"] or None,
        after=summary.get("after") or None,
        checkpoint=Path(summary["checkpoint"]),
        seconds=summary["seconds"],
    )
