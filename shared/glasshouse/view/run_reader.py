"""Reads one run: configuration, metrics, events, monitor results, status and damage, as plain JSON for
the page and the report.

`refresh` reads only what has changed. What is damaged is left out and named in `damage`; the rest
is shown. Weights and the frames of the rollout log are not read here; `glasshouse check` verifies them.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from glasshouse.config.loading import dump_yaml
from glasshouse.errors import GlasshouseError, RunDataError, RunError
from glasshouse.files import read_regular_file
from glasshouse.measurement.registry import Family
from glasshouse.monitors.base import Monitor
from glasshouse.runs.checkpoints import list_steps, read_newest_state
from glasshouse.runs.monitor_results import read_monitor_results
from glasshouse.runs.rollout_log import LOG
from glasshouse.runs.rows import Row
from glasshouse.runs.run_directory import (
    EVENTS,
    LOCK,
    METRICS,
    GrowingFile,
    is_locked,
    load_events,
    read_lines,
    read_run_config,
    read_summary,
    select_evaluations,
    stamp_file,
)
from glasshouse.runs.verify import verify_curves, verify_rollout_log
from glasshouse.tables import get_field
from glasshouse.terminal import shell_command
from glasshouse.view.rollout_index import Frame, list_frames
from glasshouse.view.run_measures import (
    collect_measures,
    describe_evaluation,
    find_headlines,
    metric_columns,
    summarize_run,
)
from glasshouse.view.text_monitors import make_text_monitors

VERIFY_SECONDS = 10.0
"""How often the files of a run that is training are verified as a whole."""
TIMED_STEPS = 21
"""Last steps by which the time left is estimated; the list of runs reads no others."""
Status = Literal["running", "finished", "interrupted", "failed", "empty"]
PHASE_EVENTS = ("start", "resume", "end", "interrupted", "stopped", "failed", "exhausted")
"""Events that decide the status of a run."""
WATCHED = (
    "config.yaml", "results/summary.json", "results/monitor.json", "checkpoints", "NOTES.md", "prediction.json",
    f"results/{LOG}",
)  # fmt: skip
"""What is read again when it changes, besides metrics and events."""
MAX_NOTEBOOK = 20_000
LOCKS_FILE = Path("/proc/locks")
UNMARKED_EVENTS = ("audit", "prune")
"""Events that are not drawn as a mark."""
NOTHING: Mapping[str, Any] = {
    **dict.fromkeys(("config_text", "notebook", "verdict"), ""),
    **dict.fromkeys(("said", "unsaid", "notes", "marks", "damage"), ()),
    **{name: {} for name in ("names", "settings", "versions", "commands")},
    "families": [family.value for family in Family if family],
    "prediction": None,
}
"""What the page of a run or of a file may lack."""


@dataclass(frozen=True, slots=True)
class RunLocation:
    """A run directory and where it belongs."""

    id: str
    path: Path
    study: str = ""
    """The id of its study; empty if it is not part of one."""
    is_file: bool = False
    """Rollouts of any trainer instead of a run."""


@dataclass(slots=True)
class RunReader:
    """One run.

    Example:
        reader = RunReader(RunLocation("try", Path("runs/try")))
        reader.refresh()
        reader.describe()["metrics"]["columns"]["reward"]
    """

    location: RunLocation
    version: int = 0
    """Increases whenever `refresh` finds a change."""
    is_active: bool = False
    config: dict[str, Any] = field(default_factory=dict)
    config_text: str = ""
    monitors: list[Monitor] = field(default_factory=list)
    """Those that score a rollout from its text alone."""
    notes: list[str] = field(default_factory=list)
    """Monitors that cannot be applied."""
    summary: dict[str, Any] | None = None
    monitor: dict[str, Any] | None = None
    problems: dict[str, str] = field(default_factory=dict)
    """Why a file cannot be read, by its name."""
    verified: list[dict[str, str]] = field(default_factory=list)
    """Damage of the metrics, events, summary and rollout log, compared with each other."""
    notebook: str = ""
    """NOTES.md, in which a person keeps what they saw."""
    prediction: dict[str, Any] | None = None
    """What `glasshouse predict` said."""
    checkpoints: list[int] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    """The software, and the hashes of what the run was made from, in the newest checkpoint."""
    metrics: GrowingFile = field(init=False)
    events: GrowingFile = field(init=False)
    _stamps: dict[str, Any] = field(default_factory=dict)
    _is_unverified: bool = True
    _verify_after: float = 0.0

    def __post_init__(self) -> None:
        results = self.path / "results"
        self.metrics = GrowingFile(results / METRICS)
        self.events = GrowingFile(results / EVENTS)

    @property
    def path(self) -> Path:
        return self.location.path

    @property
    def frames_stamp(self) -> Any:
        """Changes when there are other frames."""
        return stamp_file(self.path / "results" / LOG), id(self.monitor)

    @property
    def frames(self) -> list[Frame]:
        try:
            return list_frames(self.path, self.monitor)
        except (RunDataError, RunError):
            return []  # a log of another version, or not a file: the damage says so

    def refresh(self) -> bool:
        """Read what has changed; returns whether anything did."""
        changed = self.metrics.refresh() | self.events.refresh()
        for name in WATCHED:
            stamp = stamp_file(self.path / name)
            if name not in self._stamps or stamp != self._stamps[name]:
                self._stamps[name], self.problems[name] = stamp, self._load(name)
                changed = True
        is_active = is_being_written(self.path)
        changed |= is_active != self.is_active
        self.is_active = is_active
        changed |= self._verify(changed)
        self.version += changed
        return changed

    def _verify(self, changed: bool) -> bool:
        """Verify the files if they have changed, of a run that is training not more often than every
        `VERIFY_SECONDS`; returns whether the damage changed."""
        self._is_unverified |= changed
        now = time.monotonic()
        if not self._is_unverified or (self.is_active and now < self._verify_after):
            return False
        self._is_unverified, self._verify_after = False, now + VERIFY_SECONDS
        previous = self.verified
        try:
            state = read_newest_state(self.path / "checkpoints")
            found = [
                *verify_curves(self.path, state),
                *verify_rollout_log(self.path, state, frames=False),
            ]
            self.verified = [asdict(item) for item in found]
        except GlasshouseError as error:
            self.verified = [{"file": "results", "problem": str(error), "remedy": ""}]
        return self.verified != previous

    def _load(self, name: str) -> str:
        """Read one of the files again; returns why it cannot be used. `_verify` says it of the summary and the log."""
        file = self.path / name
        match name:
            case "config.yaml":
                self.config, problem = read_run_config(self.path)
                self.config_text = dump_yaml(self.config) if self.config else ""
                self.monitors, self.notes = make_text_monitors(self.config)
                return problem
            case "results/summary.json":
                self.summary = None
                with suppress(RunDataError):
                    self.summary = read_summary(file)
            case "results/monitor.json":
                self.monitor = None
                try:
                    self.monitor = read_monitor_results(file.parent)
                except RunDataError:
                    return "is damaged"
            case "checkpoints":
                self.checkpoints, self.versions = list_steps(file), read_versions(self.path)
            case "NOTES.md":
                self.notebook = ""
                with suppress(OSError, ValueError):  # there is none, or it is no text
                    self.notebook = read_regular_file(file).decode()[:MAX_NOTEBOOK]
            case "prediction.json":
                self.prediction = None
                try:
                    self.prediction = read_prediction(read_regular_file(file))
                except OSError:  # there is none
                    pass
                except (ValueError, KeyError, TypeError, StopIteration):
                    return "is damaged"
        return ""

    # --- what the page shows ---------------------------------------------------------------

    @property
    def status(self) -> str:
        return find_status(self.events.rows, self.summary, self.is_active)

    @property
    def step(self) -> int:
        return int(self.metrics.rows[-1]["step"]) if self.metrics.rows else 0

    def measures(self) -> dict[str, dict[str, Any]]:
        """Of its evaluations and of `glasshouse monitor`."""
        return collect_measures(select_evaluations(self.events.rows), self.monitor)

    def describe(self) -> dict[str, Any]:
        """Everything about the run."""
        steps = int(get_field(self.config, "steps", 0))
        left = seconds_left(self.metrics.rows, steps) if self.status == "running" else None
        measures = self.measures()
        named = describe_run(self.location, self.config)
        facts = "{task} ({style}), {algorithm} on {model}, seed {seed}".format(**named)
        return {
            **NOTHING,
            **named,
            "tabs": ["overview", "", "rollouts", "problems"],
            "facts": f"{facts} · step {self.step} of {steps}",
            "status": self.status,
            "step": self.step,
            "steps": steps,
            "seconds_left": left,
            "version": self.version,
            "config_text": self.config_text,
            "metrics": metric_columns(self.metrics.rows),
            "measures": measures,
            "marks": [
                describe_event(event)
                for event in self.events.rows
                if event["event"] not in UNMARKED_EVENTS
            ],
            "checkpoints": self.checkpoints,
            "verdict": summarize_run(measures, self.status),
            "notebook": self.notebook,
            "prediction": self.prediction,
            "versions": self.versions,
            "notes": self.notes,
            "commands": {
                name: shell_command(["glasshouse", name, self.path])
                for name in ("monitor", "report", "resume", "check")
            },
            "damage": self.damage(),
        }

    def damage(self) -> list[dict[str, str]]:
        """What cannot be read, and what to do."""
        check = f"{shell_command(['glasshouse', 'check', self.path])} says what is lost."
        own = [
            {"file": file, "problem": problem, "remedy": check}
            for file, problem in sorted(self.problems.items())
            if problem
        ]
        return [*own, *({**d, "remedy": f"{d['remedy']} {check}".strip()} for d in self.verified)]


def read_overview(location: RunLocation) -> dict[str, Any]:
    """One line of the list of runs. Reads only the last metrics, so that many runs are quick."""
    path = location.path
    config, problem = read_run_config(path)
    metrics = [row for _, row in read_lines(path / "results" / METRICS, last=TIMED_STEPS)]
    rows = [row for row in metrics if row]
    events = load_events(path, *PHASE_EVENTS, "evaluation")
    damage = [f"config.yaml {problem}"] if problem else []
    damage += ["results/metrics.jsonl is damaged"] if None in metrics else []
    summary = monitor = None
    try:
        summary = read_summary(path / "results" / "summary.json")
        monitor = read_monitor_results(path / "results")
    except RunDataError as error:
        damage.append(str(error))
    timings = [row.get("timing") or {} for row in rows[-1:]]
    steps = int(get_field(config, "steps", 0))
    status = find_status(events, summary, is_being_written(path))
    measures = collect_measures(select_evaluations(events), monitor)
    accuracy, monitorability = find_headlines(measures)
    return {
        **describe_run(location, config),
        "status": status,
        "step": int(rows[-1]["step"]) if rows else 0,
        "steps": steps,
        "seconds_left": seconds_left(rows, steps) if status == "running" else None,
        "updated": max((str(row.get("time", "")) for row in (*events, *timings)), default=""),
        "accuracy": measures[accuracy] if accuracy else None,
        "monitorability": measures[monitorability] if monitorability else None,
        "damage": damage,
    }


def read_prediction(content: bytes) -> dict[str, Any]:
    """The prediction for the configured weight of the penalty, in a sentence and as (step, value, low, high) by
    measure; raises if the file does not hold one."""
    found = json.loads(content)
    own = next(outcome for outcome in found["outcomes"] if outcome["weight"] == found["weight"])
    reason = f" ({own['reason']})" if own["reason"] else ""
    margin = [found["margin"][name] for name in ("value", "low", "high")]
    size = "{:+.2f} ({:+.2f} to {:+.2f})".format(*margin) if None not in margin else "unknown"
    curves = {
        name: [
            (int(step), *map(float, values))
            for step, values in zip(own["steps"], curve, strict=True)
        ]
        for name, curve in own["curves"].items()
    }
    return {
        "verdict": f"{own['verdict']}{reason}",
        "basis": f"{found['penalty']} λ = {own['weight']:g}; M, the mean reward of silent minus that of honest "
        f"rollouts, is {size}; from {found['rollouts']:,} rollouts of {found['source']}. {found['scope']}",
        "horizon": int(found["horizon"]),
        "curves": {name: curves[name] for name in ("reliance", "undetected_use")},
    }


# --- status ----------------------------------------------------------------------------------


def is_being_written(run: Path) -> bool:
    """Does a process hold the run's lock? On Linux this is read from /proc/locks: trying to lock,
    even for a moment, could make a training that starts just then fail."""
    try:
        inode = str(os.stat(run / LOCK).st_ino)
    except OSError:
        return False
    try:
        rows = [line.split() for line in LOCKS_FILE.read_text().splitlines()]
    except OSError:
        return is_locked(run)
    return any(row[1] == "FLOCK" and row[5].endswith(f":{inode}") for row in rows if len(row) > 5)


def find_status(
    events: Sequence[Mapping[str, Any]], summary: Mapping[str, Any] | None, is_active: bool
) -> Status:
    """Decide the status from the last event of a phase, the summary and the lock."""
    phases = [event["event"] for event in events if event["event"] in PHASE_EVENTS]
    if is_active:
        return "running"
    if phases[-1:] == ["failed"]:
        return "failed"
    if summary is not None and summary.get("interrupted_at") is None:
        return "finished"
    if not phases and summary is None:
        return "empty"
    return "interrupted"


def seconds_left(rows: Sequence[Mapping[str, Any]], steps: int) -> float | None:
    """Estimate the rest of the training from the median of the last steps; None if unknown."""
    known = []
    for row in rows[-TIMED_STEPS:]:
        with suppress(KeyError, TypeError, ValueError):
            known.append((row["step"], datetime.fromisoformat(row["timing"]["time"]).timestamp()))
    rates = [
        (moment - before_moment) / (step - before)
        for (before, before_moment), (step, moment) in pairwise(known)
        if step > before and moment >= before_moment
    ]
    return max(0, steps - known[-1][0]) * statistics.median(rates) if rates else None


def read_versions(run: Path) -> dict[str, str]:
    """The software and the sources that the newest valid state of a checkpoint names."""
    state = read_newest_state(run / "checkpoints")
    versions = state.get("versions")
    if not isinstance(versions, dict):
        return {}
    named = {str(name): str(value) for name, value in versions.items()}
    sources = state.get("sources", {})
    return named | {
        f"{name} ({key})": digest[:16] if len(digest) == 64 else digest
        for key, files in sources.items()
        for name, digest in files.items()
    }


# --- parts -----------------------------------------------------------------------------------


def describe_run(location: RunLocation, config: Mapping[str, Any]) -> dict[str, Any]:
    keys = {
        "task": "task.name",
        "style": "task.style",
        "algorithm": "learn.algorithm",
        "model": "model",
    }
    named = {name: str(get_field(config, key, "")) for name, key in keys.items()}
    seed = get_field(config, "seed", 0)
    return {"id": location.id, "study": location.study, **named, "seed": seed}


def describe_event(event: Row) -> dict[str, Any]:
    """A mark of the curves, with the event in one line."""
    hidden = ("event", "time", "step", "path", "bytes")
    parts = (
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in event.items()
        if name not in hidden and value is not None
    )
    if event["event"] == "evaluation":
        text = describe_evaluation(event)
    else:
        text = str(event["text"]) if "text" in event else ", ".join(parts)
    step, moment = event.get("step", 0), event.get("time", "")
    return {"step": step, "kind": event["event"], "time": moment, "text": text}


def to_json(value: Any) -> bytes:
    """JSON in which nothing ends an inline script or changes the direction of a terminal's text."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")
