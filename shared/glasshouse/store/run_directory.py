"""The run directory: the API between training and everything that looks at it later.

config.yaml                  the resolved configuration
data/evaluation.jsonl        the held-out problems
results/metrics.jsonl        a line a step
results/events.jsonl         a line an event
results/rollouts/            every prompt and completion
results/summary.json         before, after, and where it all is
results/monitor.json         how readable the base and each checkpoint are (monitor_rows.jsonl.zst)
results/report.html          all of it for people, in one page
track/                       what trackers need: the run's id, and the files of those that write files
checkpoints/step-000060/     a model in the Hugging Face layout, and all that is needed to go on
"""

from __future__ import annotations

import fcntl
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from glasshouse.config import Config, RolloutLogConfig, changes, dump
from glasshouse.config import load as load_config
from glasshouse.errors import RunError
from glasshouse.store.atomic_files import write_json, write_text
from glasshouse.store.rollout_log import START, RolloutLog

CONFIG = "config.yaml"
LOCK = ".lock"


class RunDirectory:
    """One run's files, held by one process at a time.

    Example: `with RunDirectory.open(Path("runs/a"), config) as run: run.metrics(row)`
    """

    def __init__(self, path: Path, lock: IO[str], record: RolloutLogConfig) -> None:
        self.path, self.lock = path, lock
        self.results = path / "results"
        self.checkpoints = path / "checkpoints"
        self.rollouts = RolloutLog(
            self.results / "rollouts", record.compression_level, record.tokens_every
        )

    @classmethod
    def open(cls, path: Path, config: Config) -> RunDirectory:
        """A new directory, or the one of a run that goes on; never one that holds something else."""
        if path.exists() and not holds_run(path) and (not path.is_dir() or _others(path)):
            raise RunError(
                f"{path} already holds files, and they are not a run's. "
                "Choose another directory with out=…, or remove this one."
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = locked(path)
            if not holds_run(path) or (path / CONFIG).read_text() != dump(config):
                write_text(path / CONFIG, dump(config))
            _mend(path / "results" / "events.jsonl")
        except OSError as error:
            raise RunError(
                f"The run directory {path} cannot be written: {error.strerror}."
            ) from None
        return cls(path, lock, config.rollout_log)

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *error: object) -> None:
        self.lock.close()

    def metrics(self, row: dict[str, Any]) -> None:
        self._line("metrics.jsonl", row)

    def event(self, kind: str, **what: Any) -> dict[str, Any]:
        """Something happened: what, at which step, when. Returns the line."""
        row = {"event": kind, "time": now(), **what}
        self._line("events.jsonl", row)
        return row

    def summary(self, value: dict[str, Any]) -> Path:
        path = self.results / "summary.json"
        write_json(path, value)
        return path

    @property
    def begun(self) -> bool:
        """Has anything been recorded?"""
        return any(
            (self.results / name).exists() for name in ("metrics.jsonl", "rollouts/manifest.jsonl")
        )

    def position(self) -> dict[str, Any]:
        """How far the record reaches, all of it on disk: what a checkpoint notes."""
        file = self.results / "metrics.jsonl"
        size = 0
        if file.exists():
            with open(file, "rb") as handle:
                os.fsync(handle.fileno())
            size = file.stat().st_size
        return {"metrics": size, "rollouts": self.rollouts.position()}

    def rewind(self, position: dict[str, Any]) -> list[dict[str, Any]]:
        """Cut the record back to a position, an empty one to its beginning; returns the rows of metrics
        that are left. Events stay: they tell what happened, the interruption too."""
        (self.results / "summary.json").unlink(missing_ok=True)
        self.rollouts.rewind(position.get("rollouts", START))
        file, size = self.results / "metrics.jsonl", int(position.get("metrics", 0))
        text = file.read_bytes() if file.exists() else b""
        if len(text) < size:
            raise RunError(
                f"{file} is shorter than the checkpoint says ({len(text)} of {size} bytes)."
            )
        if len(text) > size:
            write_text(file, text[:size].decode())
        return [json.loads(line) for line in text[:size].decode().splitlines()]

    def _line(self, name: str, row: dict[str, Any]) -> None:
        with open(self.results / name, "a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def holds_run(path: Path) -> bool:
    return (path / CONFIG).is_file()


def config_of(path: Path) -> Config:
    """The configuration that a run was started with."""
    if not holds_run(path):
        raise RunError(f"{path} is not a run directory: it has no {CONFIG}.")
    return load_config([path / CONFIG])


def unlike(path: Path, wanted: Config) -> list[str]:
    """The keys, but for `out` and `track`, in which a run that is there differs from the one that is
    wanted."""
    there = config_of(path)
    if not wanted.task.options:  # filled in from the model's own range
        task = wanted.task.model_copy(update={"options": there.task.options})
        wanted = wanted.model_copy(update={"task": task})
    return [key for key in changes(there, wanted) if key not in ("out", "track")]


def summary_of(path: Path) -> dict[str, Any] | None:
    """A run's summary, if it came to its end."""
    file = path / "results" / "summary.json"
    if not file.is_file():
        return None
    summary: dict[str, Any] = json.loads(file.read_text())
    return summary


def metrics_of(path: Path) -> list[dict[str, Any]]:
    """A row a training step."""
    file = path / "results" / "metrics.jsonl"
    return [json.loads(line) for line in _lines(file)]


def evaluations_of(path: Path) -> list[dict[str, Any]]:
    """The last evaluation of each step: a run that was interrupted may have repeated one."""
    found: dict[int, dict[str, Any]] = {}
    for line in _lines(path / "results" / "events.jsonl"):
        if '"event": "evaluation"' in line:
            row = json.loads(line)
            found[row["step"]] = row
    return [found[step] for step in sorted(found)]


def _lines(file: Path) -> list[str]:
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return [line for line in text.split("\n") if line]


def stem(config: Config) -> str:
    return f"{config.task.name}-{config.learn.algorithm}"


def numbered(config: Config) -> list[Path]:
    """The runs that this configuration's name has, oldest first."""
    found = Path("runs").glob(f"{stem(config)}-*")
    paths = [p for p in found if p.name.removeprefix(f"{stem(config)}-").isdigit()]
    return sorted(paths, key=lambda p: int(p.name.rpartition("-")[2]))


def next_free(config: Config) -> Path:
    """runs/<task>-<algorithm>-<number>, one more than the last."""
    taken = numbered(config)
    last = int(taken[-1].name.rpartition("-")[2]) if taken else 0
    return Path("runs") / f"{stem(config)}-{last + 1}"


def _others(path: Path) -> bool:
    """Is there anything but what a run leaves that was killed in its very first moment?"""
    return any(entry.name not in (LOCK, f".{CONFIG}.tmp") for entry in path.iterdir())


def locked(path: Path) -> IO[str]:
    """The lock that goes with the process, however it ends."""
    lock = open(path / LOCK, "a+", encoding="utf-8")  # noqa: SIM115  # held as long as the run
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        owner = lock.read().strip() or "another process"
        lock.close()
        raise RunError(
            f"{path} is being written by {owner}; wait until it has ended, or choose another "
            "directory with out=…."
        ) from None
    lock.truncate(0)
    lock.write(f"process {os.getpid()}")
    lock.flush()
    return lock


def held(path: Path) -> bool:
    """Is another process writing into it?"""
    try:
        with open(path / LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _mend(file: Path) -> None:
    """Cut off a line that a crash left unfinished."""
    if file.exists():
        text = file.read_bytes()
        if not text.endswith(b"\n"):
            os.truncate(file, text.rfind(b"\n") + 1)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
