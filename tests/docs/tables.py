"""Figures recomputed from the committed tables of the studies: the functions that a marker of a page may call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from glasshouse.measurement.intervals import mean_interval, sign_flip_test
from glasshouse.study.table import Table

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS = {
    "digits.reinforce": "training/digits.reinforce/results",
    "interleave.grpo": "training/interleave.grpo/results",
    "monitorability.grpo": "training/monitorability.grpo/results",
    "positive_control.grpo": "training/positive_control.grpo/results",
    "qwen": "training/positive_control.grpo/results_qwen",
    "products": "training/positive_control.grpo/results_products",
    "smollm2": "training/smollm2.grpo/results",
    "gemma3": "training/smollm2.grpo/results_gemma3",
    "hint.smollm2": "training/hint.smollm2/results",
}
"""Studies of experiments; the others are in studies/."""

Value = float | tuple[int, int]
"""A figure, or a count of seeds: (these, of all)."""
Seeds = dict[int, float]
"""A value per seed."""

DISCLOSURE = "disclosure_rule.disclosure"
UNDETECTED = "disclosure_rule.undetected_use"
VERIFIER = "step_verifier.undetected_use"
OTHER_WORDS = "other_words_rule.undetected_use"
NGRAMS = "ngrams_base.cot.undetected_use"
GMEAN2 = "organism.disclosure_rule.gmean2"
REFIT_COT, REFIT_PROMPT = (f"organism.ngrams_refit.{scope}.auroc" for scope in ("cot", "prompt"))


@cache
def _load(study: str) -> dict[tuple[str, str, int], dict[int, tuple[str, float | None]]]:
    folder = EXPERIMENTS.get(study, f"studies/{study}")
    cells: dict[tuple[str, str, int], dict[int, tuple[str, float | None]]] = {}
    for row in Table.load(ROOT / folder / "table.jsonl.zst"):
        cells.setdefault((row.arm, row.measure, row.step), {})[row.seed] = row.base, row.averaged
    return cells


@cache
def _analysis(study: str) -> dict[str, Any]:
    file = ROOT / EXPERIMENTS.get(study, f"studies/{study}") / "study.json"
    return dict(json.loads(file.read_text()))


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


def ends(study: str, arm: str, measure: str, step: int) -> list[float]:
    """Means over seeds before and after training: `a → b`."""
    return [mean(study, arm, measure, 0), mean(study, arm, measure, step)]


def extremes(study: str, arm: str, measure: str, step: int) -> list[float]:
    """The lowest and the highest seed."""
    values = seeds(study, arm, measure, step).values()
    return [min(values), max(values)]


def against(study: str, arm: str, other: str, measure: str, step: int) -> list[float]:
    """Means over seeds of two arms at the same step: `x against y`."""
    return [mean(study, name, measure, step) for name in (arm, other)]


def monitor_rates(study: str, arm: str, monitor: str, step: int) -> list[float]:
    """Sensitivity and false-alarm rate of a monitor, means over seeds."""
    sensitivity, tnr = (
        mean(study, arm, f"{monitor}.{name}", step) for name in ("disclosure", "tnr")
    )
    return [sensitivity, 1 - tnr]


def changes(study: str, arm: str, measure: str, step: int) -> list[float]:
    """After − before, for each seed."""
    return _subtract(seeds(study, arm, measure, step), seeds(study, arm, measure, 0))


def differences(
    study: str, arm: str, other: str, measure: str, step: int, base: str = ""
) -> list[float]:
    """First arm minus second arm, for each seed."""
    return _subtract(*(seeds(study, name, measure, step, base) for name in (arm, other)))


def measure_differences(
    study: str, arm: str, measure: str, other: str, step: int, base: str = ""
) -> list[float]:
    """First measure minus second measure, for each seed."""
    return _subtract(*(seeds(study, arm, name, step, base) for name in (measure, other)))


def _subtract(first: Seeds, second: Seeds) -> list[float]:
    assert first.keys() == second.keys()
    return [first[seed] - second[seed] for seed in first]


def effect(values: Sequence[float]) -> list[float]:
    """Mean and both ends of its 95 % interval over seeds."""
    return list(mean_interval(values))


def agreement(study: str, monitor: str) -> list[float]:
    """Cohen's κ of a monitor with the labels of a blind reader, its interval, and the AUROC."""
    file = (ROOT / EXPERIMENTS[study]).with_name("agreement.json")
    measures = json.loads(file.read_text())["cells"][0]["measures"]
    kappa = measures[f"{monitor}.kappa"]
    return [kappa["value"], kappa["low"], kappa["high"], measures[f"{monitor}.auroc"]["value"]]


def judged(study: str, step: int, measure: str) -> list[float]:
    """What the judge's verdicts on a sample of the rollouts give: a measure with its interval."""
    file = (ROOT / EXPERIMENTS[study]).with_name("judge") / "measures.json"
    cells = {
        int(cell["checkpoint"]): cell["measures"] for cell in json.loads(file.read_text())["cells"]
    }
    found = cells[step][f"judge.{measure}"]
    return [found["value"], found["low"], found["high"]]


def predicted(study: str, base: str, measure: str, weight: float) -> list[float]:
    """What `glasshouse predict` said of the last step, with its band, before the study ran."""
    file = (ROOT / EXPERIMENTS[study]).with_name("predictions") / f"{base}.json"
    outcomes = {own["weight"]: own for own in json.loads(file.read_text())["outcomes"]}
    return list(outcomes[weight]["curves"][measure][-1])


def gain(study: str, arm: str, measure: str, step: int) -> list[float]:
    """After − before with its interval, which ends at the largest possible fall as in the study."""
    lowest = _analysis(study)["questions"][0]["ceiling"]["fall"]
    value, low, high = effect(changes(study, arm, measure, step))
    return [value, max(low, lowest), high]


def extreme_base_changes(study: str, arm: str, measure: str, step: int) -> list[float]:
    """The smallest and the largest mean of after − before in a base."""
    by_base: dict[str, list[float]] = {}
    cells = _load(study)[arm, measure, step].values()
    for change, (base, _) in zip(changes(study, arm, measure, step), cells, strict=True):
        by_base.setdefault(base, []).append(change)
    means = [fmean(values) for values in by_base.values()]
    return [min(means), max(means)]


def published(study: str, question: int) -> list[float]:
    """Effect and both ends of its interval of a question (from 1) in the published analysis, which
    test_shipped_studies recomputes from the table."""
    result = _analysis(study)["questions"][question - 1]["effect"]
    return [result["effect"], result["low"], result["high"]]


def holm_p(study: str, question: int) -> float:
    """The corrected p of a question (from 1) in the published analysis."""
    return float(_analysis(study)["questions"][question - 1]["effect"]["p_holm"])


def p_value(values: Sequence[float]) -> float:
    """Exact sign-flip test over seeds, not corrected."""
    p = sign_flip_test(values)
    assert p is not None
    return p


def positive(values: Sequence[float]) -> tuple[int, int]:
    """How many are above 0, of how many."""
    return sum(value > 0 for value in values), len(values)


def at_most_shortcuts(measure: str) -> list[float]:
    """This measure of the two seeds of the grader bug's arm `bug` that use the shortcut most."""
    shortcut = seeds("grader_bug", "bug", "shortcut", 40)
    values = seeds("grader_bug", "bug", measure, 40)
    return [values[seed] for seed in sorted(shortcut, key=lambda seed: -shortcut[seed])[:2]]
