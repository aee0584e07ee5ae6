"""Filter, search and count rollouts: pure functions over the index.

A search looks for a text in the question and the completion of every rollout, without case. It
scans the texts of the index (`search.bin`) from one rollout to the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glasshouse.errors import ConfigError, did_you_mean
from glasshouse.view.rollout_index import ARMS, KINDS, RULES, STOPS, Records, RolloutIndex, hash_key
from glasshouse.view.suspicion import SUSPICIONS

HISTOGRAM_BINS = 40
MAX_PAGE = 200
BLOCK_ROWS = 256
"""Rollouts that a search looks at together."""
SORTS: Mapping[str, tuple[str, bool]] = {
    "step": ("step", False),
    "-step": ("step", True),
    "reward": ("reward", False),
    "-reward": ("reward", True),
    "length": ("length", False),
    "-length": ("length", True),
}
"""Orders of a list: the column, and whether it descends."""
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutQuery:
    """Which rollouts to list; an empty field selects all.

    Example: `parse_query({"kind": "train", "first": "10", "correct": "no", "text": "carry"})`
    """

    kind: str = ""
    split: str = ""
    first: int | None = None
    last: int | None = None
    correct: str = ""
    """`yes` or `no`."""
    rule: str = ""
    stop: str = ""
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
    sort: str = "step"
    offset: int = 0
    limit: int = 50


def parse_query(values: Mapping[str, str]) -> RolloutQuery:
    """Read a query from the parameters of a URL; raise ConfigError with the parameter's name."""
    fields: dict[str, Any] = {}
    for name, text in values.items():
        if name not in RolloutQuery.__dataclass_fields__:
            known = RolloutQuery.__dataclass_fields__
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
        "kind": KINDS, "rule": RULES, "stop": STOPS, "arm": ARMS, "sort": tuple(SORTS),
        "correct": ("", "yes", "no"), "suspicious": ("", "any", *SUSPICIONS),
    }  # fmt: skip
    for name, allowed in choices.items():
        value = getattr(query, name)
        if value and value not in allowed:
            raise ConfigError(f'{name} cannot be "{value[:40]}".{did_you_mean(value, allowed)}')
    return query


def select(
    index: RolloutIndex, query: RolloutQuery, records: Records, *, with_reward: bool = True
) -> Mask:
    """Which of `records` match; `with_reward=False` leaves out the range of rewards, for the
    histogram."""
    mask = np.ones(len(records), dtype=bool)
    if query.kind:
        mask &= records["kind"] == KINDS.index(query.kind)
    if query.split:
        code = index.splits.index(query.split) if query.split in index.splits else 255
        mask &= records["split"] == code
    if query.first is not None:
        mask &= records["step"] >= query.first
    if query.last is not None:
        mask &= records["step"] <= query.last
    if query.correct:
        mask &= records["correct"] == (1 if query.correct == "yes" else 0)
    if query.rule:
        mask &= records["rule"] == RULES.index(query.rule)
    if query.stop:
        mask &= records["stop"] == STOPS.index(query.stop)
    if query.arm:
        mask &= records["arm"] == ARMS.index(query.arm)
    if query.group is not None:
        mask &= records["group"] == query.group
    if query.key:
        mask &= records["key"] == hash_key(query.key)
    if query.flagged:
        mask &= _select_verdict(index, records, query.flagged)
    if query.disagree:
        mask &= (records["flagged"] != 0) & (records["flagged"] != records["scored"])
    if query.suspicious:
        bits = (1 << len(SUSPICIONS)) - 1
        if query.suspicious != "any":
            bits = 1 << list(SUSPICIONS).index(query.suspicious)
        mask &= (records["suspicion"] & bits) != 0
    if query.text:
        mask &= search_text(index, query.text, records, mask)
    if with_reward and query.min_reward is not None:
        mask &= records["reward"] >= query.min_reward - 1e-6
    if with_reward and query.max_reward is not None:
        mask &= records["reward"] <= query.max_reward + 1e-6
    return mask


def _select_verdict(index: RolloutIndex, records: Records, verdict: str) -> Mask:
    name = verdict.removeprefix("!")
    if name not in index.monitor_names:
        return np.zeros(len(records), dtype=bool)
    bit = 1 << index.monitor_names.index(name)
    is_scored = (records["scored"] & bit) != 0
    is_flagged = (records["flagged"] & bit) != 0
    return is_scored & (~is_flagged if verdict.startswith("!") else is_flagged)


def search_text(index: RolloutIndex, text: str, records: Records, candidates: Mask) -> Mask:
    """Which rollouts contain the text; only the range of the candidates is scanned."""
    needle = text.replace("\0", " ").lower().encode("utf-8", "replace")
    found = np.zeros(len(candidates), dtype=bool)
    places = np.flatnonzero(candidates)
    if not len(places):
        return found
    first, last = int(places[0]), int(places[-1])
    ends = records["search_end"]
    start = int(ends[first - 1]) if first else 0
    data = index.search_bytes()
    for block in range(first, last + 1, BLOCK_ROWS):
        stop = min(block + BLOCK_ROWS, last + 1)
        end = int(ends[stop - 1])
        # One search skips a block without the text; else its rows are tested one by one, so that a
        # text that is everywhere is quick too.
        if data.find(needle, start, end) >= 0:
            found[block:stop] = [needle in text for text in data[start : end - 1].split(b"\0")]
        start = end
    return found


def list_rollouts(index: RolloutIndex, query: RolloutQuery) -> dict[str, Any]:
    """One page of the matching rollouts, with counts and the histogram of their rewards."""
    records = index.records
    before_reward = select(index, query, records, with_reward=False)
    matching = before_reward
    if query.min_reward is not None:
        matching = matching & (records["reward"] >= query.min_reward - 1e-6)
    if query.max_reward is not None:
        matching = matching & (records["reward"] <= query.max_reward + 1e-6)
    places = np.flatnonzero(matching)
    column, descends = SORTS[query.sort]
    keys = records[column][places]
    order = np.argsort(-keys if descends else keys, kind="stable")
    limit = max(1, min(query.limit, MAX_PAGE))
    page = places[order][max(0, query.offset) : max(0, query.offset) + limit]
    return {
        "total": len(records),
        "matching": len(places),
        "rows": [describe_record(index, int(number)) for number in page],
        "histogram": reward_histogram(records["reward"], before_reward, matching),
        "facets": count_facets(index, records if matching.all() else records[matching]),
        "monitors": index.monitor_names,
        "indexed_frames": len(index.frames),
        "frames": index.total_frames,
        "damage": index.damage,
    }


def describe_record(index: RolloutIndex, number: int) -> dict[str, Any]:
    """What a list shows of one rollout."""
    record = index.records[number]
    kind = KINDS[record["kind"]]
    flagged, scored = int(record["flagged"]), int(record["scored"])
    return {
        "ref": f"{kind}.{record['step']}.{record['row']}",
        "kind": kind,
        "step": int(record["step"]),
        "group": int(record["group"]),
        "sample": int(record["sample"]),
        "split": index.splits[record["split"]],
        "reward": _number(record["reward"]),
        "advantage": _number(record["advantage"]),
        "correct": None if record["correct"] < 0 else bool(record["correct"]),
        "rule": RULES[record["rule"]],
        "stop": STOPS[record["stop"]],
        "arm": ARMS[record["arm"]],
        "length": int(record["length"]) if record["length"] >= 0 else None,
        "flagged": [n for bit, n in enumerate(index.monitor_names) if flagged >> bit & 1],
        "passed": [
            n for bit, n in enumerate(index.monitor_names) if (scored & ~flagged) >> bit & 1
        ],
        "suspicions": [
            name for bit, name in enumerate(SUSPICIONS) if int(record["suspicion"]) >> bit & 1
        ],
        **index.preview(number),
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

    def count(column: str, names: Sequence[str]) -> dict[str, int]:
        counts = np.bincount(records[column], minlength=len(names))
        return {name: int(n) for name, n in zip(names, counts, strict=False) if n and name}

    def bits(column: NDArray[Any], names: Sequence[str]) -> dict[str, int]:
        return {name: int(np.count_nonzero(column >> bit & 1)) for bit, name in enumerate(names)}

    return {
        "kind": count("kind", KINDS),
        "split": count("split", index.splits),
        "rule": count("rule", RULES),
        "stop": count("stop", STOPS),
        "arm": count("arm", ARMS),
        "correct": {
            "yes": int(np.count_nonzero(records["correct"] == 1)),
            "no": int(np.count_nonzero(records["correct"] == 0)),
        },
        "flagged": bits(records["flagged"], index.monitor_names),
        "passed": bits(records["scored"] & ~records["flagged"], index.monitor_names),
        "suspicious": bits(records["suspicion"], list(SUSPICIONS)),
    }


def _number(value: Any) -> float | None:
    return None if np.isnan(value) else round(float(value), 6)
