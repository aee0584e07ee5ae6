"""Every rollout of a run in a SQLite database, so that 256,000 of them can be filtered and searched at once.

The database is temporary: SQLite deletes its file when the server ends.

    frames     the rows that the run logged together: of one step, or of one monitored model
    rollouts   numbers that filters compare and lists sort by
    facets     each combination of the values in `FACETS` once, as JSON: rollouts have few of them
    labels     what a person said about a text (runs/labels.py)
    texts      what a search reads, apart from the rest so that it reads little
    details    everything else that the page shows

A frame is verified by its sha256 before it is indexed. Frames that a run no longer has, since it was
resumed from an older checkpoint, are deleted.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from glasshouse.errors import ConfigError, GlasshouseError, did_you_mean
from glasshouse.monitors.base import SCOPE_PARTS, Monitor
from glasshouse.monitors.rules import RuleMonitor
from glasshouse.runs.foreign_formats import parts_of
from glasshouse.runs.labels import rollout_key
from glasshouse.runs.monitor_results import read_monitored_rollouts
from glasshouse.runs.rollout_log import LOG, scan_log
from glasshouse.runs.rows import Row, kind_of
from glasshouse.tasks.answers import split_completion
from glasshouse.view.run_measures import finite
from glasshouse.view.text_monitors import Verdict, score_rows

KINDS = ("validation", "monitored", "train", "discarded")
"""In the order in which they are indexed: there are few held-out rollouts, and every page shows some."""
SHOWN = (
    "step", "split", "arm", "checkpoint", "group", "sample", "key", "gold_answer", "length", "finish_reason", "reward",
    "terms", "correct", "model_answer", "rule", "reason", "behaviour", "advantage",
)  # fmt: skip
"""Fields of a rollout that the page shows, besides its prompt, question and text."""
PREVIEW_CHARACTERS = 240
MAX_TEXT = 200_000
"""Characters of a text that are sent at once; the page says how many are left out."""
MAX_PAGE = 400
MAX_PROBLEMS = 500
FACETS = ("split", "checkpoint", "correct", "rule", "finish_reason", "arm", "flagged")
"""Filters whose values are counted: `find_facets` says which values a rollout has."""
LABEL = "COALESCE((SELECT value FROM labels WHERE labels.key = text_key), 'none')"
FILTERS = {
    **{
        name: f"facets IN (SELECT facets.id FROM facets, json_each(content, '$.{name}') WHERE value = :{name})"
        for name in FACETS
    },
    "ref": "ref = :ref",
    "first": "step >= :first",
    "last": "step <= :last",
    "group": '"group" = :group',
    "key": "key = :key",
    "held_out": "kind IN ('validation', 'monitored', 'file')",
    "label": f"{LABEL} = :label",
    "min_reward": "reward >= :min_reward - 1e-6",
    "max_reward": "reward <= :max_reward + 1e-6",
    "text": r"(SELECT question LIKE :text ESCAPE '\' OR text LIKE :text ESCAPE '\' FROM texts "
    "WHERE texts.id = rollouts.id)",
}
"""The condition of each filter. A text is found in question and completion, ASCII letters in any case."""
NUMBERS = ("first", "last", "group", "min_reward", "max_reward", "offset", "limit")
SORTS = ("step", "reward", "length")
"""Columns by which a list can be sorted; with a minus it descends."""
SCHEMA = """
PRAGMA page_size = 32768;
CREATE TABLE frames (id INTEGER PRIMARY KEY AUTOINCREMENT, identity TEXT, damage TEXT);
CREATE TABLE facets (id INTEGER PRIMARY KEY, content TEXT);
CREATE TABLE labels (key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE rollouts (
    id INTEGER PRIMARY KEY, frame INTEGER, ref TEXT, facets INTEGER, text_key TEXT, kind TEXT, step INTEGER,
    "group" INTEGER, length INTEGER, reward REAL, correct INTEGER, key TEXT
);
CREATE INDEX refs ON rollouts (ref);
CREATE INDEX problems ON rollouts (key);
CREATE TABLE texts (id INTEGER PRIMARY KEY, question TEXT, text TEXT);
CREATE TABLE details (id INTEGER PRIMARY KEY, prompt TEXT, fields TEXT);
"""


@dataclass(frozen=True, slots=True)
class Frame:
    """The rows of one step, of one monitored model, or some of a file."""

    name: str
    kind: str
    step: int | None
    """None: rows of a file may have any."""
    sha256: str
    read: Callable[[], list[Row]]
    """Returns its verified rows; raises RunDataError if it is damaged."""
    expected_rows: int

    @property
    def identity(self) -> str:
        return f"{self.name} {self.sha256}"


def list_frames(run: Path, monitor: Mapping[str, Any] | None) -> list[Frame]:
    """Every frame of the rollout log, and of `monitor`, the run's monitor results; held-out ones first."""
    frames = [
        Frame(
            f"{frame.kind}.{frame.step}",
            frame.kind,
            frame.step,
            frame.sha256,
            frame.read,
            frame.rows,
        )
        for frame in scan_log(run / "results" / LOG).frames
        if frame.kind in KINDS
    ]
    for checkpoint in (monitor or {}).get("checkpoints", []):
        read = partial(read_monitored_rollouts, run / "results", checkpoint)
        step, sha256 = checkpoint["step"], checkpoint["rows"]["sha256"]
        frames.append(Frame(f"monitored.{step}", "monitored", step, sha256, read, 0))
    return sorted(frames, key=lambda frame: KINDS.index(frame.kind))


class RolloutIndex:
    """The index of one run.

    Example:
        index = RolloutIndex(monitors)
        index.set_frames(list_frames(run, monitor))
        for frame in index.missing(): index.add(frame)
        index.search(parse_query({"correct": "no", "text": "carry"}))["rows"]
    """

    def __init__(self, monitors: Sequence[Monitor]) -> None:
        self.monitors = list(monitors)
        self.frames: dict[str, str] = {}
        """Identities of the indexed frames, and how each is damaged."""
        self.has_labels = False
        self._wanted: dict[str, Frame] = {}
        self.database = sqlite3.connect("", check_same_thread=False)
        self.database.executescript(SCHEMA)

    # --- growing ---------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """Does the index hold exactly the frames of the run?"""
        return self.frames.keys() == self._wanted.keys()

    def set_frames(self, frames: Sequence[Frame]) -> None:
        """Say which frames the run has now; others are deleted."""
        self._wanted = {frame.identity: frame for frame in frames}
        gone = [identity for identity in self.frames if identity not in self._wanted]
        with self.database:
            for identity in gone:
                chosen = "SELECT id FROM frames WHERE identity = ?"
                ids = f"SELECT id FROM rollouts WHERE frame = ({chosen})"
                for table in ("texts", "details"):
                    self.database.execute(f"DELETE FROM {table} WHERE id IN ({ids})", [identity])
                self.database.execute(f"DELETE FROM rollouts WHERE frame = ({chosen})", [identity])
                self.database.execute("DELETE FROM frames WHERE identity = ?", [identity])
        self.frames = {i: damage for i, damage in self.frames.items() if i in self._wanted}

    def missing(self) -> list[Frame]:
        """The frames that are not indexed yet."""
        return [frame for identity, frame in self._wanted.items() if identity not in self.frames]

    def add(self, frame: Frame) -> None:
        """Index a frame; one that is damaged is noted."""
        damage, rows = "", list[Row]()
        try:
            rows = frame.read()
        except GlasshouseError as error:
            lost = f" ({frame.expected_rows} rows lost)" if frame.expected_rows else ""
            damage = f"{error}{lost}"
        scored = iter(score_rows(self.monitors, [row for row in rows if "verdicts" not in row]))
        with self.database:
            insert = self.database.execute
            number = insert(
                "INSERT INTO frames VALUES (NULL, ?, ?)", (frame.identity, damage)
            ).lastrowid
            for place, row in enumerate(rows):
                verdicts = row["verdicts"] if "verdicts" in row else next(scored)
                shown = describe_rollout(f"{frame.name}.{place}", row, verdicts, self.monitors)
                content = json.dumps(find_facets(row, verdicts), sort_keys=True)
                facets = int.from_bytes(blake2b(content.encode(), digest_size=7).digest(), "big")
                insert("INSERT OR IGNORE INTO facets VALUES (?, ?)", (facets, content))
                id = insert(
                    "INSERT INTO rollouts VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (number, shown["ref"], facets, rollout_key(row["prompt"], row["cot"], row["text"]), frame.kind,
                     *(shown[name] for name in ("step", "group", "length", "reward", "correct", "key"))),
                ).lastrowid  # fmt: skip
                row["text"] = shown.pop("text")
                question, text, prompt = (encodable(row[n]) for n in ("question", "text", "prompt"))
                insert("INSERT INTO texts VALUES (?, ?, ?)", (id, question, text))
                insert("INSERT INTO details VALUES (?, ?, ?)", (id, prompt, json.dumps(shown)))
        self.frames = {**self.frames, frame.identity: damage}

    # --- reading ---------------------------------------------------------------------------

    def search(self, query: Mapping[str, Any]) -> dict[str, Any]:
        """One page of the rollouts that match a query of `parse_query`, and how many of all matching ones
        have each value of each facet."""
        conditions = [condition for name, condition in FILTERS.items() if name in query]
        where = " AND ".join(conditions) or "TRUE"
        counts = self.database.execute(
            f"SELECT content, n FROM (SELECT facets AS place, COUNT(*) AS n FROM rollouts WHERE {where} GROUP BY 1) "
            "JOIN facets ON facets.id = place",
            query,
        )
        matching = 0
        facets: dict[str, dict[str, int]] = {name: {} for name in FACETS}
        for content, count in counts.fetchall():
            matching += count
            for name, values in json.loads(content).items():
                for value in values:
                    facets[name][value] = facets[name].get(value, 0) + count
        facets["label"] = {"none": matching} if matching else {}
        if self.has_labels:
            labelled = f"SELECT {LABEL}, COUNT(*) FROM rollouts WHERE {where} GROUP BY 1"
            facets["label"] = dict(self.database.execute(labelled, query).fetchall())
        column = query["sort"].removeprefix("-")
        direction = "DESC" if query["sort"].startswith("-") else "ASC"
        found = self.database.execute(
            f"SELECT id FROM rollouts WHERE {where} ORDER BY {column} IS NULL, {column} {direction}, id "
            "LIMIT :limit OFFSET :offset",
            query,
        )
        return {
            "total": self.count(),
            "matching": matching,
            "rows": [self.row(id, "full" in query) for (id,) in found.fetchall()],
            "facets": {name: dict(sorted(values.items())) for name, values in facets.items()},
            **self.progress(),
        }

    def progress(self) -> dict[str, Any]:
        """How far the index is, and what cannot be read of the log."""
        named = ((identity.split(" ")[0], damage) for identity, damage in list(self.frames.items()))
        damage = [f"{name}: {text}" for name, text in named if text]
        return {"indexed_frames": len(self.frames), "frames": len(self._wanted), "damage": damage}

    def count(self) -> int:
        (count,) = self.database.execute("SELECT COUNT(*) FROM rollouts").fetchone()
        return int(count)

    def row(self, id: int, is_full: bool) -> Row:
        """What the page shows of a rollout: in full, or shortened for a list."""
        limit = MAX_TEXT if is_full else PREVIEW_CHARACTERS
        sizes = (limit, limit, limit if is_full else 0)
        question, text, prompt, fields, facets, label = self.database.execute(
            f"SELECT substr(question, 1, ?), substr(text, 1, ?), substr(prompt, 1, ?), fields, content, {LABEL} "
            "FROM rollouts JOIN texts USING (id) JOIN details USING (id) JOIN facets ON facets.id = facets "
            "WHERE rollouts.id = ?",
            (*sizes, id),
        ).fetchone()
        row: Row = json.loads(fields) | {"facets": {**json.loads(facets), "label": [label]}}
        return {**row, "question": question, "text": text, "prompt": prompt}

    def set_labels(self, labels: Mapping[str, bool]) -> None:
        """Say what a person said about which texts."""
        self.has_labels = bool(labels)
        with self.database:
            self.database.execute("DELETE FROM labels")
            rows = ((key, "yes" if label else "no") for key, label in labels.items())
            self.database.executemany("INSERT INTO labels VALUES (?, ?)", rows)

    def find_text(self, ref: str) -> str | None:
        """The key of a rollout's text, which a label belongs to."""
        found = self.database.execute(
            "SELECT text_key FROM rollouts WHERE ref = ?", [ref]
        ).fetchone()
        return str(found[0]) if found else None

    def list_problems(self) -> list[Row]:
        """Held-out problems that were answered at two steps or more, with how often each was correct."""
        answered = self.database.execute(
            "SELECT key, question, step, AVG(correct) FROM rollouts JOIN texts USING (id) "
            f"WHERE {FILTERS['held_out']} GROUP BY key, step ORDER BY step, MIN(id)"
        )
        problems: dict[str, Row] = {}
        for key, question, step, share in answered.fetchall():
            start = {"question": question[:PREVIEW_CHARACTERS], "before": share or 0, "first": step}
            problems.setdefault(key, {"key": key, **start}).update(after=share or 0, last=step)
        changed = [p for p in problems.values() if p.pop("first") < p.pop("last")]
        return changed[:MAX_PROBLEMS]

    def sample(self, keys: Sequence[str]) -> Iterator[Row]:
        """Every rollout in full: the held-out ones of these problems first, then groups of every step in
        turn, so that a cut leaves whole groups and no step out."""
        held_out = f"{FILTERS['held_out']} AND key IN (SELECT value FROM json_each(?))"
        ids = self.database.execute(
            f'SELECT id FROM rollouts ORDER BY {held_out} DESC, "group", kind, step, id',
            [json.dumps(keys)],
        )
        for (id,) in ids.fetchall():
            yield self.row(id, True)

    def close(self) -> None:
        self.database.close()


# --- rows and queries ------------------------------------------------------------------------


def describe_rollout(
    ref: str, row: Row, verdicts: Mapping[str, Verdict], monitors: Sequence[Monitor]
) -> Row:
    """What the page shows of a rollout, besides its prompt and question; `ref` names it, such as `train.12.7`.
    `marks` are the places in the text that monitors flag, as (start, end, monitor)."""
    text, cot = str(row["text"]), row["cot"]
    if cot is not None or not row["split"]:  # of another trainer
        cot, answer = parts_of(cot, text)
        cot += "\n" * bool(cot.rstrip() == cot and cot and answer)
        text = cot + answer
    else:
        cot = text[: split_completion(text).answer_start]
    parts = {"cot": (0, cot), "answer": (len(cot), text[len(cot) :])}
    return {
        "ref": ref,
        **{name: row[name] for name in SHOWN},
        "reward": finite(row["reward"]),
        "advantage": finite(row["advantage"]),
        "key": encodable(str(row["key"])),
        "text": text,
        "characters": len(text),
        "answer_start": len(cot),
        "verdicts": verdicts,
        "marks": [
            (offset + start, offset + end, monitor.name)
            for monitor in monitors
            if isinstance(monitor, RuleMonitor) and verdicts.get(monitor.name, {}).get("flagged")
            for offset, part in (parts[p] for p in SCOPE_PARTS[monitor.scope] if p in parts)
            for start, end in monitor.find_matches(part[:MAX_TEXT])
        ],
    }


def find_facets(row: Row, verdicts: Mapping[str, Verdict]) -> dict[str, list[str]]:
    """The values of each facet: `validation/greedy` is also in `validation`; `!name` is a monitor that did
    not flag it. A checkpoint with a number is a step, which has filters of its own."""
    read = row if row["reason"] else {**row, "rule": ""}  # the parser was not asked
    names = {name: [read[name]] if read[name] else [] for name in ("rule", "finish_reason", "arm")}
    flags = {name: verdict["flagged"] for name, verdict in verdicts.items()}
    checkpoint = str(row["checkpoint"])
    return {
        "split": list(dict.fromkeys(filter(None, (kind_of(row["split"]), row["split"])))),
        "checkpoint": [] if not checkpoint or checkpoint.isdecimal() else [checkpoint],
        "correct": {None: [], True: ["yes"], False: ["no"]}[row["correct"]],
        **names,
        "flagged": [n if flag else f"!{n}" for n, flag in flags.items() if flag is not None],
    }


def encodable(text: str) -> str:
    """A lone surrogate, which JSON may hold, cannot be stored."""
    return text.encode("utf-8", "replace").decode()


def parse_query(values: Mapping[str, str]) -> dict[str, Any]:
    """Read a query from the parameters of a URL; raise ConfigError with the parameter's name.

    Example: `parse_query({"split": "train", "first": "10", "correct": "no", "text": "carry"})`
    """
    query: dict[str, Any] = {"sort": "step", "offset": 0, "limit": 50}
    known = (*FILTERS, *query, "full")
    for name, text in values.items():
        if name not in known:
            raise ConfigError(f'"{name}" is not a filter.{did_you_mean(name, known)}')
        try:
            query[name] = float(text) if name in NUMBERS else encodable(text)
        except ValueError:
            raise ConfigError(f"{name} must be a number, not {text[:40]!r}.") from None
    if query["sort"].removeprefix("-") not in SORTS:
        raise ConfigError(f'sort cannot be "{query["sort"][:40]}".')
    if "text" in query:
        escaped = re.sub(r"([%_\\])", r"\\\1", query["text"][:1000])
        query["text"] = f"%{escaped}%"
    query["offset"] = int(max(0, min(query["offset"], 1e9)))
    query["limit"] = int(max(1, min(query["limit"], MAX_PAGE)))
    return query
