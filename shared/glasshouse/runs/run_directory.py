"""The run directory: the files of one run, read by monitors, reports, trackers and studies.

README.md                    what the run is, and which commands read it
NOTES.md                     its lab notebook: only appended to
config.yaml                  the resolved configuration
data/manifest.json           where training, validation and test problems come from
data/validation.jsonl        the validation problems
results/metrics.jsonl        one line per training step
results/events.jsonl         one line per event
results/rollouts.jsonl.zst   every prompt and completion (docs/runs.md)
results/summary.json         evaluation before and after training, and where the results are
results/monitor.json         monitor results of the base model and each checkpoint
                             (their rows: monitor_rows.jsonl.zst)
results/curves.svg           its curves, written when it ends
results/report.html          the report, as one page
track/                       the run's id for trackers, and files that trackers write
checkpoints/step-000060/     a model in the Hugging Face layout, with everything needed to resume

Each line of metrics.jsonl and events.jsonl has its checksum. Readers leave damaged lines out. A last line without
its newline is being written, or was cut off by a crash.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from glasshouse.config.loading import diff_configs, load_config, to_yaml
from glasshouse.config.schema import Config
from glasshouse.errors import ConfigError, GlasshouseError, RunDataError, RunError
from glasshouse.files import (
    add_check,
    parse_checked,
    read_regular_file,
    write_bytes,
    write_json,
    write_text,
)
from glasshouse.runs.checkpoints import STATE, newest_checkpoint, read_state
from glasshouse.runs.rollout_log import EMPTY_POSITION, LOG, RolloutLog
from glasshouse.runs.rows import Row
from glasshouse.terminal import shell_command

LOCK, METRICS, EVENTS = ".lock", "metrics.jsonl", "events.jsonl"


class RunDirectory:
    """The files of one run, created or opened, and locked by one process at a time.

    Example: `with RunDirectory(Path("runs/a"), config) as run: run.log_metrics(row)`
    """

    def __init__(self, path: Path, config: Config) -> None:
        self.path, self.results = path, path / "results"
        self.checkpoints = path / "checkpoints"
        if path.exists() and not path.is_dir():
            raise RunError(f"{path} is a file. Choose a directory with out=….")
        if path.exists() and not is_run_directory(path) and _has_other_files(path):
            raise RunError(
                f"{path} already holds files, and they are not a run's. "
                "Choose another directory with out=…, or remove this one."
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
            self.lock = acquire_lock(path)
            if not is_run_directory(path) or (path / CONFIG).read_text() != config_text(config):
                write_text(path / CONFIG, config_text(config))
            _truncate_partial_line(self.results / EVENTS)
        except OSError as error:
            raise RunError(
                f"The run directory {path} cannot be written: {error.strerror}."
            ) from None
        try:
            newest, _ = newest_checkpoint(self.checkpoints)
            position = read_state(newest.path)["log_position"] if newest else {}
            self.rollout_log = RolloutLog(
                self.results / LOG,
                config.rollout_log.compression_level,
                config.rollout_log.tokens_every,
                saved=position.get("rollouts", EMPTY_POSITION)["bytes"],
            )
        except BaseException:
            self.lock.close()
            raise

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *error: object) -> None:
        self.lock.close()

    def log_metrics(self, row: dict[str, Any]) -> None:
        self._append_line(METRICS, row)

    def log_event(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Append an event with its time to events.jsonl; returns the line."""
        row = {"event": kind, "time": utc_timestamp(), **fields}
        self._append_line(EVENTS, row)
        return row

    def write_summary(self, value: dict[str, Any]) -> Path:
        path = self.results / "summary.json"
        write_json(path, add_check(value))
        return path

    @property
    def has_results(self) -> bool:
        """Has any metric or rollout been logged?"""
        return (self.results / METRICS).exists() or self.rollout_log.end > 0

    def get_position(self) -> dict[str, Any]:
        """Flush metrics and rollout log to disk, and return where they end; checkpoints store it."""
        file = self.results / METRICS
        size = 0
        if file.exists():
            with open(file, "rb") as handle:
                os.fsync(handle.fileno())
            size = file.stat().st_size
        return {"metrics": size, "rollouts": self.rollout_log.get_position()}

    def truncate_to(self, position: dict[str, Any], step: int = 0) -> list[dict[str, Any]]:
        """Truncate the rollout log to a position (`{}`: empty it) and the metrics to a step, and
        delete the summary; returns the remaining rows of metrics. Damaged lines of metrics before
        that step stay. Events are kept, including the interruption's."""
        (self.results / "summary.json").unlink(missing_ok=True)
        self.rollout_log.truncate_to(position.get("rollouts", EMPTY_POSITION))
        file = self.results / METRICS
        lines = read_lines(file)
        kept = [i for i, (_, row) in enumerate(lines, 1) if row and row["step"] <= step]
        lines = lines[: max(kept, default=0)]
        text = b"".join(line for line, _ in lines)
        if file.is_file() and file.stat().st_size != len(text):
            write_bytes(file, text)
        return [row for _, row in lines if row]

    def _append_line(self, name: str, row: dict[str, Any]) -> None:
        with open(self.results / name, "a", encoding="utf-8") as file:
            file.write(json.dumps(add_check(row), ensure_ascii=False) + "\n")


def _has_other_files(path: Path) -> bool:
    """Does a folder hold any files besides notes, a prediction, and those of a run killed at start-up?"""
    startup_files = (LOCK, f".{CONFIG}.tmp", "NOTES.md", "prediction.json", "prediction.svg")
    return any(entry.name not in startup_files for entry in path.iterdir())


def acquire_lock(path: Path) -> IO[str]:
    """Lock a run directory; the lock is released when the file is closed or the process ends."""
    lock = open(path / LOCK, "a+", encoding="utf-8")  # noqa: SIM115  # the caller closes it
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        owner = lock.read().strip() or "another process"
        lock.close()
        raise RunError(
            f"{path} is in use by {owner}. Wait until that has ended, or choose another directory."
        ) from None
    lock.truncate(0)
    lock.write(f"process {os.getpid()}")
    lock.flush()
    return lock


def is_locked(path: Path) -> bool:
    """Is another process writing to this run directory?"""
    try:
        with open(path / LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _truncate_partial_line(file: Path) -> None:
    """Remove an incomplete last line that a crash left."""
    if file.exists():
        text = file.read_bytes()
        if not text.endswith(b"\n"):
            os.truncate(file, text.rfind(b"\n") + 1)


def utc_timestamp() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


# --- reading -----------------------------------------------------------------------------------


def parse_line(file: Path, text: bytes) -> Row | None:
    """Return the row of a line with the number of its step, or the name of its event; None if it is
    damaged."""
    try:
        row = parse_checked(text)
    except RunDataError:
        return None
    is_row = isinstance(row.get("event"), str) if file.name == EVENTS else "step" in row
    return row if is_row else None


def read_lines(
    file: Path, prefixes: tuple[bytes, ...] = (), last: int = 0
) -> list[tuple[bytes, Row | None]]:
    """Read each complete line (that begins so; the `last` of them) with its row, or with None if it is damaged. A
    missing file has none."""
    try:
        lines = [text for text in read_regular_file(file).split(b"\n")[:-1] if text]
    except OSError:
        return []
    wanted = [text for text in lines if text.startswith(prefixes)] if prefixes else lines
    return [(text + b"\n", parse_line(file, text)) for text in wanted[-last:]]


def load_metrics(path: Path) -> list[Row]:
    """Load a run's metrics, one row per training step; damaged lines are left out."""
    return [row for _, row in read_lines(path / "results" / METRICS) if row]


def load_events(path: Path, *names: str) -> list[Row]:
    """Load a run's events of these names (default: all) in the order in which they happened. Damaged
    lines are left out, and those of other events are not parsed."""
    prefixes = tuple(f'{{"event": "{name}"'.encode() for name in names)
    return [row for _, row in read_lines(path / "results" / EVENTS, prefixes) if row]


def load_evaluations(path: Path) -> list[Row]:
    """Load the last evaluation of each step."""
    return select_evaluations(load_events(path, "evaluation"))


def select_evaluations(events: Sequence[Row]) -> list[Row]:
    """The last evaluation of each step among these events; a resumed run may have repeated one."""
    by_step = {row["step"]: row for row in events if row["event"] == "evaluation" and "step" in row}
    return [by_step[step] for step in sorted(by_step)]


def load_summary(path: Path) -> dict[str, Any] | None:
    """Load a run's summary, written when it finishes or is interrupted; None before that, and if it
    is damaged: `glasshouse resume` then writes it again."""
    try:
        summary = read_summary(path / "results" / "summary.json")
    except RunDataError:
        return None
    if summary is None:
        return None
    # the directory may have been copied or moved since
    checkpoint = path / "checkpoints" / f"step-{summary['steps_done']:06d}"
    return {**summary, "run": str(path), "checkpoint": str(checkpoint)}


def read_summary(file: Path) -> dict[str, Any] | None:
    """Read and verify a summary; None if there is none."""
    try:
        summary = parse_checked(read_regular_file(file))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunDataError(f"it cannot be read: {error}") from None
    if not isinstance(summary.get("steps_done"), int):
        raise RunDataError("it has no steps_done")
    return summary


@dataclass(slots=True)
class GrowingFile:
    """The rows of a file that another process appends to: each line is parsed once."""

    path: Path
    rows: list[Row] = field(default_factory=list)
    _stamp: tuple[int, int, int] | None = None
    _read: bytes = b""
    """The complete lines so far."""

    def refresh(self) -> bool:
        """Read what was appended; returns whether anything changed."""
        stamp, data = stamp_file(self.path), b""
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        with suppress(OSError):
            data = read_regular_file(self.path)
        if not data.startswith(self._read):
            self.rows, self._read = [], b""  # it was replaced or truncated
        lines = data[len(self._read) : data.rfind(b"\n") + 1]
        self._read += lines
        rows = (parse_line(self.path, text) for text in lines.split(b"\n") if text)
        self.rows += filter(None, rows)
        return True


def stamp_file(path: Path) -> tuple[int, int, int] | None:
    """Changes when the file changes; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


# --- config.yaml: written with its checksum, compared with the copy in every checkpoint ---------------

CONFIG = "config.yaml"
CONFIG_CHECK = "# sha256 "
"""Begins the last line of config.yaml: the checksum of the lines before."""


@dataclass(frozen=True, slots=True)
class RunDamage:
    """One damaged part of a run directory."""

    file: str
    """Path in the run directory."""
    problem: str
    """What is wrong, as the end of a sentence that begins with the file."""
    remedy: str
    """What is lost, what still works, and what to do."""

    def __str__(self) -> str:
        return f"{self.file} {self.problem}. {self.remedy}"


def is_run_directory(path: Path) -> bool:
    return (path / CONFIG).is_file()


def config_text(config: Config) -> str:
    """The content of config.yaml: the configuration and, in the last line, its checksum."""
    text = to_yaml(config)
    return f"{text}{CONFIG_CHECK}{hashlib.sha256(text.encode()).hexdigest()}\n"


def has_config_checksum(file: Path) -> bool:
    """Is config.yaml, byte for byte, what a run wrote?"""
    text, mark, digest = read_regular_file(file).rpartition(CONFIG_CHECK.encode())
    return bool(mark) and digest == f"{hashlib.sha256(text).hexdigest()}\n".encode()


def load_run_config(run: Path) -> Config:
    """Load the configuration that a run was started with; raise if it was changed since."""
    config, damage = load_verified_config(run)
    if damage:
        raise RunError(f"{run / CONFIG} {damage[0].problem}. {damage[0].remedy}")
    return config


def load_verified_config(run: Path) -> tuple[Config, list[RunDamage]]:
    """Load a run's configuration. If config.yaml was changed since the run wrote it, return the copy
    in the newest valid checkpoint and the damage; without such a copy, raise if it cannot be used."""
    file, config = run / CONFIG, None
    try:
        config = load_config([file])
        if has_config_checksum(file):
            return config, []
        problem = "does not match its checksum, and there is no valid checkpoint to compare it with"
    except (OSError, ConfigError, RecursionError) as error:
        problem = f"cannot be used: {str(error).rstrip('.')}"
    newest, _ = newest_checkpoint(run / "checkpoints")
    copy = None
    if newest:
        with suppress(KeyError, ValueError):  # of another version
            copy = Config.model_validate(read_state(newest.path)["config"])
    if not newest or not copy:
        if not config:
            raise RunError(
                f"{run} is not a run directory: {problem.removeprefix('cannot be used: ')}."
            )
        remedy = "Restore it from a copy, or start a new run with another out=…."
        return config, [RunDamage(CONFIG, problem, remedy)]
    changed = diff_configs(copy, config) if config else {}
    changed.pop("out", None)
    if config and not changed:
        return config, []
    state_file = f"checkpoints/{newest.name}/{STATE}"
    if changed:
        listed = [f"{key} ({old!r} → {new!r})" for key, (old, new) in changed.items()]
        problem = f"differs from its copy in {state_file}: {', '.join(listed[:5])}"
        problem += f" and {len(listed) - 5} more" if len(listed) > 5 else ""
    remedy = (
        f'Write the old values back, or replace the file with the value of "config" in {state_file} '
        f"(JSON is valid YAML). To change a key, pass it: {shell_command(['glasshouse', 'resume', run])} "
        "KEY=VALUE. Commands that only read the run use the checkpoint's copy."
    )
    return copy, [RunDamage(CONFIG, problem, remedy)]


# --- as a tree of plain values -----------------------------------------------------------------


def read_run_config(run: Path) -> tuple[dict[str, Any], str]:
    """Return the configuration and a problem; `{}` if it cannot be read.

    Example: `read_run_config(Path("runs/try"))` gives `({"seed": 0, …}, "")`
    """
    try:
        config, damage = load_verified_config(run)
    except GlasshouseError as error:
        return {}, f"cannot be used: {error}"
    return config.model_dump(mode="json"), damage[0].problem if damage else ""
