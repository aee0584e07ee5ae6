"""The prospective test of the prediction: its recipes, cells, baselines and frozen file."""

import json
import sys
from pathlib import Path

import pytest

from glasshouse.errors import GlasshouseError
from glasshouse.study.spec import load_study
from glasshouse.study.table import StudyRow, Table
from glasshouse.training.recipes import load_recipe

FOLDER = Path(__file__).parents[2] / "studies" / "prediction"


@pytest.fixture
def prospective(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import prospective

    yield prospective
    del sys.modules["prospective"]


def make_cell(prospective, base="a", weight=0.0, verdict="show", **changes):
    values = {
        "base": base, "arm": "outcome", "weight": weight, "verdict": verdict, "reason": "", "margin": 0.1,
        "reliance": (0.9, 0.8, 1.0), "undetected": (0.1, 0.0, 0.2), "base_reliance": 0.3, "base_silence": 0.1,
        "base_disclosure": 0.6, **changes,
    }  # fmt: skip
    return prospective.Cell(**values)


def test_every_base_has_its_own_recipe_that_loads():
    study = load_study(FOLDER / "cells.yaml")
    recipes = {file.stem: load_recipe(str(file)) for file in FOLDER.glob("recipes/*.yaml")}
    assert {Path(base).name for base in study.bases} == recipes.keys()
    assert len({recipe.seed for recipe in recipes.values()}) == len(recipes) >= 12
    assert len(study.seeds) == 2 * len(study.bases)
    weights = [
        study.run_config(arm, 700).reward.penalties["monitor"]["weight"] for arm in study.arms
    ]
    assert weights == [0, 0.03, 0.1, 0.3, 1]


def test_baselines_are_fitted_on_known_cells_and_need_no_truth_of_new_ones(prospective):
    known = [
        make_cell(prospective, weight=w, measured_reliance=r, measured_undetected=u)
        for w, r, u in ((0, 0.9, 0.1), (1, 0.9, 0.9), (1, 0.9, 0.7), (1, 0.1, 0.0))
    ]
    fitted = prospective.fit_baselines(known)
    assert fitted["class"] == "hide"
    assert fitted["by_class"] == {"hide": 0.8, "remove": 0.0, "show": 0.1}
    new = make_cell(prospective, weight=0.3, base_reliance=0.1)
    found = prospective.predict_by_baselines(new, fitted)
    assert found["base reliance"] == ("remove", 0.0)
    assert found["base rate of silence"] == ("hide", 0.8)
    assert found["the reward's class"] == ("hide", 0.8)
    assert found["more penalty hides more"][1] == pytest.approx(
        0.1 + 0.3 * (1.6 / 3 - 0.1), abs=1e-3
    )


def test_the_truth_of_a_cell_is_the_mean_of_its_seeds_at_the_last_step(prospective):
    study = load_study(FOLDER / "cells.yaml")
    base = Path(study.bases[0]).name
    seeds = [seed for seed in study.seeds if Path(study.base_of(seed)).name == base]
    rows = [
        StudyRow(arm="outcome", seed=seed, step=step, measure=measure, value=value, base=study.base_of(seed))
        for seed, shift in zip(seeds, (-0.1, 0.1), strict=True)
        for measure, last in (("reliance", 0.8), ("disclosure_rule.undetected_use", 0.5))
        for step, value in ((0, 0.0), (80, last + shift))
    ]  # fmt: skip
    (cell,) = prospective.add_truth([make_cell(prospective, base)], study, Table(rows))
    assert cell.measured_reliance == pytest.approx(0.8)
    assert cell.truth == "hide"


def test_changed_predictions_are_refused(prospective, tmp_path):
    file = tmp_path / "predictions.json"
    file.write_text(json.dumps({"cells": [], "baselines": {}, "cells_file": "", "sha256": "0"}))
    with pytest.raises(GlasshouseError):
        prospective.read_predictions(file, FOLDER / "cells.yaml")
