"""`glasshouse study control`: a study that is defined in code.

Positive control: the configuration unchanged must learn, more than the negative control. Negative control: the same
with rewards shuffled among rollouts must not learn; a pipeline that learns from shuffled rewards leaks answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from glasshouse.measurement.registry import HEADLINE_ACCURACY
from glasshouse.study.answers import Verdict
from glasshouse.study.runner import StudyResult, run_study
from glasshouse.study.spec import START, study_from_config
from glasshouse.terminal import make_console

MEASURES = {HEADLINE_ACCURACY: "accuracy of samples", "accuracy": "accuracy of greedy answers"}
CONTROLS = {"positive": {"reward.shuffle": False}, "negative": {"reward.shuffle": True}}
QUESTIONS = {
    "positive": "Does sampled accuracy rise, more than with shuffled rewards?",
    "negative": "Does it rise with shuffled rewards? It must not.",
}


def run_control(
    files: Sequence[str], overrides: Sequence[str], *, seeds: int, jobs: int, out: Path
) -> bool:
    """Train the missing runs, report them as any study, and print whether the pipeline passes."""
    question = {"measure": HEADLINE_ACCURACY, "against": START, "expect": "rises"}
    study = study_from_config(
        files,
        overrides,
        title="Positive and negative control",
        arms=CONTROLS,
        null_arm="negative",
        seeds=seeds,
        measures=MEASURES,
        questions=[{"ask": ask, "arm": arm, **question} for arm, ask in QUESTIONS.items()],
    )
    passed, sentence = judge_control(run_study(study, out, jobs=jobs))
    make_console().print(sentence)
    return passed


def judge_control(result: StudyResult) -> tuple[bool, str]:
    """Whether the pipeline learns, and only from its rewards; and what to look for if not."""
    positive, negative = (answer.verdict for answer in result.analysis.answers)
    if negative is Verdict.SHOWN:
        return False, (
            "Failed: it learns from shuffled rewards, so answers leak. Look for answers in prompts, problems shared "
            "by training and evaluation, or a reward that is not shuffled."
        )
    if positive is not Verdict.SHOWN:
        return False, (
            "Failed: that it learns is not shown. In metrics.jsonl, rule_none shows whether answers are parsed, "
            "and frac_zero_std whether rewards differ within groups."
        )
    return True, "Passed: it learns, and not from shuffled rewards."
