"""Positive and negative control over several seeds, and a verdict that a person can act on.

Positive: the configuration as it is must learn. Negative: the same with rewards dealt out at
random among rollouts must not. Both are needed: a pipeline that "learns" from noise leaks its
answers somewhere. Finished runs are not run again, and an interrupted one goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from glasshouse import config as configs
from glasshouse.statistics import mean_interval
from glasshouse.store.atomic_files import write_json
from glasshouse.store.run_directory import summary_of
from glasshouse.study.process_pool import Crew, Done, Job

ARMS = {"positive": "reward.shuffle=false", "negative": "reward.shuffle=true"}
LEARNED = 0.1
"""A pipeline learns if accuracy rises by at least this much, on average and in every seed."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Held-out accuracy of one run, before and after."""

    seed: int
    before: float
    after: float
    sampled_before: float
    sampled_after: float

    @property
    def sampled(self) -> float:
        return self.sampled_after - self.sampled_before


def control(
    files: Sequence[str],
    overrides: Sequence[str],
    seeds: int,
    jobs: int,
    out: Path,
    only: str | None,
) -> int:
    """Run what is missing, print a line a run, then the verdict; 0 if both controls pass, else 1."""
    configs.load(files, overrides)  # a bad configuration is one sentence, not ten failed runs
    console = Console(highlight=False)
    arms = [only] if only else list(ARMS)
    wanted = [(arm, seed) for seed in range(seeds) for arm in arms]
    gains: dict[str, list[Gain]] = {arm: [] for arm in arms}
    for arm, gain in _run_all(wanted, files, overrides, jobs, out):
        gains[arm].append(gain)
        console.print(
            f"{arm} seed {gain.seed}: sampled accuracy {gain.sampled_before:.3f} → {gain.sampled_after:.3f} "
            f"({gain.sampled:+.3f}), greedy {gain.before:.3f} → {gain.after:.3f}"
        )
    passed, sentence = verdict(gains.get("positive"), gains.get("negative"))
    report = {
        arm: [{"seed": g.seed, "before": g.before, "after": g.after, "sampled_before": g.sampled_before,
               "sampled_after": g.sampled_after} for g in sorted(listed, key=lambda g: g.seed)]
        for arm, listed in gains.items()
    }  # fmt: skip
    write_json(out / "control.json", {"verdict": sentence, "passed": passed, **report})
    console.print(sentence)
    return 0 if passed else 1


def verdict(positive: list[Gain] | None, negative: list[Gain] | None) -> tuple[bool, str]:
    """Whether the controls pass, and a sentence. The seed is the unit; sampled accuracy decides,
    because a greedy answer can flip when nothing but the second digit of a probability moved."""
    sentences, passed = [], True
    if negative:
        gains = [g.sampled for g in negative]
        mean, low, high = mean_interval(gains)
        leaks = low > 0 or min(gains) > LEARNED
        passed &= not leaks
        shown = f"{mean:+.3f} ({low:+.3f} to {high:+.3f}) over {len(gains)} seeds"
        sentences.append(
            f"It learns from noise: something leaks. With shuffled rewards accuracy still rose by {shown}; "
            "look for answers in prompts, problems shared by training and evaluation, or a reward that "
            "is applied besides the shuffled one."
            if leaks
            else f"It does not learn from noise: with shuffled rewards accuracy changed by {shown}."
        )
    if positive:
        gains = [g.sampled for g in positive]
        mean, low, high = mean_interval(gains)
        learns = min(gains) >= LEARNED and (low > 0 or len(gains) == 1)
        passed &= learns
        shown = f"{mean:+.3f} ({low:+.3f} to {high:+.3f}) over {len(gains)} seeds"
        sentences.insert(
            0,
            f"The pipeline learns: accuracy rose by {shown}."
            if learns
            else f"It does not learn: accuracy changed by {shown}. {_reasons(positive)}",
        )
    return passed, " ".join(sentences)


def _reasons(gains: list[Gain]) -> str:
    start = sum(g.sampled_before for g in gains) / len(gains)
    if start > 0.9:
        return "The likeliest reason: the model is right already; make the task harder."
    if start < 0.02:
        return (
            "The likeliest reasons: the model is never right, so there is nothing to reinforce (an easier "
            "task.options, a partial reward), or answers are not read (see rule_none in metrics.jsonl)."
        )
    if any(g.sampled < -LEARNED for g in gains):
        return "The likeliest reason: training collapses; lower learn.learning_rate or set learn.kl_coef."
    return (
        "The likeliest reasons: too few steps, a learning rate that is too low, or groups whose rewards "
        "are all alike (groups_alike in metrics.jsonl)."
    )


def _run_all(
    wanted: list[tuple[str, int]],
    files: Sequence[str],
    overrides: Sequence[str],
    jobs: int,
    out: Path,
) -> Iterator[tuple[str, Gain]]:
    """What is there already, then what is missing as it comes."""
    missing: dict[Job, tuple[str, int]] = {}
    for arm, seed in wanted:
        path = out / f"{arm}-{seed}"
        summary = summary_of(path)
        if summary and "after" in summary:
            yield arm, _gain(summary, seed)
        else:
            given = [*overrides, ARMS[arm], f"seed={seed}", f"out={path}"]
            name = f"The {arm} control with seed {seed}"
            missing[Job(name=name, config=configs.load(files, given))] = arm, seed
    with Crew(jobs) as crew:
        for heard in crew.work(missing):
            if isinstance(heard, Done):
                arm, seed = missing[heard.job]
                yield arm, _gain(heard.summary, seed)


def _gain(summary: dict[str, Any], seed: int) -> Gain:
    before, after = summary["before"], summary["after"]
    return Gain(
        seed, before["accuracy"], after["accuracy"], before["pass_at_1"], after["pass_at_1"]
    )
