"""Runs that end before their time, and going on with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from proofs.resume import train

from glasshouse.train.display import Display

FEW = (
    "steps=5",
    "checkpoints.every=2",
    "checkpoints.save_above_reward=null",
    "checkpoints.save_best=false",
)
FILES = (
    "chat_template.jinja", "config.json", "generation_config.json", "glasshouse.json",
    "learner.safetensors", "model.safetensors", "state.json", "sums.json", "tokenizer.json",
    "tokenizer_config.json",
)  # fmt: skip
"""What a checkpoint consists of."""


class Crash(BaseException):
    """A process that is suddenly gone, as far as this one can play that."""


class CrashesAt(Display):
    def __init__(self, step: int) -> None:
        self.at = step

    def step(self, row: dict, groups: list) -> None:
        if row["step"] == self.at:
            raise Crash


class Listens(Display):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def warn(self, sentence: str) -> None:
        self.heard.append(sentence)

    def say(self, sentence: str) -> None:
        self.heard.append(sentence)

    def resumed(self, step: int, path: Path) -> None:
        self.heard.append(f"resumed at {step}")


def crash(out: Path, step: int, *overrides: str) -> None:
    with pytest.raises(Crash):
        train(out, CrashesAt(step), (*FEW, *overrides))


def go_on(out: Path, *overrides: str) -> list[str]:
    display = Listens()
    train(out, display, (*FEW, *overrides))
    return display.heard
