"""Every rollout of a run in a SQLite database, so that 256,000 of them can be filtered and searched at once.

The database is temporary: SQLite deletes its file when the server ends.

    frames     the rows that the run logged together: of one step, or of one monitored model
    rollouts   numbers that filters compare and lists sort by
    facets     each combination of the values in `FACETS` once, as JSON: rollouts have few of them
    labels     what a person said about a text (runs/labels.py)
    texts      what a search reads, apart from the rest so that it reads little
    details    everything else that the page shows

A frame is verified by its sha256 before it is indexed (`add`). The monitors read its texts afterwards (`score`), since
that takes longer; a rollout that is shown earlier is scored at once. Frames that a run no longer has, since it was
resumed from an older checkpoint, are deleted.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
FACETS = {
    **dict.fromkeys(("split", "checkpoint", "correct", "rule", "finish_reason", "arm"), "facets"),
    "flagged": "flags",
}
"""Filters whose values are counted, each with the column that names the combination of its values: `find_facets` and
`find_flags` say which values a rollout has."""
LABEL = "COALESCE((SELECT value FROM labels WHERE labels.key = text_key), 'none')"
FILTERS = {
    **{
        name: f"{column} IN (SELECT facets.id FROM facets, json_each(content, '$.{name}') WHERE value = :{name})"
        for name, column in FACETS.items()
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
    id INTEGER PRIMARY KEY, frame INTEGER, ref TEXT, facets INTEGER, flags INTEGER, text_key TEXT, kind TEXT,
    step INTEGER, "group" INTEGER, length INTEGER, reward REAL, correct INTEGER, key TEXT
);
CREATE INDEX frame_rollouts ON rollouts (frame);
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
        self.unscored: dict[str, None] = {}
        """Identities of the indexed frames whose texts the monitors have not read yet, in order."""
        self.has_labels = False
        self._wanted: dict[str, Frame] = {}
        self._names: dict[str, int] = {}
        self.database = sqlite3.connect("", check_same_thread=False)
        self.database.executescript(SCHEMA)

    # --- growing ---------------------------------------------------------------------------

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
        self.unscored = {i: None for i in self.unscored if i in self._wanted}

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
        with self.database:
            number = self.database.execute(
                "INSERT INTO frames VALUES (NULL, ?, ?)", (frame.identity, damage)
            ).lastrowid
            (last,) = self.database.execute("SELECT COALESCE(MAX(id), 0) FROM rollouts").fetchone()
            records, texts, details = [], [], []
            for place, row in enumerate(rows):
                id, fields = last + 1 + place, select_fields(f"{frame.name}.{place}", row)
                flags = self._name(find_flags(row["verdicts"])) if "verdicts" in row else None
                key = rollout_key(row["prompt"], row["cot"], row["text"])
                numbers = (
                    fields[n] for n in ("step", "group", "length", "reward", "correct", "key")
                )
                facets = self._name(find_facets(row))
                records.append(
                    (id, number, fields["ref"], facets, flags, key, frame.kind, *numbers)
                )
                texts.append((id, encodable(row["question"]), encodable(fields.pop("text"))))
                details.append((id, encodable(row["prompt"]), json.dumps(fields)))
            for table, width, values in (
                ("rollouts", 13, records), ("texts", 3, texts), ("details", 3, details)
            ):  # fmt: skip
                places = ", ".join("?" * width)
                self.database.executemany(f"INSERT INTO {table} VALUES ({places})", values)
        self.frames = {**self.frames, frame.identity: damage}
        if self.monitors and any("verdicts" not in row for row in rows):
            self.unscored[frame.identity] = None

    def score(self) -> None:
        """Let the monitors read the texts of the first frame of `unscored`."""
        identity = next(iter(self.unscored))
        rows = self.database.execute(
            "SELECT id, prompt, question, text FROM rollouts JOIN texts USING (id) JOIN details USING (id) "
            "WHERE flags IS NULL AND frame = (SELECT id FROM frames WHERE identity = ?)",
            [identity],
        ).fetchall()
        columns, distinct = ("prompt", "question", "text"), list(dict.fromkeys(r[1:] for r in rows))
        scored = score_rows(self.monitors, [dict(zip(columns, t, strict=True)) for t in distinct])
        with self.database:
            flags = {t: self._name(find_flags(v)) for t, v in zip(distinct, scored, strict=True)}
            found = ((flags[row[1:]], row[0]) for row in rows)
            self.database.executemany("UPDATE rollouts SET flags = ? WHERE id = ?", found)
        self.unscored = {i: None for i in self.unscored if i != identity}

    def _name(self, values: Mapping[str, list[str]]) -> int:
        """The id of a combination of values, which is stored if it is new."""
        id = self._names.get(name := repr(values))
        if id is None:
            id = self._names[name] = len(self._names) + 1
            self.database.execute("INSERT INTO facets VALUES (?, ?)", (id, json.dumps(values)))
        return id

    # --- reading ---------------------------------------------------------------------------

    def search(self, query: Mapping[str, Any]) -> dict[str, Any]:
        """One page of the rollouts that match a query of `parse_query`, and how many of all matching ones
        have each value of each facet."""
        conditions = [condition for name, condition in FILTERS.items() if name in query]
        where = " AND ".join(conditions) or "TRUE"
        grouped = f"SELECT facets, flags, COUNT(*) FROM rollouts WHERE {where} GROUP BY 1, 2"
        contents = dict(self.database.execute("SELECT id, content FROM facets").fetchall())
        matching = 0
        facets: dict[str, dict[str, int]] = {name: {} for name in FACETS}
        for *ids, count in self.database.execute(grouped, query).fetchall():
            matching += count
            for name, values in [v for i in ids if i for v in json.loads(contents[i]).items()]:
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
        """How far the index is, and what cannot be read of the log. Half of a frame's work is to let the monitors
        read it."""
        named = ((identity.split(" ")[0], damage) for identity, damage in list(self.frames.items()))
        damage = [f"{name}: {text}" for name, text in named if text]
        done = len(self.frames) - -(-len(self.unscored) // 2)
        return {"indexed_frames": done, "frames": len(self._wanted), "damage": damage}

    def count(self) -> int:
        (count,) = self.database.execute("SELECT COUNT(*) FROM rollouts").fetchone()
        return int(count)

    def row(self, id: int, is_full: bool) -> Row:
        """What the page shows of a rollout: in full, or shortened for a list."""
        *texts, fields, facets, label = self.database.execute(
            f"SELECT question, text, prompt, fields, content, {LABEL} FROM rollouts JOIN texts USING (id) "
            "JOIN details USING (id) JOIN facets ON facets.id = facets WHERE rollouts.id = ?",
            [id],
        ).fetchone()
        row: Row = dict(zip(("question", "text", "prompt"), texts, strict=True)) | json.loads(
            fields
        )
        complete_row(row, self.monitors)
        flags = find_flags(row["verdicts"])
        limit = MAX_TEXT if is_full else PREVIEW_CHARACTERS
        limits = {"question": limit, "text": limit, "prompt": limit if is_full else 0}
        cut = {name: row[name][:size] for name, size in limits.items()}
        return {**row, **cut, "facets": {**json.loads(facets), **flags, "label": [label]}}

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


def select_fields(ref: str, row: Row) -> Row:
    """What is stored of a row, besides its prompt and question; `ref` names it, such as `train.12.7`. In a row of
    another trainer the CoT is apart from the text."""
    text, cot = str(row["text"]), row["cot"]
    fields = {
        "ref": ref,
        **{name: row[name] for name in SHOWN},
        "reward": finite(row["reward"]),
        "advantage": finite(row["advantage"]),
        "key": encodable(str(row["key"])),
    }
    if cot is not None or not row["split"]:
        cot, answer = parts_of(cot, text)
        cot += "\n" * bool(cot.rstrip() == cot and cot and answer)
        text = cot + answer
        fields["answer_start"] = len(cot)
    if "verdicts" in row:
        fields["verdicts"] = row["verdicts"]
    return {**fields, "text": text, "characters": len(text)}


def complete_row(row: Row, monitors: Sequence[Monitor]) -> None:
    """Add what follows from the text of a stored row: where the answer starts, the verdicts of the monitors, and
    `marks`, the places in the text that they flag, as (start, end, monitor)."""
    text = row["text"]
    if "answer_start" not in row:
        row["answer_start"] = split_completion(text).answer_start
    if "verdicts" not in row:
        [row["verdicts"]] = score_rows(monitors, [row])
    start = row["answer_start"]
    parts = {"cot": (0, text[:start]), "answer": (start, text[start:])}
    row["marks"] = [
        (offset + first, offset + end, monitor.name)
        for monitor in monitors
        if isinstance(monitor, RuleMonitor) and row["verdicts"].get(monitor.name, {}).get("flagged")
        for offset, part in (parts[p] for p in SCOPE_PARTS[monitor.scope] if p in parts)
        for first, end in monitor.find_matches(part[:MAX_TEXT])
    ]


def find_facets(row: Row) -> dict[str, list[str]]:
    """The values of each facet but `flagged`: `validation/greedy` is also in `validation`. A checkpoint with a number
    is a step, which has filters of its own."""
    read = row if row["reason"] else {**row, "rule": ""}  # the parser was not asked
    names = {name: [read[name]] if read[name] else [] for name in ("rule", "finish_reason", "arm")}
    checkpoint = str(row["checkpoint"])
    return {
        "split": list(dict.fromkeys(filter(None, (kind_of(row["split"]), row["split"])))),
        "checkpoint": [] if not checkpoint or checkpoint.isdecimal() else [checkpoint],
        "correct": {None: [], True: ["yes"], False: ["no"]}[row["correct"]],
        **names,
    }


def find_flags(verdicts: Mapping[str, Verdict]) -> dict[str, list[str]]:
    """The values of `flagged`; `!name` is a monitor that did not flag the rollout."""
    flags = {name: verdict["flagged"] for name, verdict in verdicts.items()}
    found = [n if flag else f"!{n}" for n, flag in flags.items() if flag is not None]
    return {"flagged": found}


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
