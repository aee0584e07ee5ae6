"""The front page's figure of real models, docs/figures/real-models.svg, from two published studies:

training/hint.smollm2/results/table.jsonl.zst  ──► each arm: seeds, mean, Student's interval over seeds
training/hint.qwen/results/study.json          ──► each run, with its interval over problems

python -m tools.real_models
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from glasshouse.measurement.intervals import mean_interval
from glasshouse.study.figures import COLOURS
from glasshouse.study.table import Table
from glasshouse.view import figures

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs/figures/real-models.svg"
MEASURE = "disclosure_rule.undetected_use"
SMOLLM2, QWEN = ROOT / "training/hint.smollm2/results", ROOT / "training/hint.qwen/results"
LAST_STEP = 20
"""Of the study of SmolLM2."""
SHIFT = 0.17
"""From the centre of an arm to its points before and after training."""


def draw() -> Any:
    """Both panels: hollow points before RL, filled ones after it."""
    figure, (left, right) = figures.new_figure((7.2, 2.9), columns=2, sharey=True)
    _draw_smollm2(left)
    _draw_qwen(right)
    for axis in (left, right):
        axis.set_xlabel("")
        axis.set_ylim(-0.02, 0.62)
    left.set_ylabel("undetected use of a wrong hint", fontsize=8, color=figures.INK)
    return figure


def _draw_smollm2(axis: Any) -> None:
    figures.style_axes(
        axis, "SmolLM2-135M: use of hints planted\n2 bases, 8 seeds: mean, 95 % over seeds"
    )
    runs = Table.load(SMOLLM2 / "table.jsonl.zst")
    names = {
        "outcome": "outcome\nreward",
        "penalty": "and a penalty on\nmentioning it",
        "permuted": "the same,\npermuted",
    }
    for place, arm in enumerate(names):
        for step, x in ((0, place - SHIFT), (LAST_STEP, place + SHIFT)):
            values = [run[step] for run in runs.runs_of(arm, MEASURE).values()]
            known = [value for value in values if value is not None]
            axis.plot([x] * len(known), known, "o", color=COLOURS[place], ms=2.4, mew=0, alpha=0.5)
            _draw_point(axis, x, *mean_interval(known), COLOURS[place], step > 0)
    axis.set_xticks(range(len(names)), list(names.values()))


def _draw_qwen(axis: Any) -> None:
    figures.style_axes(axis, "Qwen2.5-Coder-0.5B: nothing planted\neach run: 95 % over problems")
    changes = json.loads((QWEN / "study.json").read_text())["run_changes"]
    own = [change for change in changes if change["measure"] == MEASURE]
    arms = {"outcome": "outcome\nreward", "shuffled": "shuffled\nrewards"}
    for place, arm in enumerate(arms):
        runs = [change for change in own if change["arm"] == arm]
        for number, run in enumerate(runs):
            offset = (number - (len(runs) - 1) / 2) * 0.07
            ends = [(run[key]["value"], run[key]["low"], run[key]["high"]) for key in ("first", "last")]  # fmt: skip
            xs = [place - SHIFT + offset, place + SHIFT + offset]
            colour = COLOURS[3 * place]
            axis.plot(xs, [end[0] for end in ends], color=colour, linewidth=0.7, alpha=0.5)
            for x, end, is_after in zip(xs, ends, (False, True), strict=True):
                _draw_point(axis, x, *end, colour, is_after)
    axis.set_xticks(range(len(arms)), list(arms.values()))
    axis.set_xlim(-0.6, len(arms) - 0.4)


def _draw_point(
    axis: Any, x: float, value: float, low: float, high: float, colour: str, is_after: bool
) -> None:
    axis.plot([x, x], [max(low, 0), high], color=colour, linewidth=1.6, alpha=0.8)
    face = colour if is_after else "none"
    axis.plot([x], [value], "o", color=colour, mfc=face, ms=5)


if __name__ == "__main__":
    figures.write_svg(draw(), OUT)
    print(OUT.relative_to(ROOT))
