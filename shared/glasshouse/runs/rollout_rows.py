"""Converts rollouts to rows of JSON values and back, bit for bit.

Texts are always stored in full. `prompt_tokens`, `tokens` and `logprobs` are null at steps that
`rollout_log.tokens_every` leaves out; `length` still has the number of tokens.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from typing import Any

from glasshouse.errors import RunDataError
from glasshouse.types import (
    AnswerKind,
    Completion,
    Extracted,
    ExtractionRule,
    Grade,
    Problem,
    Rollout,
    StopReason,
)


def rollout_to_row(rollout: Rollout, with_tokens: bool = True) -> dict[str, Any]:
    """Convert a rollout to a row. Nine digits represent a float32 log-probability exactly."""
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
        "terms": dict(g.terms),
        "correct": g.correct,
        "lenient": g.lenient,
        "strict": g.strict,
        "has_answer_tag": g.has_answer_tag,
        "answer": g.extracted.value,
        "rule": g.extracted.rule.value,
        "span": list(g.extracted.span) if g.extracted.span else None,
        "ambiguous": g.extracted.ambiguous,
        "reason": g.extracted.reason,
        "advantage": rollout.advantage,
        "version": c.version,
        "length": len(c.tokens),
        "prompt_tokens": list(rollout.prompt_tokens) if with_tokens else None,
        "tokens": list(c.tokens) if with_tokens else None,
        "logprobs": [float(f"{x:.9g}") for x in c.logprobs] if with_tokens else None,
        "time": rollout.time,
    }


def rollout_from_row(row: dict[str, Any]) -> Rollout:
    """Convert a row back to the rollout; raises if the row was logged without tokens."""
    if row["tokens"] is None:
        raise RunDataError(
            f"Step {row['step']}, group {row['group']}, sample {row['sample']} was logged without "
            "tokens, so the rollout cannot be restored. Train with rollout_log.tokens_every=1."
        )
    return Rollout(
        step=row["step"],
        split=row["split"],
        group=row["group"],
        sample=row["sample"],
        problem=problem_from_row(row),
        messages=row["messages"],
        prompt_text=row["prompt"],
        prompt_tokens=tuple(row["prompt_tokens"]),
        text=row["completion"],
        completion=Completion(
            tokens=tuple(row["tokens"]),
            logprobs=tuple(array("f", row["logprobs"])),  # back to float32
            stop=StopReason(row["stop"]),
            version=row["version"],
        ),
        grade=Grade(
            reward=row["reward"],
            terms=row["terms"],
            correct=row["correct"],
            lenient=row["lenient"],
            strict=row["strict"],
            has_answer_tag=row["has_answer_tag"],
            extracted=Extracted(
                value=row["answer"],
                rule=ExtractionRule(row["rule"]),
                span=(row["span"][0], row["span"][1]) if row["span"] else None,
                ambiguous=row["ambiguous"],
                reason=row["reason"],
            ),
        ),
        advantage=row["advantage"],
        time=row["time"],
    )


def problem_from_row(row: dict[str, Any]) -> Problem:
    """Build the problem of a row."""
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


def encode_rows(rows: Iterable[dict[str, Any]]) -> bytes:
    """Encode rows as UTF-8 JSON lines; a lone surrogate, invalid in UTF-8, becomes its JSON escape."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return text.encode("utf-8", "backslashreplace")


def decode_rows(data: bytes) -> list[dict[str, Any]]:
    """Decode JSON lines."""
    lines = data.decode("utf-8").split("\n")[:-1]  # str.splitlines also splits at U+2028
    return [json.loads(line) for line in lines]
