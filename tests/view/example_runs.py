"""Run directories for tests of the page, written by the real writers without training a model."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from glasshouse.config.loading import load_config
from glasshouse.runs.run_directory import RunDirectory
from glasshouse.types import (
    Completion,
    Extracted,
    ExtractionRule,
    FinishReason,
    Grade,
    Problem,
    Rollout,
)

HOSTILE = (
    "<img src=x onerror=\"document.title='hacked'\"></script><script>document.title='hacked'</script>"
    "\x1b[31mred\x1b[0m \u202egnirts\u202c [link](javascript:alert(1)) https://example.com\n[ANSWER] 7"
)
"""A completion that tries to become markup, a link, a terminal code or right-to-left text."""


def make_digit_rollout(
    step: int, group: int, sample: int, split: str = "train", text: str | None = None
) -> Rollout:
    """A digit sum; right more often at later steps."""
    rng = random.Random(f"{step} {group} {sample} {split}")
    numbers = random.Random(f"{split} {group} {step if split == 'train' else 0}").sample(
        range(100, 1000), 2
    )
    sums = [sum(map(int, str(number))) for number in numbers]
    is_right = rng.random() < 0.3 + 0.6 * min(1, step / 40)
    answer = sum(sums) + (0 if is_right else rng.randrange(1, 5))
    is_tagged = rng.random() < 0.95
    if text is None:
        lines = [f"{'+'.join(str(n))}={s}" for n, s in zip(numbers, sums, strict=True)]
        end = f"[ANSWER] {answer}" if is_tagged else f"so {answer}"
        text = "\n".join([*lines, f"{sums[0]}+{sums[1]}={answer}", end])
    rule = ExtractionRule.TAG if is_tagged else ExtractionRule.LAST
    reward = 1.0 if is_right else round(-1 + 0.5 * rng.random(), 3)
    length = 12 + len(text) // 8
    arm = split.rpartition("/")[2]
    question = f"What is the total digit sum of {numbers}?"
    return Rollout(
        step=step,
        split=split,
        arm=arm if arm in ("planted", "control") else "",
        group=group,
        sample=sample,
        problem=Problem(
            task="sum_digits",
            key="+".join(map(str, sorted(numbers))),
            question=question,
            gold_answer=str(sum(sums)),
            level="2 numbers",
            meta={"numbers": numbers},
        ),
        messages=[{"role": "user", "content": question}],
        prompt=f"<|user|>{question}<|assistant|>",
        prompt_tokens=tuple(range(12)),
        text=text,
        completion=Completion(
            tokens=tuple(rng.randrange(300) for _ in range(length)),
            logprobs=tuple(-(rng.random() ** 6) * 3 for _ in range(length)),
            length=length,
            finish_reason=FinishReason.END,
            policy_version=max(0, step - 1),
        ),
        grade=Grade(
            reward=reward,
            terms={"exact": reward},
            correct=is_right,
            lenient=is_right,
            strict=is_right and is_tagged,
            has_answer_tag=is_tagged,
            extracted=Extracted(
                model_answer=str(answer),
                rule=rule,
                span=None,
                ambiguous=False,
                reason=f"by {rule.value}",
            ),
        ),
        advantage=reward,
        time=1.7e9 + step,
    )


def make_step(
    step: int, groups: int, samples: int, split: str = "train", first: Sequence[str] = ()
) -> list[Rollout]:
    """The rollouts of one step; the first ones may have given texts."""
    texts = [*first, *[None] * (groups * samples - len(first))]
    return [
        make_digit_rollout(step, place // samples, place % samples, split, text)
        for place, text in enumerate(texts)
    ]


def step_time(step: int) -> str:
    """When a step ends: one second per step."""
    return f"2026-11-16T12:{step // 60 % 60:02d}:{step % 60:02d}.000+00:00"


def step_metrics(step: int, rollouts: Sequence[Rollout]) -> dict[str, Any]:
    rewards = [r.grade.reward for r in rollouts]
    accuracy = sum(r.grade.correct for r in rollouts) / len(rollouts)
    return {
        "step": step,
        "reward": sum(rewards) / len(rewards),
        "accuracy": accuracy,
        "length": sum(len(r.completion.tokens) for r in rollouts) / len(rollouts),
        "cot_characters": sum(r.text.find("[ANSWER]") for r in rollouts) / len(rollouts),
        "kl": 0.001 * step,
        "entropy": 0.1,
        "frac_zero_std": accuracy / 2,
        "rule_tag": 0.95,
        "rule_last": 0.05,
        "logprob_diff": 1e-7,
        "grad_norm": 0.3,
        "timing": {"time": step_time(step), "generate": 0.5, "learn": 0.4},
    }


def make_rates(greedy: float, sampled: float, problems: int) -> dict[str, Any]:
    """An evaluation with greedy and sampled accuracy."""
    rates = {"pass_at_1": sampled, "accuracy": greedy}
    ends = {f"{name}_low": max(0, rate - 0.1) for name, rate in rates.items()}
    ends |= {f"{name}_high": min(1, rate + 0.1) for name, rate in rates.items()}
    return {"problems": problems, **rates, **ends}


def log_evaluation(
    run: RunDirectory, step: int, rollouts: Sequence[Rollout], undetected: float | None = None
) -> None:
    accuracy = sum(r.grade.correct for r in rollouts) / len(rollouts)
    organism = {"reliance": 0.5, "disclosure_rule": {"undetected_use": undetected}}
    intervals = {"reliance": [0.4, 0.6]}
    run.rollout_log.append(rollouts)
    run.log_event(
        "evaluation",
        step=step,
        **make_rates(accuracy, accuracy / 2, len(rollouts)),
        **({} if undetected is None else {"organism": organism, "organism_intervals": intervals}),
    )


def log_step(run: RunDirectory, step: int, rollouts: Sequence[Rollout]) -> None:
    run.rollout_log.append(rollouts)
    run.log_metrics(step_metrics(step, rollouts))


@contextmanager
def open_run(
    path: Path,
    *,
    steps: int = 6,
    done: int | None = None,
    groups: int = 4,
    samples: int = 4,
    texts: Sequence[str] = (),
    overrides: Sequence[str] = (),
    evaluates: bool = True,
) -> Iterator[RunDirectory]:
    """A run that is still being written, after `done` steps; `texts` begin its first step."""
    config = load_config([], [f"steps={steps}", *overrides, f"out={path}"])
    with RunDirectory(path, config) as run:
        run.log_event("start", seed=config.seed, model=config.model)
        if evaluates:
            log_evaluation(run, 0, make_step(0, groups, 1, "validation/greedy"))
        for step in range(1, (steps if done is None else done) + 1):
            log_step(run, step, make_step(step, groups, samples, first=texts if step == 1 else ()))
        yield run


def write_run(path: Path, **options: Any) -> Path:
    """A finished run."""
    with open_run(path, **options) as run:
        done = options.get("done") or options.get("steps", 6)
        groups = options.get("groups", 4)
        log_evaluation(run, done, make_step(done, groups, 1, "validation/greedy"))
        run.log_event(
            "save", step=done, path=f"checkpoints/step-{done:06d}", reason="end", reward=0.5
        )
        run.write_summary(
            {
                "steps_done": done,
                "seconds": 65.0,
                "before": make_rates(0.0, 0.25, 100),
                "after": make_rates(0.965, 0.75, 100),
            }
        )
        run.log_event("end", step=done)
    return path
