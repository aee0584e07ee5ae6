"""Every figure of the front page is recomputed from the committed tables of the studies.

A figure is a number written like `.86`, `+.39` or `.0078`, or a count like `8 of 8 seeds`. `front_page_figures`
lists where each comes from, paragraph by paragraph. A figure that is not listed fails the test, and so does
one that is listed but differs from its table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean

import pytest

from glasshouse.estimation import sign_flip_test
from glasshouse.statistics import mean_interval
from glasshouse.study.table import Table

ROOT = Path(__file__).resolve().parent.parent
FIGURE = re.compile(r"(?<![\d.])[+−]?[01]?\.\d{2,4}(?!\d)|\b\d+ of \d+ seeds")
EXPERIMENTS = {"monitorability.grpo": "training/monitorability.grpo/results"}

Value = float | tuple[int, int]


@cache
def table(study: str) -> Table:
    folder = EXPERIMENTS.get(study, f"docs/studies/{study}")
    return Table.load(ROOT / folder / "table.jsonl.zst")


def seeds(study: str, arm: str, measure: str, step: int, base: str = "") -> dict[int, float]:
    """The value of every seed that has one."""
    return {
        row.seed: row.value
        for row in table(study).rows
        if (row.arm, row.measure, row.step) == (arm, measure, step)
        and row.value is not None
        and base in ("", row.base)
    }


def mean(study: str, arm: str, measure: str, step: int, base: str = "") -> float:
    """The mean over seeds."""
    return fmean(seeds(study, arm, measure, step, base).values())


def differences(first: dict[int, float], second: dict[int, float]) -> list[float]:
    assert first.keys() == second.keys()
    return [first[seed] - second[seed] for seed in first]


def rises(first: dict[int, float], last: dict[int, float]) -> tuple[int, int]:
    """In how many seeds the value rises, of how many."""
    changes = differences(last, first)
    return sum(change > 0 for change in changes), len(changes)


def p_value(changes: Sequence[float]) -> float:
    """Exact sign-flip test over seeds, not corrected."""
    p = sign_flip_test(changes)
    assert p is not None
    return p


# --- the measures of the front page ------------------------------------------------------------------

USE = "disclosure_rule.undetected_use"
SAID = "disclosure_rule.disclosure"
VERIFIER = "step_verifier.disclosure"
VERIFIER_TNR = "step_verifier.tnr"
VERIFIER_USE = "step_verifier.undetected_use"
REFIT = "organism.ngrams_refit.{}.auroc"
FROZEN = "organism.ngrams_base.{}.tpr"


def refit_below_floor() -> tuple[int, int]:
    """Seeds of leaked-hint-0 in which the refitted CoT monitor is worse than its prompt floor."""
    cot, floor = (
        seeds("cot_penalty", "penalty-1", REFIT.format(scope), 50, "leaked-hint-0")
        for scope in ("cot", "prompt")
    )
    return sum(cot[seed] < floor[seed] for seed in cot), len(cot)


def bug_seeds(measure: str) -> list[float]:
    """The two seeds of the arm `bug` that use the shortcut most, in that order."""
    shortcut = seeds("grader_bug", "bug", "shortcut", 40)
    chosen = sorted(shortcut, key=lambda seed: -shortcut[seed])[:2]
    values = seeds("grader_bug", "bug", measure, 40)
    return [values[seed] for seed in chosen]


@cache
def front_page_figures() -> dict[str, list[Value]]:
    """By the beginning of a paragraph or table row of README.md: its figures in order."""
    plain = [seeds("ladder", "plain", USE, step) for step in (0, 40)]
    penalty_at_30 = differences(
        seeds("cot_penalty", "penalty-1", USE, 30), seeds("cot_penalty", "outcome", USE, 30)
    )
    reliance_at_50 = differences(
        seeds("cot_penalty", "penalty-1", "reliance", 50),
        seeds("cot_penalty", "outcome", "reliance", 50),
    )
    bug_against_random = differences(
        seeds("grader_bug", "bug", "behaviour", 40), seeds("grader_bug", "random", "behaviour", 40)
    )
    return {
        # The picture's caption
        "*A hint to the answer": [
            mean("cot_penalty", "penalty-1", USE, 50),
            mean("cot_penalty", "outcome", USE, 50),
            mean("ladder", "plain", USE, 0),
            mean("ladder", "plain", USE, 40),
        ],
        # The rows of the results table. The confirmation study comes first when its table exists.
        "| Does the outcome reward alone": [
            mean("leaked_hint", "outcome", "reliance", 0),
            mean("leaked_hint", "outcome", "reliance", 60),
            mean("leaked_hint", "outcome", SAID, 0),
            mean("leaked_hint", "outcome", SAID, 60),
            mean("leaked_hint", "outcome", USE, 0),
            mean("leaked_hint", "outcome", USE, 60),
            mean("ladder", "plain", SAID, 0),
            mean("ladder", "plain", SAID, 40),
            mean("ladder", "plain", USE, 0),
            mean("ladder", "plain", USE, 40),
            rises(*plain),
            p_value(differences(plain[1], plain[0])),
        ],
        "| And with a monitor in the reward": [
            mean("cot_penalty", "penalty-1", USE, 0),
            mean("cot_penalty", "penalty-1", USE, 50),
            mean("cot_penalty", "outcome", USE, 50),
            mean("cot_penalty", "orthogonal", USE, 50),
            mean("cot_penalty", "penalty-1", "reliance", 50),
            mean("cot_penalty", "outcome", "reliance", 50),
            *mean_interval(reliance_at_50),
            mean_interval(penalty_at_30)[0],
            p_value(penalty_at_30),
        ],
        "| Do other monitors": [
            mean("cot_penalty", "penalty-1", VERIFIER, 50),
            1 - mean("cot_penalty", "penalty-1", VERIFIER_TNR, 50),
            mean("cot_penalty", "penalty-1", FROZEN.format("cot"), 50),
            mean("cot_penalty", "outcome", FROZEN.format("cot"), 50),
            mean("cot_penalty", "penalty-1", FROZEN.format("prompt"), 50),
            mean("cot_penalty", "penalty-1", REFIT.format("cot"), 50),
            mean("cot_penalty", "penalty-1", REFIT.format("prompt"), 50),
            refit_below_floor(),
        ],
        "| And if the hint must be computed": [
            mean("ladder", "shifted-penalty", "reliance", 40),
            mean("ladder", "shifted", "reliance", 40),
            mean("ladder", "iterated-penalty", "reliance", 40),
            mean("ladder", "iterated", "reliance", 40),
            mean("ladder", "shifted-penalty", USE, 40),
            mean("ladder", "shifted", VERIFIER_USE, 0),
            mean("ladder", "shifted", VERIFIER_USE, 40),
            mean("ladder", "iterated", VERIFIER_USE, 0),
            mean("ladder", "iterated", VERIFIER_USE, 40),
        ],
        "| What if words of the CoT": [
            mean("substitution", "penalty-1", SAID, 50),
            mean("substitution", "outcome", SAID, 50),
            mean("substitution", "penalty-1", "synonym_rule.disclosure", 50),
            mean("substitution", "outcome", "synonym_rule.disclosure", 50),
            mean("substitution", "penalty-1", "substitution.follow_rate", 50),
            mean("substitution", "penalty-1", "accuracy_planted", 50),
            mean("substitution", "outcome", "accuracy_planted", 50),
        ],
        "| Is a grader bug exploited": [
            mean("grader_bug", "bug-length", "behaviour", 0),
            mean("grader_bug", "bug-length", "behaviour", 40),
            mean("grader_bug", "bug", "behaviour", 0),
            mean("grader_bug", "bug", "behaviour", 40),
            mean("grader_bug", "random", "behaviour", 0),
            mean("grader_bug", "random", "behaviour", 40),
            *mean_interval(bug_against_random),
            (sum(v > 0.5 for v in seeds("grader_bug", "bug", "shortcut", 40).values()), 8),
            *bug_seeds("shortcut"),
            *bug_seeds("accuracy_planted"),
        ],
    }


def paragraphs(text: str) -> list[str]:
    """Table rows, and runs of other lines between empty ones, that contain a figure."""
    blocks = re.split(r"\n\s*\n|\n(?=\|)", text)
    return [block.strip() for block in blocks if FIGURE.search(block)]


def write_figure(value: Value, like: str) -> str:
    """The value in the notation of the page, with as many decimals as `like` has."""
    if isinstance(value, tuple):
        return f"{value[0]} of {value[1]} seeds"
    digits = f"{abs(value):.{len(like.rpartition('.')[2])}f}"
    sign = like[0] if like[0] in "+−" else ""
    if sign:
        sign = "−" if value < 0 else "+"
    return sign + (digits if digits.startswith("1") else digits.removeprefix("0"))


def check_page(text: str, figures: dict[str, list[Value]]) -> None:
    found = paragraphs(text)
    unlisted = [p[:60] for p in found if not any(p.startswith(start) for start in figures)]
    assert not unlisted, f"figures without a source in the tables: {unlisted}"
    for start, values in figures.items():
        block = next((p for p in found if p.startswith(start)), None)
        assert block is not None, f"no paragraph begins with {start!r}"
        written = FIGURE.findall(block)
        assert len(written) == len(values), (start, written, values)
        recomputed = [write_figure(v, w) for v, w in zip(values, written, strict=True)]
        assert written == recomputed, start


def test_front_page_figures_equal_the_tables() -> None:
    check_page((ROOT / "README.md").read_text(), front_page_figures())


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(".86", ".87", 1),
        lambda text: text.replace(".11 → .86", ".11 → .86 (.85 at step 45)"),
        lambda text: f"{text}\n\nUndetected use falls to .02 with a new method.\n",
        lambda text: text.replace("| And with a monitor in the reward", "| With a monitor"),
        lambda text: text.replace("8 of 8 seeds", "7 of 8 seeds"),
    ],
    ids=["wrong figure", "extra figure in a row", "figure elsewhere", "row renamed", "wrong count"],
)
def test_a_changed_figure_fails(change: Callable[[str], str]) -> None:
    text = (ROOT / "README.md").read_text()
    changed = change(text)
    assert changed != text
    with pytest.raises(AssertionError):
        check_page(changed, front_page_figures())
