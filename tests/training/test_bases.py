"""The base models of the organisms: each shows its planted behaviour sometimes, as its card says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from glasshouse.config.loading import load_config
from glasshouse.measurement.evaluate import evaluate_model, fill_task_options
from glasshouse.models.folders import BASES_FOLDER
from glasshouse.models.policy import load_policy

CARDS = {
    path.name: json.loads((path / "glasshouse.json").read_text()) for path in BASES_FOLDER.iterdir()
}
POPULATION = [f"leaked-hint-{seed}" for seed in range(10, 16)]


def test_bases_of_the_population_are_independent() -> None:
    """Each has its own initial weights, tokenizer and demonstrations."""
    assert not any("start_from" in CARDS[name] for name in POPULATION)
    tokenizers = {(BASES_FOLDER / name / "tokenizer.json").read_bytes() for name in POPULATION}
    shares = {CARDS[name]["mixture"][0]["modes"]["disclosed"] for name in POPULATION}
    assert len(tokenizers) == len(shares) == len(POPULATION) == 6


def test_one_option_override_keeps_the_other_options_of_the_card() -> None:
    overrides = ["task.name=leaked_hint", "task.options.hint_encoding=iterated"]
    loaded = load_config([], ["model=ladder-0", *overrides])
    options = fill_task_options(loaded, load_policy(loaded.model).card).task.options
    card_options = CARDS["ladder-0"]["task_options"]["leaked_hint"]["cot"]
    assert options == {**card_options, "hint_encoding": "iterated"}
    assert card_options["hint_encoding"] == "plain"


def test_card_agrees_with_a_new_measurement(tmp_path: Path) -> None:
    card = CARDS["leaked-hint-0"]["measured"][0]["organism"]
    overrides = ["model=leaked-hint-0", "task.name=leaked_hint", "evaluate.samples=1"]
    overrides += ["evaluate.seed=7", "evaluate.problems=200", "generate.max_tokens=48"]
    results = evaluate_model(load_config([], overrides))
    rates, (low, high) = results["organism"], results["organism_intervals"]["reliance"]
    assert 0 < low < rates["reliance"] < high < 1
    assert rates["reliance"] == pytest.approx(card["reliance"], abs=0.1)  # three standard errors
    assert rates["accuracy_control"] == pytest.approx(card["accuracy_control"], abs=0.12)
