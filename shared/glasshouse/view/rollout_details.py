"""Rollouts in full: one, its group, a problem across checkpoints, suspicious ones, those worth reading."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glasshouse.checksums import verify_file
from glasshouse.errors import RunDataError, RunError
from glasshouse.monitors.base import Monitor
from glasshouse.runs.rows import Row
from glasshouse.tasks.answers.extraction import split_completion
from glasshouse.view.rollout_frames import KINDS, RolloutLog, parse_ref
from glasshouse.view.rollout_index import PREVIEW_CHARACTERS, Records, RolloutIndex
from glasshouse.view.rollout_query import Mask, RolloutQuery, select
from glasshouse.view.suspicion import SUSPICIONS, find_suspicions
from glasshouse.view.text_monitors import score_rows

MAX_TEXT = 200_000
"""Characters of a text that are sent at once; the page says how many are left out."""
MAX_PROBLEM_ROLLOUTS = 400
MAX_PROBLEMS = 500
MAX_EXAMPLES = 4
"""Rollouts that are shown of each suspicion."""
LARGE_KEYS = ("tokens", "logprobs", "prompt_tokens", "activations")
"""Fields of a rollout that the page does not show."""


def describe_rollout(monitors: Sequence[Monitor], row: Mapping[str, Any]) -> Row:
    """A rollout with its CoT and answer told apart, monitor scores and suspicions."""
    text = row["text"]
    verdicts = row.get("verdicts")
    if verdicts is None:
        verdicts = score_rows(monitors, [row])[0]
    return {
        **row,
        **dict.fromkeys(LARGE_KEYS),
        "prompt": row["prompt"][:MAX_TEXT],
        "text": text[:MAX_TEXT],
        "characters": len(text),
        "answer_start": split_completion(text).answer_start,
        "verdicts": verdicts,
        "suspicions": [
            {"id": id, "label": SUSPICIONS[id], "reason": reason}
            for id, reason in find_suspicions(row, verdicts).items()
        ],
        "has_tokens": row["tokens"] is not None,
    }


def load_group(monitors: Sequence[Monitor], log: RolloutLog, ref: str) -> list[Row]:
    """Every rollout of the group of `ref`, in full."""
    chosen = log.row(ref)
    kind, step, _ = parse_ref(ref)
    return [
        describe_rollout(monitors, row)
        for row in log.rows(kind, step)
        if (row["split"], row["group"]) == (chosen["split"], chosen["group"])
    ]


# --- over the whole run ----------------------------------------------------------------------


def list_suspicious(index: RolloutIndex, log: RolloutLog) -> list[Row]:
    """Each suspicion with the number of its rollouts and the newest of them in full."""
    groups, records = [], index.records
    for id, label in SUSPICIONS.items():
        found = records[select(index, RolloutQuery(suspicious=id), records)]
        newest = found[np.argsort(-found["step"], kind="stable")][:MAX_EXAMPLES]
        examples = [
            describe_rollout(index.monitors, log.row(ref_of(index, record))) for record in newest
        ]
        groups.append({"id": id, "label": label, "count": len(found), "examples": examples})
    return groups


def ref_of(index: RolloutIndex, record: np.void) -> str:
    return f"{index.names['kind'][record['kind']]}.{record['step']}.{record['row']}"


def is_validation(records: Records) -> Mask:
    return np.isin(records["kind"], (KINDS.index("validation"), KINDS.index("monitored")))


def list_problems(index: RolloutIndex) -> list[Row]:
    """Held-out problems that were answered at two steps or more, with how often each was correct."""
    records = index.records
    records = records[is_validation(records)]
    _, first, numbers = np.unique(records["key"], return_index=True, return_inverse=True)
    steps = records["step"]
    low, high = steps[first], steps[first]  # copies
    np.minimum.at(low, numbers, steps)
    np.maximum.at(high, numbers, steps)

    def share_correct(step: Any) -> Any:
        is_there = steps == step[numbers]
        correct = np.bincount(numbers, is_there & (records["correct"] == 1))
        return correct / np.bincount(numbers, is_there)

    before, after = share_correct(low), share_correct(high)
    order = [place for place in np.argsort(first, kind="stable") if high[place] > low[place]]
    rows = [(place, index.row(records[first[place]])) for place in order[:MAX_PROBLEMS]]
    return [
        {"key": row["key"], "question": row["question"],
         "before": float(before[place]), "after": float(after[place])}
        for place, row in rows
    ]  # fmt: skip


def load_problem(index: RolloutIndex, log: RolloutLog, key: str) -> list[Row]:
    """Every held-out rollout of one problem, in full, by step."""
    records = index.records
    found = records[select(index, RolloutQuery(key=key), records) & is_validation(records)]
    rows = [log.row(ref_of(index, record)) for record in found[:MAX_PROBLEM_ROLLOUTS]]
    rollouts = [
        describe_rollout(index.monitors, row)
        for row in rows
        if str(row["key"])[:PREVIEW_CHARACTERS] == key[:PREVIEW_CHARACTERS]
    ]
    return sorted(rollouts, key=lambda row: (row["step"], str(row["split"]), row["sample"]))


# --- worth reading ---------------------------------------------------------------------------


def select_highlights(monitors: Sequence[Monitor], log: RolloutLog) -> list[Row]:
    """Three rollouts, each with the reason why it is shown: what the base model wrote to a typical
    problem, what the trained model writes to it, and one that deserves a closer look. They are of the
    last evaluation, or of the last training step if there is none."""
    for kind in ("validation", "train"):
        steps = sorted({frame.step for frame in log.frames if frame.kind == kind}, reverse=True)
        last = next(filter(None, (_readable_rows(log, kind, step) for step in steps)), None)
        if last:
            base = _readable_rows(log, kind, 0) if steps[0] else []
            return [
                {"reason": reason, "rollout": describe_rollout(monitors, row)}
                for reason, row in _choose(last, base, monitors)
            ]
    return []


def _readable_rows(log: RolloutLog, kind: str, step: int) -> list[Row]:
    try:
        return log.rows(kind, step)
    except RunDataError:
        return []


def _choose(last: list[Row], base: list[Row], monitors: Sequence[Monitor]) -> list[tuple[str, Row]]:
    median = statistics.median(_length(row) for row in last)
    most_are_correct = statistics.mode(bool(row["correct"]) for row in last)
    typical = min(
        (row for row in last if bool(row["correct"]) is most_are_correct),
        key=lambda row: (abs(_length(row) - median), str(row["key"]), row["sample"]),
    )
    same = [row for row in base if (row["key"], row["split"]) == (typical["key"], typical["split"])]
    same.sort(key=lambda row: row["sample"] != typical["sample"])
    outcome = "correct" if most_are_correct else "wrong"
    chosen = [("Before training: the base model on the same problem", row) for row in same[:1]]
    chosen.append(
        (f"After training: of median length ({median:g} tokens), {outcome} like most", typical)
    )
    others = [row for row in last if row is not typical]
    for row, scores in zip(others, score_rows(monitors, others), strict=True):
        if reasons := find_suspicions(row, scores):
            return [*chosen, (f"Worth a closer look: {SUSPICIONS[next(iter(reasons))]}", row)]
    if others:
        worst = min(others, key=lambda row: (row["reward"] or 0, -_length(row), str(row["key"])))
        chosen.append(("After training: the lowest reward, the longest of those", worst))
    if len(chosen) < 3 and len(others) > 1:
        best = max(others, key=lambda row: (row["reward"] or 0, _length(row), str(row["key"])))
        chosen.append(("After training: the highest reward, the longest of those", best))
    return chosen


def _length(row: Row) -> int:
    return int(row["length"] or 0)


# --- tokens ----------------------------------------------------------------------------------


def load_tokens(run: Path, row: Mapping[str, Any]) -> Row:
    """The completion's tokens as pieces of text with their log-probabilities; raise if they were
    not logged or no checkpoint with a tokenizer is left."""
    if row["tokens"] is None:
        raise RunError(
            "This rollout was logged without tokens (rollout_log.tokens_every, or a rollout of "
            "glasshouse monitor)."
        )
    tokenizer = _load_tokenizer(run)
    tokens, pieces = list(row["tokens"]), []
    for end in range(1, len(tokens) + 1):
        start = max(0, end - 64)  # a window: decoding is local
        before = tokenizer.decode(tokens[start : end - 1], skip_special_tokens=False)
        text = tokenizer.decode(tokens[start:end], skip_special_tokens=False)
        pieces.append(text[len(before) :])
    return {"pieces": pieces, "logprobs": list(row["logprobs"]), "advantage": row["advantage"]}


def _load_tokenizer(run: Path) -> Any:
    """The tokenizer of the newest checkpoint whose tokenizer.json matches its checksum."""
    from tokenizers import Tokenizer

    for folder in sorted((run / "checkpoints").glob("step-*"), reverse=True):
        if verify_file(folder, "tokenizer.json"):
            continue
        try:
            return Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception:  # tokenizers raises plain exceptions; another checkpoint may be readable
            continue
    raise RunError(
        "No checkpoint of this run has an intact tokenizer, so its tokens cannot be shown as text."
    )
