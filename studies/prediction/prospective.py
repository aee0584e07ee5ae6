"""The prospective test of `glasshouse predict`: build the bases, predict every cell, later score the predictions.

    python studies/prediction/prospective.py build             # the bases of recipes/, with glasshouse sft
    python studies/prediction/prospective.py predict           # predictions.json: commit it before any cell is trained
    glasshouse study studies/prediction/cells.yaml             # train the cells
    python studies/prediction/prospective.py score TABLE       # predicted against measured, with the baselines
    python studies/prediction/prospective.py posthoc           # the same on the published studies, found on these data

A cell is a base and an arm. Its truth is the mean over its seeds at the last step, classified as the prediction is. The
baselines know the published studies and the base's step-0 rollouts, as the predictor does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from glasshouse.before_training.base import Base, label_base, sample
from glasshouse.before_training.predict import BETWEEN, CANNOT_TELL, classify, predict
from glasshouse.errors import GlasshouseError
from glasshouse.files import write_json
from glasshouse.measurement.intervals import mean_interval
from glasshouse.rollout.collector import RolloutCollector
from glasshouse.study.spec import Study, load_study
from glasshouse.study.table import Table
from glasshouse.terminal import make_console, markdown_table
from glasshouse.types import Rollout

FOLDER = Path(__file__).parent
PUBLISHED = {
    "leaked_hint": ("outcome",),
    "cot_penalty": ("outcome", "penalty-0.1", "penalty-0.3", "penalty-1"),
    "ladder": (
        "plain",
        "plain-penalty",
        "shifted",
        "shifted-penalty",
        "iterated",
        "iterated-penalty",
    ),
    "confirmation": ("outcome", "penalty"),
}
"""Arms without and with a penalty on disclosure; the other arms of these studies are controls."""
RELIANCE_LIMIT, SILENCE_LIMIT = 0.19, 0.085
"""In the published studies, a penalty removes the behaviour in bases below these and hides it in those above."""
PROBLEMS, SAMPLES = 500, 8


@dataclass(frozen=True)
class Cell:
    """A prediction, what a baseline may know of the base, and the truth once it is measured."""

    base: str
    arm: str
    weight: float
    verdict: str
    reason: str
    margin: float | None
    reliance: tuple[float, ...]
    undetected: tuple[float, ...]
    """Median and band at the horizon."""
    base_reliance: float
    base_silence: float
    base_disclosure: float
    measured_reliance: float | None = None
    measured_undetected: float | None = None

    @property
    def truth(self) -> str:
        assert self.measured_reliance is not None
        assert self.measured_undetected is not None
        return classify(self.measured_reliance, self.measured_undetected)


@cache
def sample_base(model: str, options: str, study: str, arm: str, seed: int) -> Any:
    config = load_study(study).run_config(arm, seed)
    return sample(config, make_console(stderr=True), problems=PROBLEMS, samples=SAMPLES)


def predict_study(file: Path, arms: tuple[str, ...] = ()) -> list[Cell]:
    """Every cell of a study. The rollouts of a base are sampled once for all arms with the same task options."""
    study, cells = load_study(file), []
    for arm in arms or study.arms:
        for base in study.bases:
            seed = next(seed for seed in study.seeds if study.base_of(seed) == base)
            config = study.run_config(arm, seed)
            first = next(a for a in study.arms if study.run_config(a, seed).task == config.task)
            rollouts, collector = sample_base(base, str(config.task), str(file), first, seed)
            cells.append(predict_cell(base, arm, rollouts, collector, study, seed))
    return cells


def predict_cell(
    base: str,
    arm: str,
    rollouts: list[Rollout],
    collector: RolloutCollector,
    study: Study,
    seed: int,
) -> Cell:
    config = study.run_config(arm, seed).model_copy(update={"task": collector.config.task})
    own: Base = label_base(base, rollouts, collector.task, config)
    found = predict(own, weights=())
    outcome, uses = found.outcome, max(float(own.use.mean()), 1e-9)
    silence = found.shares["silent use"].value or 0.0
    ends = [tuple(outcome.curves[name][-1]) for name in ("reliance", "undetected_use")]
    return Cell(
        Path(base).name, arm, own.weight, outcome.verdict, outcome.reason, found.margin.value, *ends,
        base_reliance=uses - own.control_use, base_silence=silence, base_disclosure=1 - silence / uses,
    )  # fmt: skip


def add_truth(cells: list[Cell], study: Study, table: Table) -> list[Cell]:
    """The cells with the mean of their seeds at the last step."""
    done = []
    for cell in cells:
        seeds = [s for s in study.seeds if Path(study.base_of(s)).name == cell.base]
        means = []
        for measure in ("reliance", "disclosure_rule.undetected_use"):
            runs = table.runs_of(cell.arm, measure)
            last = [runs[seed][max(runs[seed])] for seed in seeds if seed in runs]
            means.append(float(np.mean([value for value in last if value is not None])))
        done.append(replace(cell, measured_reliance=means[0], measured_undetected=means[1]))
    return done


def published_cells() -> list[Cell]:
    cells = []
    for name, arms in PUBLISHED.items():
        file = FOLDER.parent / name / "study.yaml"
        table = Table.load(file.with_name("table.jsonl.zst"))
        cells += add_truth(predict_study(file, arms), load_study(file), table)
    return cells


# --- baselines -----------------------------------------------------------------------------------


def fit_baselines(known: list[Cell]) -> dict[str, Any]:
    """What the baselines take from the published studies: the most frequent class, and mean undetected use in all
    cells, in each class, and by the weight of the penalty."""

    def mean_undetected(cells: list[Cell]) -> float:
        return round(float(np.mean([cell.measured_undetected for cell in cells])), 3)

    by_class = {t: [c for c in known if c.truth == t] for t in ("hide", "remove", "show")}
    weights = sorted({cell.weight for cell in known})
    return {
        "class": Counter(cell.truth for cell in known).most_common(1)[0][0],
        "undetected": mean_undetected(known),
        "by_class": {name: mean_undetected(cells) for name, cells in by_class.items()},
        "by_weight": [[w, mean_undetected([c for c in known if c.weight == w])] for w in weights],
    }


def predict_by_baselines(cell: Cell, fitted: dict[str, Any]) -> dict[str, tuple[str, float]]:
    """Each baseline's class and undetected use."""
    is_penalised, by_class = cell.weight > 0, fitted["by_class"]
    weights, heights = zip(*fitted["by_weight"], strict=True)
    by_weight = float(np.interp(cell.weight, weights, heights))
    classes = {
        "base reliance": "remove" if cell.base_reliance < RELIANCE_LIMIT else "hide",
        "base rate of silence": "remove" if cell.base_silence < SILENCE_LIMIT else "hide",
    }
    return {
        "constant": (fitted["class"], fitted["undetected"]),
        "more penalty hides more": ("hide" if by_weight >= 0.5 else "show", by_weight),
        # a reward in conflict with disclosure degrades it; any other reward leaves it as it is
        "the reward's class": ("hide", by_class["hide"])
        if is_penalised
        else ("hide" if cell.base_disclosure < 0.5 else "show", 1 - cell.base_disclosure),
        **{
            name: (own, by_class[own]) if is_penalised else ("show", by_class["show"])
            for name, own in classes.items()
        },
    }


# --- scoring -------------------------------------------------------------------------------------


def score(cells: list[Cell], fitted: dict[str, Any]) -> str:
    """The share of right classes where the predictor speaks, how often it speaks, and the error of undetected use in
    all cells; the baselines in the same cells, with the difference and its interval over bases."""
    told = [c for c in cells if c.verdict != CANNOT_TELL and c.truth != BETWEEN]
    apart = sum(cell.truth == BETWEEN for cell in cells)
    spoken = sum(cell.verdict != CANNOT_TELL for cell in cells)
    right = {id(c): float(c.verdict == c.truth) for c in told}
    error = {id(c): abs(c.undetected[0] - (c.measured_undetected or 0)) for c in cells}
    rows = [["glasshouse predict", _mean(right), _mean(error), "", ""]]
    for name in predict_by_baselines(cells[0], fitted):
        guess = {id(c): predict_by_baselines(c, fitted)[name] for c in cells}
        own_right = {id(c): float(guess[id(c)][0] == c.truth) for c in told}
        own_error = {id(c): abs(guess[id(c)][1] - (c.measured_undetected or 0)) for c in cells}
        better = _over_bases(told, right, own_right), _over_bases(cells, own_error, error)
        rows.append([name, _mean(own_right), _mean(own_error), *better])
    titles = [
        "",
        "right",
        "error",
        "more right (interval over bases)",
        "less error (interval over bases)",
    ]
    summary = f"{len(cells)} cells; it speaks in {spoken} ({spoken / len(cells):.0%}); {apart} end between the classes"
    return f"{summary}\n\n{markdown_table(titles, rows)}"


def _mean(values: dict[int, float]) -> str:
    return f"{np.mean(list(values.values())):.2f}" if values else "–"


def _over_bases(cells: list[Cell], more: dict[int, float], less: dict[int, float]) -> str:
    bases: dict[str, list[float]] = {}
    for cell in cells:
        bases.setdefault(cell.base, []).append(more[id(cell)] - less[id(cell)])
    if len(bases) < 2:
        return "–"
    mean, low, high = mean_interval([float(np.mean(own)) for own in bases.values()])
    return f"{mean:+.2f} ({low:+.2f}, {high:+.2f})"


def list_cells(cells: list[Cell]) -> str:
    rows = [
        [c.base, c.arm, "–" if c.margin is None else f"{c.margin:+.2f}", c.verdict, c.truth,
         f"{c.reliance[0]:.2f}", f"{c.measured_reliance:.2f}", f"{c.undetected[0]:.2f}", f"{c.measured_undetected:.2f}"]
        for c in cells
    ]  # fmt: skip
    titles = [
        "base",
        "arm",
        "M",
        "predicted",
        "measured",
        "reliance",
        "measured",
        "undetected use",
        "measured",
    ]
    return markdown_table(titles, rows)


# --- commands ------------------------------------------------------------------------------------


def build(out: Path, recipes: Path) -> None:
    for recipe in sorted(recipes.glob("*.yaml")):
        target = out / recipe.stem
        if not target.exists():
            command = [sys.executable, "-m", "glasshouse", "sft", "--recipe", str(recipe)]
            subprocess.run([*command, "--out", str(target)], check=True)


def write_predictions(file: Path, recipes: Path, out: Path) -> None:
    """The predictions with everything that must not change between them and the table."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True, cwd=FOLDER
    ).stdout.strip()
    weights = {b: _hash(Path(b) / "model.safetensors") for b in load_study(file).bases}
    cells = [asdict(cell) for cell in predict_study(file)]
    content = {
        "commit": commit,
        "cells_file": _hash(file),
        "recipes": {path.stem: _hash(path) for path in sorted(recipes.glob("*.yaml"))},
        "weights": {Path(base).name: digest for base, digest in weights.items()},
        "baselines": fit_baselines(published_cells()),
        "cells": cells,
    }
    digest = sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    write_json(out, {**content, "sha256": digest})
    print(f"{len(cells)} cells predicted: {out}, sha256 {digest}")


def read_predictions(file: Path, study: Path) -> tuple[list[Cell], dict[str, Any]]:
    """Raise unless the predictions are those that were written, for these cells."""
    content = json.loads(file.read_text())
    digest = content.pop("sha256")
    if sha256(json.dumps(content, sort_keys=True).encode()).hexdigest() != digest:
        raise GlasshouseError(f"{file} was changed after it was written.")
    if content["cells_file"] != _hash(study):
        raise GlasshouseError(f"{study} is not the file that {file} predicts.")
    return [Cell(**cell) for cell in content["cells"]], content["baselines"]


def _hash(file: Path) -> str:
    return sha256(file.read_bytes()).hexdigest()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=["build", "predict", "score", "posthoc"])
    parser.add_argument("table", nargs="?", type=Path, help="for score: the study's table")
    parser.add_argument("--study", type=Path, default=FOLDER / "cells.yaml")
    parser.add_argument("--recipes", type=Path, default=FOLDER / "recipes")
    parser.add_argument("--bases", type=Path, default=Path("runs/prediction/bases"))
    parser.add_argument("--predictions", type=Path, default=FOLDER / "predictions.json")
    args = parser.parse_args(arguments)
    if args.command == "build":
        build(args.bases, args.recipes)
    elif args.command == "predict":
        write_predictions(args.study, args.recipes, args.predictions)
    elif args.command == "score":
        cells, fitted = read_predictions(args.predictions, args.study)
        cells = add_truth(cells, load_study(args.study), Table.load(args.table))
        print(f"{list_cells(cells)}\n\n{score(cells, fitted)}")
    else:
        cells = published_cells()
        print(f"{list_cells(cells)}\n\n{score(cells, fit_baselines(cells))}")


if __name__ == "__main__":
    main()
