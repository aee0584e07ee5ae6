"""One rollout in full, its group, and one problem across checkpoints."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glasshouse.checksums import verify_file
from glasshouse.errors import RunError
from glasshouse.monitors.base import Monitor
from glasshouse.tasks.answers.extraction import split_completion
from glasshouse.view.rollout_index import Frame, RolloutIndex
from glasshouse.view.rollout_query import RolloutQuery, describe_record, select
from glasshouse.view.suspicion import SUSPICIONS, find_suspicions
from glasshouse.view.text_monitors import score_rows

Row = dict[str, Any]
CACHED_FRAMES = 4
MAX_TEXT = 200_000
"""Characters of a text that are sent at once; the page says how many are left out."""
MAX_PROBLEM_ROLLOUTS = 400
MAX_PROBLEMS = 500
MAX_EXAMPLES = 4
"""Rollouts that are shown of each suspicion."""


class FrameCache:
    """The rows of the frames that were read last: a page shows many rollouts of one step.

    Example: `cache.rows(frame)[7]["completion"]`
    """

    def __init__(self, size: int = CACHED_FRAMES) -> None:
        self._size = size
        self._frames: OrderedDict[str, list[Row]] = OrderedDict()
        self._lock = threading.Lock()

    def rows(self, frame: Frame) -> list[Row]:
        with self._lock:
            if frame.identity not in self._frames:
                self._frames[frame.identity] = frame.read()
                while len(self._frames) > self._size:
                    self._frames.popitem(last=False)
            self._frames.move_to_end(frame.identity)
            return self._frames[frame.identity]


def parse_ref(ref: str) -> tuple[str, int, int]:
    """Split a reference such as `train.12.7`: kind, step, line in the frame."""
    kind, _, rest = ref.partition(".")
    step, _, row = rest.partition(".")
    if not (step.isdecimal() and row.isdecimal() and len(rest) < 30):
        raise RunError(f'"{ref[:60]}" is not a rollout. A reference looks like train.12.7.')
    return kind, int(step), int(row)


def load_rollout(frames: Sequence[Frame], cache: FrameCache, ref: str) -> Row:
    """The row that a reference names; raise if there is none."""
    kind, step, number = parse_ref(ref)
    for frame in frames:
        if frame.kind == kind and frame.step == step:
            rows = cache.rows(frame)
            if number < len(rows):
                return {"ref": ref, "kind": kind, **rows[number]}
    raise RunError(f"This run has no rollout {ref}. It may have been removed by a resume.")


def describe_rollout(monitors: Sequence[Monitor], row: Mapping[str, Any]) -> Row:
    """A rollout with its CoT and answer told apart, monitor scores and suspicions."""
    text = str(row["completion"])
    verdicts = row.get("verdicts")
    if verdicts is None:
        verdicts = score_rows(monitors, [row])[0]
    found = find_suspicions(row, verdicts)
    keys = (
        "ref", "kind", "step", "split", "group", "sample", "task", "key", "level", "question", "gold",
        "messages", "stop", "reward", "terms", "correct", "lenient", "strict", "answer", "rule",
        "span", "ambiguous", "reason", "advantage", "version", "length", "time", "behaviour", "subject",
    )  # fmt: skip
    return {
        **{key: row.get(key) for key in keys},
        "prompt": str(row["prompt"])[:MAX_TEXT],
        "completion": text[:MAX_TEXT],
        "characters": len(text),
        "answer_start": split_completion(text).answer_start,
        "verdicts": verdicts,
        "suspicions": [
            {"id": id, "label": SUSPICIONS[id], "reason": reason} for id, reason in found.items()
        ],
        "has_tokens": row.get("tokens") is not None,
    }


def load_group(
    index: RolloutIndex, frames: Sequence[Frame], cache: FrameCache, ref: str
) -> list[Row]:
    """Every rollout of the group of `ref`, in full."""
    chosen = load_rollout(frames, cache, ref)
    kind, step, _ = parse_ref(ref)
    for frame in frames:
        if frame.kind == kind and frame.step == step:
            return [
                describe_rollout(
                    index.monitors, {"ref": f"{kind}.{step}.{number}", "kind": kind, **row}
                )
                for number, row in enumerate(cache.rows(frame))
                if (row["split"], row["group"]) == (chosen["split"], chosen["group"])
            ]
    return []


def list_suspicious(index: RolloutIndex, frames: Sequence[Frame], cache: FrameCache) -> list[Row]:
    """Each suspicion with the number of its rollouts and the newest of them in full."""
    groups, records = [], index.records
    for id, label in SUSPICIONS.items():
        places = np.flatnonzero(select(index, RolloutQuery(suspicious=id), records))
        newest = places[np.argsort(-records["step"][places], kind="stable")]
        examples = []
        for number in newest[:MAX_EXAMPLES]:
            ref = describe_record(index, int(number))["ref"]
            examples.append(describe_rollout(index.monitors, load_rollout(frames, cache, ref)))
        groups.append({"id": id, "label": label, "count": len(places), "examples": examples})
    return groups


def list_problems(index: RolloutIndex) -> list[Row]:
    """Held-out problems that were answered at two steps or more, with how often each was correct."""
    records = index.records
    held_out = np.flatnonzero((records["kind"] == 1) | (records["kind"] == 3))
    if not len(held_out):
        return []
    keys, first, inverse = np.unique(
        records["key"][held_out], return_index=True, return_inverse=True
    )
    steps = records["step"][held_out]
    low = np.full(len(keys), np.iinfo(np.int64).max)
    high = np.full(len(keys), -1)
    np.minimum.at(low, inverse, steps)
    np.maximum.at(high, inverse, steps)
    is_right = records["correct"][held_out] == 1
    right_first = np.bincount(inverse, (steps == low[inverse]) & is_right)
    count_first = np.bincount(inverse, steps == low[inverse])
    right_last = np.bincount(inverse, (steps == high[inverse]) & is_right)
    count_last = np.bincount(inverse, steps == high[inverse])
    problems = []
    order = np.argsort(held_out[first], kind="stable")
    for place in order:
        if high[place] > low[place]:
            preview = index.preview(int(held_out[first[place]]))
            problems.append(
                {
                    "key": preview["key"],
                    "question": preview["question"],
                    "before": float(right_first[place] / count_first[place]),
                    "after": float(right_last[place] / count_last[place]),
                }
            )
        if len(problems) >= MAX_PROBLEMS:
            break
    return problems


def load_problem(
    index: RolloutIndex, frames: Sequence[Frame], cache: FrameCache, key: str
) -> list[Row]:
    """Every held-out rollout of one problem, in full, by step."""
    records = index.records
    mask = select(index, RolloutQuery(key=key), records)
    mask &= (records["kind"] == 1) | (records["kind"] == 3)
    rollouts = []
    for number in np.flatnonzero(mask)[:MAX_PROBLEM_ROLLOUTS]:
        record = describe_record(index, int(number))
        row = load_rollout(frames, cache, record["ref"])
        if str(row["key"]) == key:
            rollouts.append(describe_rollout(index.monitors, row))
    return sorted(rollouts, key=lambda row: (row["step"], str(row["split"]), row["sample"]))


# --- tokens ----------------------------------------------------------------------------------


def load_tokens(run: Path, row: Mapping[str, Any]) -> Row:
    """The completion's tokens as pieces of text with their log-probabilities; raise if they were
    not logged or no checkpoint with a tokenizer is left."""
    if row.get("tokens") is None:
        raise RunError(
            "This rollout was logged without tokens (rollout_log.tokens_every, or a rollout of "
            "glasshouse monitor)."
        )
    tokenizer = _load_tokenizer(run)
    tokens, logprobs = list(row["tokens"]), list(row["logprobs"])
    pieces, previous = [], ""
    for count in range(1, len(tokens) + 1):
        start = max(0, count - 64)  # a window: decoding is local
        if start:
            before = tokenizer.decode(tokens[start : count - 1], skip_special_tokens=False)
            text = tokenizer.decode(tokens[start:count], skip_special_tokens=False)
            pieces.append(text[len(before) :])
        else:
            text = tokenizer.decode(tokens[:count], skip_special_tokens=False)
            pieces.append(text[len(previous) :])
            previous = text
    return {
        "pieces": pieces,
        "tokens": tokens,
        "logprobs": logprobs,
        "advantage": row["advantage"],
    }


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
