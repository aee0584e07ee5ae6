"""The embedded model: what its card says is true, and its recipe is reproducible."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from glasshouse import config
from glasshouse.models import Policy
from glasshouse.models.policy import BASES, POCKET
from glasshouse.pocket.build import build
from glasshouse.pocket.recipes import MOCK, RECIPES
from glasshouse.train import Run

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "folder",
    [POCKET, ROOT / "models" / "mock", *sorted(BASES.iterdir())],
    ids=lambda path: path.name,
)
def test_the_committed_files_match_their_checksums(folder: Path) -> None:
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    assert len(lines) >= 5
    for line in lines:
        digest, name = line.split()
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_shares_of_modes_add_up(recipe) -> None:
    for ingredient in recipe.ingredients:
        assert sum(ingredient.modes.values()) == pytest.approx(1)


def test_the_card_covers_five_tasks_in_two_styles_at_20_to_50_percent() -> None:
    card = json.loads((POCKET / "glasshouse.json").read_text())
    measured = {(m["task"], m["style"]): m["sampled"] for m in card["measured"]}
    assert len(measured) == 10
    assert {k: v for k, v in measured.items() if not 0.2 <= v <= 0.5} == {}


def test_what_the_card_says_of_sum_digits_is_what_one_measures(shared_pocket: Policy) -> None:
    said = next(
        m
        for m in shared_pocket.card["measured"]
        if (m["task"], m["style"]) == ("sum_digits", "cot")
    )
    found = Run(config.load([], ["evaluate.problems=200", "evaluate.samples=1"])).evaluate_only()
    assert found["pass_at_1"] == pytest.approx(said["sampled"], abs=0.11)  # three standard errors


def test_the_same_recipe_gives_the_same_bits() -> None:
    short = replace(MOCK, phases=(replace(MOCK.phases[0], steps=3),))
    first, second = (build(short) for _ in range(2))
    assert first.tokenizer.get_vocab() == second.tokenizer.get_vocab()
    for name, tensor in first.weights().items():
        assert torch.equal(tensor, second.weights()[name]), name


def test_a_short_run_from_the_pocket_model_learns(tmp_path: Path) -> None:
    """The small honest version of `make demo-seeds`."""
    example = ROOT / "training" / "example.rl" / "config.yaml"
    settings = ["steps=20", "evaluate.problems=100", f"out={tmp_path / 'run'}"]
    summary = Run(config.load([example], settings)).train()
    assert summary["after"]["pass_at_1"] >= summary["before"]["pass_at_1"] + 0.15
    assert summary["after"]["sampled_length"] > 1.2 * summary["before"]["sampled_length"]
