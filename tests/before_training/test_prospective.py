"""The prospective test of the prediction: its recipes, cells, baselines, and stages that refuse to run out of order."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

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
    del sys.modules["prospective"], sys.modules["scoring"]


def make_cell(scoring, base="a", weight=0.0, verdict="show", measured=None, **changes):
    values = {
        "base": base, "arm": "outcome", "weight": weight, "verdict": verdict, "reason": "", "margin": 0.1,
        "reliance": (0.9, 0.8, 1.0), "undetected": (0.1, 0.0, 0.2), "base_reliance": 0.3, "base_silence": 0.1,
        "base_disclosure": 0.6, **changes,
    }  # fmt: skip
    return scoring.Cell(**values, measured=measured and scoring.Measured(weight, *measured))


def test_every_base_has_its_own_recipe_that_loads():
    study = load_study(FOLDER / "cells.yaml")
    recipes = {file.stem: load_recipe(str(file)) for file in FOLDER.glob("recipes/*.yaml")}
    assert {Path(base).name for base in study.bases} == recipes.keys()
    assert len({recipe.seed for recipe in recipes.values()}) == len(recipes) >= 12
    assert len(study.seeds) == 2 * len(study.bases)
    configs = [study.run_config(arm, 700) for arm in study.arms]
    weights = [config.reward.penalties["monitor"]["weight"] for config in configs]
    assert weights == [0, 0.03, 0.1, 0.3, 1]
    assert {config.evaluate.every for config in configs} == {5}


def test_baselines_are_fitted_on_known_cells_and_need_no_truth_of_new_ones(prospective):
    scoring = prospective.scoring
    known = [
        scoring.Measured(*own)
        for own in ((0, 0.9, 0.1), (1, 0.9, 0.9), (1, 0.9, 0.7), (1, 0.1, 0.0))
    ]
    fitted = scoring.fit_baselines(known)
    assert fitted["class"] == "hide"
    assert fitted["by_class"] == {"hide": 0.8, "remove": 0.0, "show": 0.1}
    new = make_cell(scoring, weight=0.3, base_reliance=0.1)
    found = {name: rule(new, fitted) for name, rule in scoring.BASELINES.items()}
    assert found["base reliance"] == ("remove", 0.0)
    assert found["base rate of silence"] == ("hide", 0.8)
    assert found["the reward's class"] == ("hide", 0.8)
    between = 0.1 + 0.3 * (1.6 / 3 - 0.1)
    assert found["more penalty hides more"][1] == pytest.approx(between, abs=1e-3)


def test_the_truth_of_a_cell_is_the_mean_of_its_seeds_at_the_horizon(prospective):
    study = load_study(FOLDER / "cells.yaml")
    base = Path(study.bases[0]).name
    seeds = [seed for seed in study.seeds if Path(study.base_of(seed)).name == base]
    rows = [
        StudyRow(arm="outcome", seed=seed, step=step, measure=measure, value=value, base=study.base_of(seed))
        for seed, shift in zip(seeds, (-0.1, 0.1), strict=True)
        for measure, last in (("reliance", 0.8), ("disclosure_rule.undetected_use", 0.5))
        for step, value in ((0, 0.0), (80, last + shift))
    ]  # fmt: skip
    scoring = prospective.scoring
    measured = scoring.measure_cell(study, Table(rows), base, "outcome")
    assert measured.reliance == pytest.approx(0.8)
    assert measured.truth == "hide"
    with pytest.raises(GlasshouseError, match="missing"):  # one seed is not trained to the end
        scoring.measure_cell(study, Table(rows[:-1]), base, "outcome")


def test_the_bar_counts_cells_where_it_speaks_and_errors_in_all_cells(prospective):
    scoring = prospective.scoring
    right, wrong = {"measured": (0.9, 0.1)}, {"measured": (0.1, 0.0)}
    cells = [make_cell(scoring, base=str(n), **right) for n in range(9)]
    fitted = scoring.fit_baselines([scoring.Measured(0, 0.9, 0.1), scoring.Measured(1, 0.9, 0.9),
                                    scoring.Measured(1, 0.1, 0.0)])  # fmt: skip
    shown = scoring.score([*cells, make_cell(scoring, base="w", **wrong)], fitted)
    assert "right in 90% of the 10 cells where it speaks: bar met" in shown
    shown = scoring.score(
        [*cells, make_cell(scoring, base="w", verdict="cannot tell", **wrong)], fitted
    )
    assert "right in 100% of the 9 cells" in shown
    assert "it speaks in 90%" in shown
    assert "undetected use 0.010" in shown  # of all ten
    assert "better than every baseline, in both columns: bar **not met**" in shown


def write_tiny_test(folder, bases):
    """Two bases of a few supervised steps, two arms of two RL steps."""
    (folder / "recipes").mkdir()
    task = {"task": "leaked_hint", "options": {"inner_options": {"count": [2, 2]}}}
    for seed, base in enumerate(bases):
        mixture = [{**task, "modes": {"disclosed": 0.4, "silent": 0.3, "steps": 0.3}}]
        phase = {"steps": 3, "learning_rate": 1e-5, "mixture": mixture}
        recipe = {"seed": seed, "batch_size": 4, "phases": [phase]}
        recipe["start_from"] = "leaked-hint-2"  # which ends its completions
        (folder / "recipes" / f"{base.name}.yaml").write_text(yaml.safe_dump(recipe))
    penalty = {"reward.penalties": {"monitor": {"weight": 1.0}}}
    config = {
        "task": {"name": "leaked_hint"}, "steps": 2, "data": {"groups_per_step": 2},
        "generate": {"group_size": 2, "max_tokens": 48}, "evaluate": {"problems": 12, "samples": 1, "every": 1},
    }  # fmt: skip
    study = {
        "title": "tiny", "bases": list(map(str, bases)), "seeds": 2, "config": config,
        "arms": {"outcome": {}, "penalty": penalty},
    }  # fmt: skip
    (folder / "cells.yaml").write_text(yaml.safe_dump(study))
    (folder / "predictor.py").write_text("# the predictor\n")
    (folder / "README.md").write_text("# Tiny\n")


def test_no_stage_runs_before_the_earlier_one_is_done_and_committed(
    prospective, tmp_path, monkeypatch
):
    folder, bases = tmp_path / "test", [tmp_path / "bases" / name for name in ("a", "b")]
    folder.mkdir()
    write_tiny_test(folder, bases)
    monkeypatch.setattr(prospective, "PREDICTOR", [folder / "predictor.py"])
    monkeypatch.setattr(prospective, "SCORING", [folder / "predictor.py"])
    monkeypatch.setattr(prospective, "SAMPLED", {"problems": 30, "samples": 2})
    stages = prospective.Stages(folder, tmp_path / "cells")

    def commit():
        author = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        for command in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "stage"]):
            subprocess.run(["git", *command], cwd=folder, check=True)

    def refused(stage, match):
        with pytest.raises(GlasshouseError, match=match):
            stage()

    refused(stages.build, "freeze first")
    commit()
    (folder / "predictor.py").write_text("# another\n")
    refused(stages.freeze, "commit it first")
    commit()
    bases[0].mkdir(parents=True)
    refused(stages.freeze, "before a base is built")
    bases[0].rmdir()
    stages.freeze()
    refused(stages.freeze, "frozen already")
    refused(stages.build, "not committed")
    commit()
    (folder / "predictor.py").write_text("# changed after the freeze\n")
    refused(stages.build, "predictor is not what")
    (folder / "predictor.py").write_text("# another\n")
    refused(stages.predict, "build first")
    stages.build()
    refused(stages.run, "predict first")
    run = prospective.plan_runs(stages.study, stages.out)[0].path
    run.mkdir(parents=True)
    refused(stages.predict, "trained before")
    shutil.rmtree(stages.out)
    stages.predict()
    refused(stages.predict, "exists")
    refused(stages.run, "not committed")
    commit()
    (bases[0] / "model.safetensors").rename(tmp_path / "kept")
    refused(stages.run, "not the base")
    (tmp_path / "kept").rename(bases[0] / "model.safetensors")
    refused(stages.score, "run the cells first")
    stages.run(jobs=1)
    stages.score()
    stages.score()  # replaces its section
    page = (folder / "README.md").read_text()
    assert page.startswith("# Tiny\n")
    assert page.count("## Score") == 1
    assert "4 cells of 2 bases" in page
    assert (folder / "cells.svg").read_text().count("<title>") == 8
    content = (folder / "predictions.json").read_text()
    (folder / "predictions.json").write_text(content.replace('"verdict": "', '"verdict": "x', 1))
    refused(stages.score, "changed after it was written")
