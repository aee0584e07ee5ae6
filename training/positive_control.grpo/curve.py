"""Held-out accuracy of products without steps against compute, for models of three sizes. Each is trained as the base
of the experiment is, without the phases of its recipe that add wrong answers.

    python training/positive_control.grpo/curve.py     # 5 minutes of one core for each size → curve.json, curve.svg
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from glasshouse.config.schema import Config
from glasshouse.files import write_text
from glasshouse.training.model_card import measure_entry
from glasshouse.training.recipes import MixtureEntry, Recipe, load_recipe
from glasshouse.training.sft import DemonstrationLearner, load_start
from glasshouse.view import figures

FOLDER = Path(__file__).parent
POINTS = 10
SIZES = {"1M": (128, 4, 512, 1.0), "2M": (192, 4, 576, 0.75), "5M": (256, 5, 1024, 0.5)}
"""Hidden size, layers, width of the MLP, and a factor for the recipe's learning rates."""
PRODUCTS = ((3, 2), (2, 2), (3, 1), (2, 1))
"""Digits of the factors that are measured."""


def resize(recipe: Recipe, size: str) -> Recipe:
    """The recipe for a model of another size, without wrong answers."""
    width, depth, inner, factor = SIZES[size]
    phases = tuple(
        phase.model_copy(update={"learning_rate": phase.learning_rate * factor})
        for phase in recipe.phases
        if not any(entry.modes.get("guess") for entry in phase.mixture)
    )
    shape = {"hidden_size": width, "num_layers": depth, "intermediate_size": inner}
    return recipe.model_copy(update={**shape, "phases": phases})


def train(recipe: Recipe, minutes: float) -> dict[str, Any]:
    """Train for about so many minutes of CPU time, as 20 steps predict them; return the points."""
    config = Config(model="", threads=1)
    learner, begin = DemonstrationLearner(load_start(config, recipe), recipe), time.process_time()
    for _ in range(20):
        learner.advance(learner.differentiate())
    recipe = recipe.with_steps(round(minutes * 60 * 20 / (time.process_time() - begin)))
    learner, seconds, points = DemonstrationLearner(load_start(config, recipe), recipe), 0.0, []
    for step in range(1, recipe.steps + 1):
        begin = time.process_time()
        learner.advance(learner.differentiate())
        seconds += time.process_time() - begin
        if step * POINTS // recipe.steps > (step - 1) * POINTS // recipe.steps:
            points.append({"step": step, "cpu_seconds": round(seconds, 1), **measure(learner)})
            print(json.dumps(points[-1]), flush=True)
    return {"parameters": sum(p.numel() for p in learner.parameters), "points": points}


def measure(learner: DemonstrationLearner) -> dict[str, float]:
    """Accuracy on held-out products, sampled at temperature 1 and greedy."""
    values, common = {}, {"task": "multiplication", "style": "direct", "modes": {"direct": 1.0}}
    for left, right in PRODUCTS:
        options = {"left_digits": left, "right_digits": right}
        result = measure_entry(learner.policy, MixtureEntry(**common, options=options))
        values |= {f"{kind} {left}x{right}": result[kind] for kind in ("sampled", "greedy")}
    return values


def draw(curves: dict[str, Any]) -> None:
    figure, axes = figures.new_figure((7.0, 2.5), columns=2, sharey=True)
    for axis, (left, right) in zip(axes, PRODUCTS[::2], strict=True):
        for size, marker in zip(SIZES, "os^", strict=True):
            points = curves[size]["points"] if size in curves else []
            minutes = [point["cpu_seconds"] / 60 for point in points]
            values = [point[f"sampled {left}x{right}"] for point in points]
            axis.plot(minutes, values, marker=marker, markersize=3, label=size)
        figures.style_axes(axis, f"{left} × {right} digits: exact, sampled, held out")
        axis.set_xlabel("minutes of one core")
        axis.set_ylim(0, 1)
    axes[0].legend(fontsize=8, frameon=False, labelcolor=figures.INK, title="parameters")
    figures.write_svg(figure, FOLDER / "curve.svg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", default=[*SIZES])
    parser.add_argument("--minutes", type=float, default=5.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    file = FOLDER / "curve.json"
    curves = json.loads(file.read_text()) if file.exists() else {}
    for size in options.sizes:
        curves[size] = train(
            resize(load_recipe("positive-control-products"), size), options.minutes
        )
        write_text(file, json.dumps(curves, indent=1) + "\n")
    draw(curves)


if __name__ == "__main__":
    main()
