"""`glasshouse study control`: a study of a positive and a negative control, with a pass/fail verdict.

Positive: the configuration unchanged must learn. Negative: the same with rewards shuffled among
rollouts must not; a pipeline that learns from shuffled rewards leaks answers somewhere.

The verdict uses Student's interval, because the exact test of a study's questions cannot show
anything with the default five seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from glasshouse.files import write_json
from glasshouse.measurement.closed_forms import mean_interval
from glasshouse.measurement.registry import HEADLINE_ACCURACY
from glasshouse.study.display import TerminalProgress
from glasshouse.study.runner import train_study
from glasshouse.study.spec import study_from_config
from glasshouse.study.table import Table

ARMS = {"positive": {"reward.shuffle": False}, "negative": {"reward.shuffle": True}}
MIN_GAIN = 0.1
"""The positive control passes if accuracy rises by at least this much in every seed."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Sampled held-out accuracy of one run before and after training."""

    seed: int
    before: float
    after: float

    @property
    def change(self) -> float:
        return self.after - self.before


def run_control(
    files: Sequence[str],
    overrides: Sequence[str],
    *,
    seeds: int,
    jobs: int,
    out: Path,
    only: str | None = None,
) -> bool:
    """Train the missing runs, print the verdict and write results/control.json; True if it passes."""
    study = study_from_config(
        files,
        overrides,
        title="Positive and negative control",
        arms={arm: ARMS[arm] for arm in ([only] if only else ARMS)},
        seeds=seeds,
        measures={
            HEADLINE_ACCURACY: "accuracy of samples",
            "accuracy": "accuracy of greedy answers",
        },
    )
    console = Console(highlight=False, emoji=False)
    table = train_study(study, out, jobs=jobs, progress=TerminalProgress(study, console))
    gains = {arm: _gains(table, arm) for arm in study.arms}
    passed, verdict = judge_control(gains.get("positive", []), gains.get("negative", []))
    runs = {arm: [asdict(gain) for gain in gains[arm]] for arm in gains}
    write_json(out / "results" / "control.json", {"passed": passed, "verdict": verdict, **runs})
    console.print(verdict)
    return passed


def judge_control(positive: Sequence[Gain], negative: Sequence[Gain]) -> tuple[bool, str]:
    """Whether the controls pass, and why. An arm without runs is not judged."""
    sentences, passed = [], True
    if positive:
        learns = min(gain.change for gain in positive) >= MIN_GAIN and (
            len(positive) == 1 or _interval(positive)[1] > 0
        )
        passed &= learns
        sentences.append(
            f"The pipeline learns: sampled accuracy rose by {_format(positive)}."
            if learns
            else f"It does not learn: sampled accuracy changed by {_format(positive)}. {_likely_reason(positive)}"
        )
    if negative:
        leaks = _interval(negative)[1] > 0 or min(gain.change for gain in negative) > MIN_GAIN
        passed &= not leaks
        sentences.append(
            f"It learns from shuffled rewards, so answers leak: sampled accuracy rose by {_format(negative)}. Look for "
            "answers in prompts, problems shared by training and evaluation, or a reward that is not shuffled."
            if leaks
            else f"It does not learn from shuffled rewards: sampled accuracy changed by {_format(negative)}."
        )
    return passed, " ".join(sentences)


def _gains(table: Table, arm: str) -> list[Gain]:
    gains = []
    for seed in table.seeds(arm):
        curve = table.curve(arm, seed, HEADLINE_ACCURACY)
        before, after = curve[min(curve)], curve[max(curve)]
        assert before is not None  # an accuracy is always defined
        assert after is not None
        gains.append(Gain(seed, before, after))
    return gains


def _interval(gains: Sequence[Gain]) -> tuple[float, float, float]:
    return mean_interval([gain.change for gain in gains])


def _format(gains: Sequence[Gain]) -> str:
    mean, low, high = _interval(gains)
    return f"{mean:+.3f} ({low:+.3f} to {high:+.3f}) over {len(gains)} seeds"


def _likely_reason(gains: Sequence[Gain]) -> str:
    start = sum(gain.before for gain in gains) / len(gains)
    if start > 0.9:
        return "The likeliest reason: the model is already accurate; make the task harder."
    if start < 0.02:
        return (
            "The likeliest reasons: no answer is ever correct, so there is nothing to reinforce (use easier "
            "task.options or a partial reward), or answers are not parsed (see rule_none in metrics.jsonl)."
        )
    if any(gain.change < -MIN_GAIN for gain in gains):
        return "The likeliest reason: training collapses; lower learn.learning_rate or set learn.kl_coef."
    return (
        "The likeliest reasons: too few steps, a learning rate that is too low, or groups whose rewards "
        "are all equal (frac_zero_std in metrics.jsonl)."
    )
