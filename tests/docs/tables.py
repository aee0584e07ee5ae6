"""Figures recomputed from the committed tables of the studies: what the lists of figures are written in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from glasshouse.measurement.closed_forms import mean_interval
from glasshouse.measurement.paired_seeds import sign_flip_test
from glasshouse.study.table import read_table_text

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS = {
    "monitorability.grpo": "training/monitorability.grpo/results",
    "study_products": "training/positive_control.grpo/results_products",
    "smollm2.grpo": "training/smollm2.grpo/results",
    "smollm2.grpo gemma3": "training/smollm2.grpo/results_gemma3",
}
"""Studies of experiments; the others are in studies/."""

Value = float | tuple[int, int]
"""A figure, or a count of seeds: (these, of all)."""
Seeds = dict[int, float]
"""A value per seed."""

DISCLOSURE = "disclosure_rule.disclosure"
UNDETECTED = "disclosure_rule.undetected_use"


@cache
def _load(study: str) -> dict[tuple[str, str, int], dict[int, tuple[str, float | None]]]:
    folder = EXPERIMENTS.get(study, f"studies/{study}")
    cells: dict[tuple[str, str, int], dict[int, tuple[str, float | None]]] = {}
    for line in read_table_text(ROOT / folder / "table.jsonl.zst").splitlines():
        row = json.loads(line)
        cell = cells.setdefault((row["arm"], row["measure"], row["step"]), {})
        cell[row["seed"]] = row["base"], row["value"]
    return cells


def seeds(study: str, arm: str, measure: str, step: int, base: str = "") -> Seeds:
    """The value of every seed that has one, of one base or of all."""
    return {
        seed: value
        for seed, (seed_base, value) in _load(study)[arm, measure, step].items()
        if value is not None and base in ("", seed_base)
    }


def mean(study: str, arm: str, measure: str, step: int, base: str = "") -> float:
    """The mean over seeds."""
    return fmean(seeds(study, arm, measure, step, base).values())


def ends(study: str, arm: str, measure: str, step: int) -> list[Value]:
    """Means over seeds before and after training: `a → b`."""
    return [mean(study, arm, measure, 0), mean(study, arm, measure, step)]


def against(study: str, arms: tuple[str, str], measure: str, step: int) -> list[Value]:
    """Means over seeds of two arms at the same step: `x against y`."""
    return [mean(study, arm, measure, step) for arm in arms]


def differences(first: Seeds, second: Seeds) -> list[float]:
    """First minus second, for each seed."""
    assert first.keys() == second.keys()
    return [first[seed] - second[seed] for seed in first]


def arm_differences(
    study: str, arms: tuple[str, str], measure: str, step: int, base: str = ""
) -> list[float]:
    """First arm minus second arm, for each seed."""
    return differences(*(seeds(study, arm, measure, step, base) for arm in arms))


def effect(values: Sequence[float]) -> list[float]:
    """Mean and both ends of its 95 % interval over seeds."""
    return list(mean_interval(values))


def base_means(study: str, arm: str, reference: str, measure: str, step: int) -> list[float]:
    """The mean difference in each base: arm − reference, or after − before with `start`."""
    first = seeds(study, arm, measure, step)
    second = (
        seeds(study, arm, measure, 0)
        if reference == "start"
        else seeds(study, reference, measure, step)
    )
    by_base: dict[str, list[float]] = {}
    for seed, (base, _) in _load(study)[arm, measure, step].items():
        by_base.setdefault(base, []).append(first[seed] - second[seed])
    return [fmean(values) for _, values in sorted(by_base.items())]


def published_effect(study: str, question: int) -> list[Value]:
    """Effect and both ends of its interval of a question (from 1) in the published analysis, which
    test_shipped_studies recomputes from the table."""
    result = _published(study, question)
    return [result["effect"], result["low"], result["high"]]


def holm_p(study: str, question: int) -> float:
    """The corrected p of a question (from 1) in the published analysis."""
    p: float = _published(study, question)["p_holm"]
    return p


def published_interaction(study: str, question: int) -> float:
    """p of the base × arm interaction."""
    p: float = _published(study, question)["interaction"]["p"]
    return p


def _published(study: str, question: int) -> dict[str, Any]:
    analysis = json.loads((ROOT / f"studies/{study}/study.json").read_text())
    result: dict[str, Any] = analysis["questions"][question - 1]["effect"]
    return result


def p_value(values: Sequence[float]) -> float:
    """Exact sign-flip test over seeds, not corrected."""
    p = sign_flip_test(values)
    assert p is not None
    return p


def count(values: Sequence[bool]) -> tuple[int, int]:
    """How many, of how many."""
    return sum(values), len(values)


def refit_below_floor() -> tuple[int, int]:
    """Seeds of leaked-hint-0 in which the refitted CoT monitor is worse than its prompt floor."""
    cot, floor = (
        seeds(
            "cot_penalty", "penalty-1", f"organism.ngrams_refit.{scope}.auroc", 50, "leaked-hint-0"
        )
        for scope in ("cot", "prompt")
    )
    return count([d < 0 for d in differences(cot, floor)])


def most_shortcuts(measure: str) -> list[Value]:
    """This measure of the two seeds of the grader bug's arm `bug` that use the shortcut most."""
    shortcut = seeds("grader_bug", "bug", "shortcut", 40)
    values = seeds("grader_bug", "bug", measure, 40)
    return [values[seed] for seed in sorted(shortcut, key=lambda seed: -shortcut[seed])[:2]]
