"""Filter, search and count rollouts: pure functions over the index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glasshouse.errors import ConfigError, did_you_mean
from glasshouse.view.rollout_index import (
    ARMS,
    FINISH_REASONS,
    NAMED,
    PREVIEW_CHARACTERS,
    RULES,
    Records,
    RolloutIndex,
    encode_text,
    hash_key,
)
from glasshouse.view.suspicion import SUSPICIONS

HISTOGRAM_BINS = 40
MAX_PAGE = 200
SORTS = ("step", "reward", "length")
"""Columns by which a list can be sorted; with a minus it descends."""
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutQuery:
    """Which rollouts to list; an empty field selects all.

    Example: `parse_query({"split": "train", "first": "10", "correct": "no", "text": "carry"})`
    """

    split: str = ""
    """`validation` also selects `validation/greedy` and every other part of it."""
    first: int | None = None
    last: int | None = None
    correct: str = ""
    """`yes` or `no`."""
    rule: str = ""
    finish_reason: str = ""
    arm: str = ""
    """`planted` or `control`."""
    min_reward: float | None = None
    max_reward: float | None = None
    flagged: str = ""
    """The name of a monitor that flagged it; `!name`: that did not."""
    disagree: bool = False
    """Some monitors flagged it and others did not."""
    suspicious: str = ""
    """A key of `SUSPICIONS`, or `any`."""
    group: int | None = None
    key: str = ""
    """The key of a problem."""
    text: str = ""
    """Is contained in the question or the completion, without case."""
    sort: str = "step"
    offset: int = 0
    limit: int = 50


def parse_query(values: Mapping[str, str]) -> RolloutQuery:
    """Read a query from the parameters of a URL; raise ConfigError with the parameter's name."""
    fields: dict[str, Any] = {}
    known = RolloutQuery.__dataclass_fields__
    for name, text in values.items():
        if name not in known:
            raise ConfigError(f'"{name}" is not a filter.{did_you_mean(name, known)}')
        try:
            if name in ("first", "last", "group", "offset", "limit"):
                fields[name] = int(text)
            elif name in ("min_reward", "max_reward"):
                fields[name] = float(text)
            elif name == "disagree":
                fields[name] = text in ("1", "yes", "true")
            else:
                fields[name] = text
        except ValueError:
            raise ConfigError(f"{name} must be a number, not {text[:40]!r}.") from None
    query = RolloutQuery(**fields)
    choices = {
        "rule": RULES, "finish_reason": FINISH_REASONS, "arm": ARMS, "correct": ("yes", "no"),
        "suspicious": ("any", *SUSPICIONS), "sort": (*SORTS, *(f"-{name}" for name in SORTS)),
    }  # fmt: skip
    for name, allowed in choices.items():
        value = getattr(query, name)
        if value and value not in allowed:
            raise ConfigError(f'{name} cannot be "{value[:40]}".{did_you_mean(value, allowed)}')
    return query


def select(index: RolloutIndex, query: RolloutQuery, records: Records) -> Mask:
    """Which of `records` match, whatever their reward."""
    mask = np.ones(len(records), dtype=bool)
    for column in NAMED:
        if name := getattr(query, column):
            numbers = [
                n for n, s in enumerate(index.names[column]) if f"{s}/".startswith(f"{name}/")
            ]
            mask &= np.isin(records[column], numbers)
    if query.first is not None:
        mask &= records["step"] >= query.first
    if query.last is not None:
        mask &= records["step"] <= query.last
    if query.correct:
        mask &= records["correct"] == (1 if query.correct == "yes" else 0)
    if query.group is not None:
        mask &= records["group"] == query.group
    if query.key:
        mask &= records["key"] == hash_key(query.key[:PREVIEW_CHARACTERS])
    if name := query.flagged.removeprefix("!"):
        names = index.monitor_names
        bit = 1 << names.index(name) if name in names else 0
        flagged = records["flagged"]
        mask &= (records["scored"] & ~flagged if query.flagged[0] == "!" else flagged) & bit != 0
    if query.disagree:
        mask &= (records["flagged"] != 0) & (records["flagged"] != records["scored"])
    if query.suspicious == "any":
        mask &= records["suspicion"] != 0
    elif query.suspicious:
        mask &= records["suspicion"] & (1 << list(SUSPICIONS).index(query.suspicious)) != 0
    if query.text:
        mask &= search_text(index, query.text, records, mask)
    return mask


def select_rewards(query: RolloutQuery, records: Records) -> Mask:
    """Which of `records` have a reward in the range of the query."""
    mask = np.ones(len(records), dtype=bool)
    if query.min_reward is not None:
        mask &= records["reward"] >= query.min_reward - 1e-6
    if query.max_reward is not None:
        mask &= records["reward"] <= query.max_reward + 1e-6
    return mask


def search_text(index: RolloutIndex, text: str, records: Records, candidates: Mask) -> Mask:
    """Which rollouts contain the text; only the frames from the first candidate to the last are read."""
    found = np.zeros(len(records), dtype=bool)
    frames = records["frame"]
    candidate_frames = frames[candidates]
    if not len(candidate_frames):
        return found
    needle = encode_text(text)
    ids, places = np.unique(frames, return_index=True)
    starts = dict(zip(ids.tolist(), places.tolist(), strict=True))
    for id, texts in index.texts(int(candidate_frames[0]), int(candidate_frames[-1])):
        if needle in texts:  # one search skips most frames of a rare text
            matches = [needle in text for text in texts.split(b"\0")]
            found[starts[id] : starts[id] + len(matches)] = matches
    return found


def list_rollouts(index: RolloutIndex, query: RolloutQuery) -> dict[str, Any]:
    """One page of the matching rollouts, with counts and the histogram of their rewards."""
    records = index.records
    with_any_reward = select(index, query, records)
    matching = with_any_reward & select_rewards(query, records)
    places = np.flatnonzero(matching)
    keys = records[query.sort.removeprefix("-")][places]
    order = np.argsort(-keys if query.sort.startswith("-") else keys, kind="stable")
    start = max(0, query.offset)
    page = places[order][start : start + max(1, min(query.limit, MAX_PAGE))]
    return {
        "total": len(records),
        "matching": len(places),
        "rows": [index.row(record) for record in records[page]],
        "histogram": reward_histogram(records["reward"], with_any_reward, matching),
        "facets": count_facets(index, records if matching.all() else records[matching]),
        "monitors": index.monitor_names,
        "indexed_frames": len(index.frames),
        "frames": index.total_frames,
        "damage": index.damage,
    }


def reward_histogram(rewards: NDArray[Any], before: Mask, matching: Mask) -> dict[str, Any]:
    """Counts of all rewards that the other filters select, and of those in the selected range."""
    known = before & ~np.isnan(rewards)
    if not known.any():
        return {"edges": [], "all": [], "selected": []}
    values = rewards[known]
    low, high = float(values.min()), float(values.max())
    if low == high:
        low, high = low - 0.5, high + 0.5
    counts, edges = np.histogram(values, HISTOGRAM_BINS, (low, high))
    chosen, _ = np.histogram(rewards[matching & known], HISTOGRAM_BINS, (low, high))
    return {"edges": edges.tolist(), "all": counts.tolist(), "selected": chosen.tolist()}


def count_facets(index: RolloutIndex, records: Records) -> dict[str, dict[str, int]]:
    """How many of the matching rollouts have each value of each filter."""

    def count_names(column: str) -> dict[str, int]:
        counts = np.bincount(records[column], minlength=1)
        return {
            name: int(n) for name, n in zip(index.names[column], counts, strict=False) if n and name
        }

    def count_bits(column: NDArray[Any], names: Sequence[str]) -> dict[str, int]:
        return {name: int(np.count_nonzero(column >> bit & 1)) for bit, name in enumerate(names)}

    correct = {"yes": 1, "no": 0}
    return {
        **{column: count_names(column) for column in NAMED},
        "split": count_names("kind") | count_names("split"),
        "correct": {n: int(np.count_nonzero(records["correct"] == v)) for n, v in correct.items()},
        "flagged": count_bits(records["flagged"], index.monitor_names),
        "passed": count_bits(records["scored"] & ~records["flagged"], index.monitor_names),
        "suspicious": count_bits(records["suspicion"], list(SUSPICIONS)),
    }
