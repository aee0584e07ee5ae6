"""The run directory: the files of one run, read by monitors, reports, trackers and studies.

config.yaml                  the resolved configuration
data/evaluation.jsonl        the held-out problems
results/metrics.jsonl        one line per training step
results/events.jsonl         one line per event
results/rollouts/            every prompt and completion (docs/rollout_log.md)
results/summary.json         evaluation before and after training, and where the results are
results/monitor.json         monitor results of the base model and each checkpoint
                             (their rows: monitor_rows.jsonl.zst)
results/report.html          the report, as one page
track/                       the run's id for trackers, and files that trackers write
checkpoints/step-000060/     a model in the Hugging Face layout, with everything needed to resume
"""

from __future__ import annotations

import fcntl
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from glasshouse.config import Config, RolloutLogConfig, diff_configs, load_config, to_yaml
from glasshouse.errors import RunError
from glasshouse.store.atomic_files import write_json, write_text
from glasshouse.store.rollout_log import EMPTY_POSITION, RolloutLog

CONFIG = "config.yaml"
LOCK = ".lock"


class RunDirectory:
    """The files of one run, locked by one process at a time.

    Example: `with RunDirectory.open(Path("runs/a"), config) as run: run.log_metrics(row)`
    """

    def __init__(self, path: Path, lock: IO[str], config: RolloutLogConfig) -> None:
        self.path, self.lock = path, lock
        self.results = path / "results"
        self.checkpoints = path / "checkpoints"
        self.rollout_log = RolloutLog(
            self.results / "rollouts", config.compression_level, config.tokens_every
        )

    @classmethod
    def open(cls, path: Path, config: Config) -> RunDirectory:
        """Create a run directory, or open an existing one; raise if it has other files."""
        if path.exists() and not is_run_directory(path) and _has_other_files(path):
            raise RunError(
                f"{path} already holds files, and they are not a run's. "
                "Choose another directory with out=…, or remove this one."
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = acquire_lock(path)
            if not is_run_directory(path) or (path / CONFIG).read_text() != to_yaml(config):
                write_text(path / CONFIG, to_yaml(config))
            _truncate_partial_line(path / "results" / "events.jsonl")
        except OSError as error:
            raise RunError(
                f"The run directory {path} cannot be written: {error.strerror}."
            ) from None
        return cls(path, lock, config.rollout_log)

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *error: object) -> None:
        self.lock.close()

    def log_metrics(self, row: dict[str, Any]) -> None:
        self._append_line("metrics.jsonl", row)

    def log_event(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Append an event with its time to events.jsonl; returns the line."""
        row = {"event": kind, "time": utc_timestamp(), **fields}
        self._append_line("events.jsonl", row)
        return row

    def write_summary(self, value: dict[str, Any]) -> Path:
        path = self.results / "summary.json"
        write_json(path, value)
        return path

    @property
    def has_results(self) -> bool:
        """Has any metric or rollout been logged?"""
        return any(
            (self.results / name).exists() for name in ("metrics.jsonl", "rollouts/manifest.jsonl")
        )

    def get_position(self) -> dict[str, Any]:
        """Flush metrics and rollout log to disk, and return where they end; checkpoints store it."""
        file = self.results / "metrics.jsonl"
        size = 0
        if file.exists():
            with open(file, "rb") as handle:
                os.fsync(handle.fileno())
            size = file.stat().st_size
        return {"metrics": size, "rollouts": self.rollout_log.get_position()}

    def truncate_to(self, position: dict[str, Any]) -> list[dict[str, Any]]:
        """Truncate metrics and rollout log to a position (`{}`: empty them), and delete the summary;
        returns the remaining rows of metrics. Events are kept, including the interruption's."""
        (self.results / "summary.json").unlink(missing_ok=True)
        self.rollout_log.truncate_to(position.get("rollouts", EMPTY_POSITION))
        file, size = self.results / "metrics.jsonl", int(position.get("metrics", 0))
        text = file.read_bytes() if file.exists() else b""
        if len(text) < size:
            raise RunError(
                f"{file} has {len(text)} bytes, fewer than when the checkpoint was saved ({size}). "
                "Restore the file."
            )
        if len(text) > size:
            write_text(file, text[:size].decode())
        return [json.loads(line) for line in text[:size].decode().splitlines()]

    def _append_line(self, name: str, row: dict[str, Any]) -> None:
        with open(self.results / name, "a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def is_run_directory(path: Path) -> bool:
    return (path / CONFIG).is_file()


def load_run_config(path: Path) -> Config:
    """Load the configuration that a run was started with."""
    if not is_run_directory(path):
        raise RunError(f"{path} is not a run directory: it has no {CONFIG}.")
    return load_config([path / CONFIG])


def config_diff(path: Path, config: Config) -> list[str]:
    """List the keys, except `out` and `trackers`, in which a run's configuration differs from
    `config`."""
    run_config = load_run_config(path)
    if not config.task.options:  # the run's options were filled in from its model
        task = config.task.model_copy(update={"options": run_config.task.options})
        config = config.model_copy(update={"task": task})
    return [key for key in diff_configs(run_config, config) if key not in ("out", "trackers")]


def load_summary(path: Path) -> dict[str, Any] | None:
    """Load a run's summary, written when it finishes or is interrupted; None before that."""
    file = path / "results" / "summary.json"
    if not file.is_file():
        return None
    summary: dict[str, Any] = json.loads(file.read_text())
    return summary


def load_metrics(path: Path) -> list[dict[str, Any]]:
    """Load a run's metrics, one row per training step."""
    return [json.loads(line) for line in _read_lines(path / "results" / "metrics.jsonl")]


def load_evaluations(path: Path) -> list[dict[str, Any]]:
    """Load the last evaluation of each step; a resumed run may have repeated one."""
    evaluations: dict[int, dict[str, Any]] = {}
    for line in _read_lines(path / "results" / "events.jsonl"):
        if '"event": "evaluation"' in line:
            row = json.loads(line)
            evaluations[row["step"]] = row
    return [evaluations[step] for step in sorted(evaluations)]


def _read_lines(file: Path) -> list[str]:
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return [line for line in text.split("\n") if line]


def list_numbered_runs(config: Config) -> list[Path]:
    """List the directories `runs/<task>-<algorithm>-<number>` of a configuration, oldest first."""
    prefix = _run_name_prefix(config)
    paths = [
        path for path in Path("runs").glob(f"{prefix}*") if path.name.removeprefix(prefix).isdigit()
    ]
    return sorted(paths, key=lambda path: int(path.name.removeprefix(prefix)))


def next_run_path(config: Config) -> Path:
    """Return `runs/<task>-<algorithm>-<number>` with the next unused number."""
    prefix = _run_name_prefix(config)
    runs = list_numbered_runs(config)
    last = int(runs[-1].name.removeprefix(prefix)) if runs else 0
    return Path("runs") / f"{prefix}{last + 1}"


def _run_name_prefix(config: Config) -> str:
    return f"{config.task.name}-{config.learn.algorithm}-"


def _has_other_files(path: Path) -> bool:
    """Is it a file, or a folder with any files besides those of a run killed at start-up?"""
    startup_files = (LOCK, f".{CONFIG}.tmp")
    return not path.is_dir() or any(entry.name not in startup_files for entry in path.iterdir())


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
            f"{path} is in use by {owner}. Wait until that has ended, or choose another directory "
            "with out=…."
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
