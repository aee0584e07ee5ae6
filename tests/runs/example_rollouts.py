"""Small rollouts for tests of the rollout log: every field is set and depends on their position."""

from __future__ import annotations

from glasshouse.types import (
    AnswerKind,
    Completion,
    Extracted,
    ExtractionRule,
    FinishReason,
    Grade,
    Problem,
    Rollout,
)


def make_rollout(step: int, group: int = 0, sample: int = 0, split: str = "train") -> Rollout:
    correct = (step + group + sample) % 3 != 0
    text = f"First {step}, then {group}.\n[ANSWER] {sample}" if correct else f"Maybe {sample}?"
    return Rollout(
        step=step,
        split=split,
        group=group,
        sample=sample,
        problem=Problem(
            task="sum_digits" if group % 2 == 0 else "multiplication",
            key=f"{step}+{group}",
            question=f"What is {step} + {group}?",
            gold_answer=str(sample),
            answer_kind=AnswerKind.NUMBER,
            level=f"{group} numbers",
            meta={"numbers": [step, group]},
        ),
        messages=[{"role": "user", "content": f"What is {step} + {group}?"}],
        prompt=f"<|user|>What is {step} + {group}?<|assistant|>",
        prompt_tokens=(1, 2, step),
        text=text,
        completion=Completion(
            tokens=(4, step, group, sample),
            logprobs=(-0.5, -0.25, -1.0, 0.0),
            length=4,
            finish_reason=FinishReason.END,
            policy_version=step - 1,
        ),
        grade=Grade(
            reward=1.0 if correct else 0.25 * sample,
            terms={"exact": float(correct), "closeness": 0.25 * sample},
            correct=correct,
            lenient=correct,
            strict=correct,
            has_answer_tag=correct,
            extracted=Extracted(
                model_answer=str(sample),
                rule=ExtractionRule.TAG if correct else ExtractionRule.LAST,
                span=(text.rindex(str(sample)), text.rindex(str(sample)) + 1),
                ambiguous=False,
                reason="it is tagged" if correct else "it is the last number",
            ),
        ),
        advantage=0.5 - sample,
        time=1.7e9 + step,
    )


def make_rollouts(
    step: int, groups: int = 2, samples: int = 2, split: str = "train"
) -> list[Rollout]:
    return [make_rollout(step, g, s, split) for g in range(groups) for s in range(samples)]
