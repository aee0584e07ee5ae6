"""The pocket model: its card is accurate, and its recipe is reproducible."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from glasshouse.config.loading import load_config
from glasshouse.measurement.evaluate import evaluate_model
from glasshouse.models.folders import BASES_FOLDER, POCKET_FOLDER
from glasshouse.models.policy import Policy
from glasshouse.training.model_card import make_card
from glasshouse.training.recipes import list_recipes, load_recipe
from glasshouse.training.run import TrainingRun

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "folder",
    [POCKET_FOLDER, ROOT / "models" / "mock", *sorted(BASES_FOLDER.iterdir())],
    ids=lambda path: path.name,
)
def test_committed_files_match_their_checksums(folder: Path) -> None:
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    assert len(lines) >= 5
    for line in lines:
        digest, name = line.split()
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name


@pytest.mark.parametrize("name", list_recipes())
def test_committed_card_is_that_of_the_recipe(name: str) -> None:
    folder = {"pocket": POCKET_FOLDER, "mock": ROOT / "models" / "mock"}
    card = json.loads((folder.get(name, BASES_FOLDER / name) / "glasshouse.json").read_text())
    del card["measured"]
    assert make_card(load_recipe(name)) == card


def test_card_of_sum_digits_agrees_with_a_new_measurement(shared_pocket: Policy) -> None:
    card = next(
        m
        for m in shared_pocket.card["measured"]
        if (m["task"], m["style"]) == ("sum_digits", "cot")
    )
    results = evaluate_model(load_config([], ["evaluate.problems=200", "evaluate.samples=1"]))
    assert results["pass_at_1"] == pytest.approx(card["sampled"], abs=0.11)  # three standard errors


def test_short_run_from_the_pocket_model_learns(tmp_path: Path) -> None:
    """A short version of `make proofs ONLY=example`."""
    example = ROOT / "training" / "example.rl" / "config.yaml"
    settings = [
        "steps=6",
        "evaluate.problems=40",
        "monitor.at_end=false",
        f"out={tmp_path / 'run'}",
    ]
    summary = TrainingRun(load_config([example], settings)).train()
    assert summary["after"]["pass_at_1"] >= summary["before"]["pass_at_1"] + 0.1
    assert summary["after"]["sampled_length"] > 1.2 * summary["before"]["sampled_length"]
