"""A rollout as a row of JSON values, and back, bit for bit.

The texts are always whole. Token-level detail (`prompt_tokens`, `tokens`, `logprobs`) may be left
out by `rollout_log.tokens_every`; it is null then, and `length` still says how many tokens there were.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from typing import Any

from glasshouse.errors import RecordError
from glasshouse.types import (
    AnswerKind,
    Completion,
    Extracted,
    Grade,
    Problem,
    Rollout,
    Rule,
    StopReason,
)


def row(rollout: Rollout, tokens: bool = True) -> dict[str, Any]:
    """Everything about a rollout. Log-probabilities are float32: nine digits hold all of one."""
    p, c, g = rollout.problem, rollout.completion, rollout.grade
    return {
        "step": rollout.step,
        "split": rollout.split,
        "group": rollout.group,
        "sample": rollout.sample,
        "task": p.task,
        "key": p.key,
        "level": p.level,
        "question": p.question,
        "gold": p.answer,
        "answer_kind": p.kind.value,
        "decimals": p.decimals,
        "meta": dict(p.meta),
        "messages": list(rollout.messages),
        "prompt": rollout.prompt_text,
        "completion": rollout.text,
        "stop": c.stop.value,
        "reward": g.reward,
        "parts": dict(g.parts),
        "correct": g.correct,
        "lenient": g.lenient,
        "strict": g.strict,
        "tagged": g.tagged,
        "answer": g.extracted.value,
        "rule": g.extracted.rule.value,
        "span": list(g.extracted.span) if g.extracted.span else None,
        "ambiguous": g.extracted.ambiguous,
        "reason": g.extracted.reason,
        "advantage": rollout.advantage,
        "version": c.version,
        "length": len(c.tokens),
        "prompt_tokens": list(rollout.prompt_tokens) if tokens else None,
        "tokens": list(c.tokens) if tokens else None,
        "logprobs": [float(f"{x:.9g}") for x in c.logprobs] if tokens else None,
        "time": rollout.time,
    }


def rollout_of(row: dict[str, Any]) -> Rollout:
    """The rollout that `row` was made from; its token-level detail must be there."""
    if row["tokens"] is None:
        raise RecordError(
            f"Step {row['step']}, group {row['group']}, sample {row['sample']} was recorded without "
            "its tokens (rollout_log.tokens_every), so that no rollout can be made of it."
        )
    return Rollout(
        step=row["step"],
        split=row["split"],
        group=row["group"],
        sample=row["sample"],
        problem=problem_of(row),
        messages=row["messages"],
        prompt_text=row["prompt"],
        prompt_tokens=tuple(row["prompt_tokens"]),
        text=row["completion"],
        completion=Completion(
            tokens=tuple(row["tokens"]),
            logprobs=tuple(array("f", row["logprobs"])),  # rounds to float32, as they were
            stop=StopReason(row["stop"]),
            version=row["version"],
        ),
        grade=Grade(
            reward=row["reward"],
            parts=row["parts"],
            correct=row["correct"],
            lenient=row["lenient"],
            strict=row["strict"],
            tagged=row["tagged"],
            extracted=Extracted(
                value=row["answer"],
                rule=Rule(row["rule"]),
                span=(row["span"][0], row["span"][1]) if row["span"] else None,
                ambiguous=row["ambiguous"],
                reason=row["reason"],
            ),
        ),
        advantage=row["advantage"],
        time=row["time"],
    )


def problem_of(row: dict[str, Any]) -> Problem:
    """The problem that a row is about."""
    return Problem(
        task=row["task"],
        key=row["key"],
        question=row["question"],
        answer=row["gold"],
        kind=AnswerKind(row["answer_kind"]),
        decimals=row["decimals"],
        level=row["level"],
        meta=row["meta"],
    )


def encode(rows: Iterable[dict[str, Any]]) -> bytes:
    r"""JSON lines in UTF-8. A lone surrogate, which UTF-8 cannot hold, becomes its JSON escape."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return text.encode("utf-8", "backslashreplace")


def decode(data: bytes) -> list[dict[str, Any]]:
    """The rows of a frame."""
    lines = data.decode("utf-8").split("\n")[:-1]  # splitlines would break at U+2028 too
    return [json.loads(line) for line in lines]
