"""Short training runs for tests: one finished run, and copies as a kill would have left them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from proofs.resume import Result, load_result, train

from glasshouse.training.display import Display

SHORT = (
    "steps=5",
    "checkpoints.every=2",
    "checkpoints.save_above_reward=null",
    "checkpoints.save_best=false",
)
CHECKPOINT_FILES = (
    "chat_template.jinja", "checksums.json", "config.json", "generation_config.json",
    "glasshouse.json", "learner.safetensors", "model.safetensors", "state.json", "tokenizer.json",
    "tokenizer_config.json",
)  # fmt: skip


class Crash(BaseException):
    """Ends a run without any of its own clean-up."""


class CrashAtStep(Display):
    def __init__(self, step: int) -> None:
        self.crash_step = step

    def step(self, row: dict[str, Any], groups: list) -> None:
        if row["step"] == self.crash_step:
            raise Crash


class CopyAtStep(Display):
    """Copies the run directory after given steps, before their checkpoints: what a kill leaves."""

    def __init__(self, run: Path, copies: dict[int, Path]) -> None:
        self.run, self.copies = run, copies

    def step(self, row: dict[str, Any], groups: list) -> None:
        if row["step"] in self.copies:
            shutil.copytree(self.run, self.copies[row["step"]])


class MessageRecorder(Display):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def warn(self, message: str, kind: str = "") -> None:
        self.messages.append(message)

    def log(self, message: str) -> None:
        self.messages.append(message)

    def resumed(self, step: int, path: Path) -> None:
        self.messages.append(f"resumed at {step}")


@dataclass(frozen=True)
class SharedRuns:
    finished: Path
    killed: dict[int, Path]
    """Copies by the step after which the run was killed; checkpoints are at steps 2 and 4."""
    expected: Result


@cache
def train_shared_runs(base: Path) -> SharedRuns:
    """Train one run below the test session's folder; no test may change it or its copies."""
    folder = base / "shared_runs"
    finished = folder / "finished"
    killed = {step: folder / f"killed-{step}" for step in (1, 3, 5)}
    train(finished, CopyAtStep(finished, killed), SHORT)
    return SharedRuns(finished, killed, load_result(finished))


def resume(out: Path, *overrides: str) -> list[str]:
    """Resume a run to its end; returns the messages that it showed."""
    display = MessageRecorder()
    summary = train(out, display, (*SHORT, *overrides))
    assert "after" in summary, f"a signal ended the resumed run: {summary}"
    return display.messages
