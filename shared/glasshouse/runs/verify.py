"""Verify whatever a run directory holds, before it is used.

`verify_run` is what `glasshouse check` prints. Every command that reads a run uses the parts it needs:

    config.yaml            its checksum, or else the copy in the newest valid checkpoint
    checkpoints/           size and sha256 of every file
    results/rollouts/      every line of the manifest, the sha256 of every frame, and whether the log
                           still holds what it held when the newest checkpoint was saved
    metrics, events,       the checksum in each line or file; a damaged line is left out by readers
    summary, monitor.json
    data/                  the checksum of the manifest and of the held-out problems, and that of each row
                           of the database of seen problems

A damaged part is named, and the others stay usable.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from glasshouse.checksums import find_seen_problem_damage, read_regular_file, remove_check
from glasshouse.config.loading import load_config
from glasshouse.config.rendering import diff_configs
from glasshouse.config.schema import Config
from glasshouse.errors import ConfigError, RunDataError, RunError
from glasshouse.runs import checkpoints, monitor_results
from glasshouse.runs.manifest import MANIFEST, ManifestEntry, read_manifest
from glasshouse.runs.rollout_reader import RolloutReader, find_missing_steps
from glasshouse.runs.run_directory import (
    CONFIG,
    ends_inside_line,
    has_config_checksum,
    read_checked_lines,
    read_summary,
)
from glasshouse.terminal import shell_command

DATA_MANIFEST, HELD_OUT, SEEN_PROBLEMS = "manifest.json", "evaluation.jsonl", "seen_problems.sqlite"


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


@dataclass(frozen=True, slots=True)
class RunCheck:
    """The result of `verify_run`."""

    run: Path
    damage: list[RunDamage] = field(default_factory=list)
    contents: dict[str, str] = field(default_factory=dict)
    """What was verified, by part: `{"checkpoints": "3 of 3 valid"}`."""

    @property
    def is_sound(self) -> bool:
        return not self.damage

    def as_dict(self) -> dict[str, Any]:
        return {
            "run": str(self.run),
            "sound": self.is_sound,
            "contents": self.contents,
            "damage": [asdict(damage) for damage in self.damage],
        }


def verify_run(run: Path) -> RunCheck:
    """Verify every file of a run that another command reads; raise if `run` is not a run directory.

    Example: `verify_run(Path("runs/try")).is_sound`
    """
    _, config_damage = load_verified_config(run)
    entries = checkpoints.list_checkpoints(run / "checkpoints")
    checkpoint_damage = verify_checkpoints(entries)
    state = newest_state(entries)
    reader = RolloutReader(run) if has_rollout_log(run) else None
    log_damage = verify_rollout_log(run, state, reader)
    derived = verify_derived_files(run, state)
    valid = sum(not entry.problems for entry in entries)
    metrics = read_checked_lines(run / "results" / "metrics.jsonl")
    frames = _list_frames(run) if reader else []
    contents = {
        "configuration": "damaged" if config_damage else "intact",
        "checkpoints": f"{valid} of {len(entries)} valid",
        "rollout log": f"{sum(frame.rows for frame in frames):,} rollouts in {len(frames)} frames"
        + (f"; {'; '.join(reader.unfinished)}" if reader and reader.unfinished else ""),
        "metrics": f"{sum(row is not None for _, row in metrics)} of {len(metrics)} steps intact"
        + ("; the last line is incomplete" if ends_inside_line(run) else ""),
    }
    return RunCheck(run, [*config_damage, *checkpoint_damage, *log_damage, *derived], contents)


def _list_frames(run: Path) -> list[ManifestEntry]:
    try:
        lines = read_manifest(run / "results" / "rollouts")
    except RunDataError:
        return []
    return [line.entry for line in lines if line.entry]


# --- configuration -----------------------------------------------------------------------------


def load_verified_config(run: Path) -> tuple[Config, list[RunDamage]]:
    """Load a run's configuration. If config.yaml was changed since the run wrote it, return the copy
    in the newest valid checkpoint and the damage; without such a copy, raise if it cannot be used."""
    file = run / CONFIG
    config, reason = None, ""
    try:
        if has_config_checksum(file):
            return load_config([file]), []
        config = load_config([file])
    except (FileNotFoundError, NotADirectoryError):
        reason = "is missing"
    except OSError as error:
        reason = f"cannot be read: {error}"
    except (ConfigError, RecursionError) as error:
        reason = f"cannot be used: {str(error).rstrip('.')}"
    step, copy = _config_of_checkpoint(run)
    if copy is None:
        if config is None:
            if reason == "is missing":
                raise RunError(f"{run} is not a run directory: it has no {CONFIG}.")
            raise RunError(f"{file} {reason}. Restore it from a copy.")
        remedy = (
            "It may have been changed, so the run is not resumed. Restore it from a copy, or start a "
            "new run with another out=…."
        )
        reason = "does not match its checksum, and there is no valid checkpoint to compare it with"
        return config, [RunDamage(CONFIG, reason, remedy)]
    state_file = f"checkpoints/step-{step:06d}/{checkpoints.STATE}"
    if config is not None:
        changed = [
            f"{key} ({old!r} → {new!r})"
            for key, (old, new) in diff_configs(copy, config).items()
            if key != "out"
        ]
        if not changed:
            return config, []
        listed = ", ".join(changed[:5])
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        reason = f"differs from the configuration of the run, kept in {state_file}: {listed}{more}"
    remedy = (
        f'Write the old values back, or replace the file with the value of "config" in {state_file} '
        f"(JSON is valid YAML). To change a key, pass it: {shell_command(['glasshouse', 'resume', run])} "
        "KEY=VALUE. Commands that only read the run use the checkpoint's copy."
    )
    return copy, [RunDamage(CONFIG, reason, remedy)]


def _config_of_checkpoint(run: Path) -> tuple[int, Config | None]:
    newest, _ = checkpoints.newest_checkpoint(run / "checkpoints")
    if newest is None:
        return 0, None
    try:
        return newest.step, Config.model_validate(checkpoints.read_state(newest.path)["config"])
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        return newest.step, None


# --- checkpoints -------------------------------------------------------------------------------


def verify_checkpoints(entries: list[checkpoints.Checkpoint]) -> list[RunDamage]:
    """List the damage of checkpoints that have been inspected."""
    has_valid = any(not entry.problems for entry in entries)
    remedy = (
        "It is skipped; every other checkpoint works. Restore the file from a copy, or delete the folder."
        if has_valid
        else "No checkpoint is valid, so the run cannot be resumed. Restore a copy of one, or delete "
        "the folder checkpoints to start over."
    )
    return [
        RunDamage(
            f"checkpoints/{entry.path.name}", f"is damaged: {'; '.join(entry.problems)}", remedy
        )
        for entry in entries
        if entry.problems
    ]


def newest_state(entries: list[checkpoints.Checkpoint]) -> dict[str, Any]:
    """Return the state of the newest valid checkpoint; empty if there is none."""
    for entry in reversed(entries):
        if not entry.problems:
            try:
                return checkpoints.read_state(entry.path)
            except (OSError, ValueError):
                continue
    return {}


# --- rollout log -------------------------------------------------------------------------------


def has_rollout_log(run: Path) -> bool:
    return (run / "results" / "rollouts").is_dir()


def verify_rollout_log(
    run: Path, state: dict[str, Any], reader: RolloutReader | None = None
) -> list[RunDamage]:
    """Verify every frame, and that the log holds what it held at the newest checkpoint's state."""
    folder = "results/rollouts"
    if not has_rollout_log(run):
        if _log_position(state).get("lines"):
            remedy = "Every rollout is lost. Restore it from a copy; checkpoints and metrics work."
            return [RunDamage(folder, "is missing", remedy)]
        return []
    reader = reader or RolloutReader(run)
    remedy = (
        "These rollouts are lost; the others can be read, and the run can be resumed. Restore the file "
        "from a copy to get them back."
    )
    try:
        reader.verify_frames()
        items = [*reader.damage, *find_missing_steps(run, reader)]
    except RunDataError as error:  # the manifest is not a file that can be read
        return [RunDamage(f"{folder}/{MANIFEST}", f"is damaged: {error}", remedy)]
    damage = [RunDamage(folder, f"is damaged: {item}", remedy) for item in items]
    damage += _compare_with_position(run / folder, _log_position(state))
    return damage or _compare_with_summary(run, remedy)


def _compare_with_summary(run: Path, remedy: str) -> list[RunDamage]:
    """Has the log of a finished run lost its last frame, which may be newer than any checkpoint?"""
    try:
        summary = read_summary(run / "results" / "summary.json") or {}
    except RunDataError:
        return []
    if len(_list_frames(run)) >= summary.get("rollout_log", {}).get("frames", 0):
        return []
    problem = "lists fewer frames than summary.json counts"
    return [RunDamage(f"results/rollouts/{MANIFEST}", problem, remedy)]


def verify_manifest(run: Path, state: dict[str, Any]) -> list[RunDamage]:
    """Verify the list of rollouts without reading them, for a reader that verifies each frame itself."""
    name = f"results/rollouts/{MANIFEST}"
    remedy = "These rollouts are left out here; glasshouse rollouts reads what is left of them."
    if not has_rollout_log(run):
        return verify_rollout_log(run, state)
    reader = RolloutReader(run)
    try:
        lines = read_manifest(reader.folder)
        missing = find_missing_steps(run, reader)
    except RunDataError as error:
        return [RunDamage(name, f"cannot be read: {error}", remedy)]
    bad = [n for n, line in enumerate(lines, 1) if line.entry is None and not line.is_incomplete]
    damage = [RunDamage("results/rollouts", f"is damaged: {item}", remedy) for item in missing]
    if bad:
        listed = ", ".join(map(str, bad[:5])) + (", …" if len(bad) > 5 else "")
        damage.append(RunDamage(name, f"is damaged in line {listed}", remedy))
    return damage + _compare_with_position(reader.folder, _log_position(state))


def _log_position(state: dict[str, Any]) -> dict[str, Any]:
    position = state.get("log_position")
    rollouts = position.get("rollouts") if isinstance(position, dict) else None
    return rollouts if isinstance(rollouts, dict) else {}


def _compare_with_position(folder: Path, position: dict[str, Any]) -> list[RunDamage]:
    """Has the log lost bytes that it held when the newest checkpoint was saved?"""
    if not position.get("lines"):
        return []
    remedy = (
        "The newest checkpoint cannot be resumed with this log. Restore the file from a copy, or "
        "delete that checkpoint to resume from an older one."
    )
    end = position["bytes"].get(MANIFEST, 0)
    try:
        start = read_regular_file(folder / MANIFEST)[:end]
    except OSError:
        start = b""
    name = f"results/rollouts/{MANIFEST}"
    if len(start) < end:
        return [RunDamage(name, f"has lost {end - len(start):,} bytes", remedy)]
    if hashlib.sha256(start).hexdigest() != position["sha256"]:
        return [RunDamage(name, "differs from what the newest checkpoint was saved with", remedy)]
    return []


# --- metrics, events, summary, monitor results -------------------------------------------------


def verify_derived_files(run: Path, state: dict[str, Any]) -> list[RunDamage]:
    """Verify the files that hold results only: none of them is needed to resume a run."""
    damage = verify_curves(run, state)
    damage += _verify_monitor_results(run / "results")
    damage += _verify_data(run / "data")
    return damage


def verify_curves(run: Path, state: dict[str, Any]) -> list[RunDamage]:
    """Verify metrics, events and summary: what curves and times are read from."""
    results = run / "results"
    damage = []
    for name, content in (("metrics.jsonl", "steps"), ("events.jsonl", "events")):
        damage += _verify_lines(results / name, content)
    damage += _verify_metrics_size(results / "metrics.jsonl", state)
    damage += _verify_evaluations(run)
    damage += _verify_summary(run)
    return damage


def name_curve_damage(run: Path, warn: Callable[[str], None]) -> None:
    """Pass a sentence to `warn` for each damage of what curves and times are read from. Quick: of the
    checkpoints, only the newest state is read.

    Example: `name_curve_damage(Path("runs/try"), print)`
    """
    for damage in verify_curves(run, checkpoints.read_newest_state(run / "checkpoints")):
        warn(f"{run}: {damage}")


def _verify_lines(file: Path, content: str) -> list[RunDamage]:
    if file.exists() and not file.is_file():
        return [RunDamage(f"results/{file.name}", "is not a regular file", "Remove it.")]
    lines = read_checked_lines(file)
    bad = [number for number, (_, row) in enumerate(lines, 1) if row is None]
    if not bad:
        return []
    listed = ", ".join(map(str, bad[:5])) + (", …" if len(bad) > 5 else "")
    remedy = f"These {content} are left out of reports and uploads; everything else works."
    return [RunDamage(f"results/{file.name}", f"is damaged in line {listed}", remedy)]


def _verify_metrics_size(file: Path, state: dict[str, Any]) -> list[RunDamage]:
    position = state.get("log_position")
    expected = position.get("metrics", 0) if isinstance(position, dict) else 0
    size = file.stat().st_size if file.is_file() else 0
    if size >= expected:
        return []
    remedy = (
        "The metrics of some steps are lost; the run can be resumed, and everything else works."
    )
    return [RunDamage(f"results/{file.name}", f"has lost {expected - size:,} bytes", remedy)]


def _verify_evaluations(run: Path) -> list[RunDamage]:
    """An evaluation is logged as rollouts first and as an event then, so only the last may lack one."""
    logged = {
        row.get("step")
        for _, row in read_checked_lines(run / "results" / "events.jsonl")
        if row and row["event"] == "evaluation"
    }
    steps = sorted({frame.step for frame in _list_frames(run) if frame.kind == "validation"})
    if steps and not (run / "results" / "summary.json").exists():
        steps = steps[:-1]
    missing = [step for step in steps if step not in logged]
    if not missing:
        return []
    remedy = "Curves lack them; their rollouts are in the rollout log (split validation)."
    listed = ", ".join(map(str, missing[:5]))
    problem = f"lacks the evaluation after step {listed}"
    return [RunDamage("results/events.jsonl", problem, remedy)]


def _verify_summary(run: Path) -> list[RunDamage]:
    command = shell_command(["glasshouse", "resume", run])
    remedy = f"Reports show the run as unfinished; {command} writes it again."
    try:
        summary = read_summary(run / "results" / "summary.json")
    except RunDataError as error:
        return [RunDamage("results/summary.json", f"is damaged: {error}", remedy)]
    if summary is None:
        events = [
            row["event"] for _, row in read_checked_lines(run / "results" / "events.jsonl") if row
        ]
        phases = [event for event in events if event in ("start", "resume", "end")]
        if phases and phases[-1] == "end":
            return [RunDamage("results/summary.json", "is missing", remedy)]
    return []


def _verify_data(folder: Path) -> list[RunDamage]:
    """Verify the held-out problems, the manifest of the data and the database of seen problems. All of
    them follow from the configuration: a resumed run writes them again."""
    damage = []
    remedy = "No result depends on it; glasshouse resume writes it again."
    manifest: dict[str, Any] = {}
    try:
        manifest = remove_check(json.loads(read_regular_file(folder / DATA_MANIFEST)))
    except FileNotFoundError:
        pass  # an older run, or one that was killed at its start
    except (OSError, ValueError, RecursionError) as error:
        damage.append(RunDamage(f"data/{DATA_MANIFEST}", f"is damaged: {error}", remedy))
    expected = manifest.get("validation", {})
    if "sha256" in expected:
        try:
            actual = hashlib.sha256(read_regular_file(folder / HELD_OUT)).hexdigest()
            problem = "" if actual == expected["sha256"] else "is damaged: its sha256 is wrong"
        except OSError as error:
            problem = (
                "is missing" if isinstance(error, FileNotFoundError) else f"is damaged: {error}"
            )
        if problem:
            damage.append(RunDamage(f"data/{HELD_OUT}", problem, remedy))
    seen = folder / SEEN_PROBLEMS
    if seen.exists() and (problem := find_seen_problem_damage(seen)):
        remedy = "It is made again, by repeating the draws, when the run is resumed."
        damage.append(RunDamage(f"data/{SEEN_PROBLEMS}", f"is damaged: it {problem}", remedy))
    return damage


def _verify_monitor_results(results: Path) -> list[RunDamage]:
    name = f"results/{monitor_results.RESULTS_FILE}"
    remedy = "Run glasshouse monitor again to measure what is lost; the run itself is not affected."
    try:
        content = monitor_results.read_monitor_results(results)
    except RunDataError as error:
        return [RunDamage(name, f"is damaged: {error.args[0].split(': ', 1)[-1]}", remedy)]
    if content is None:
        if (results / monitor_results.ROWS_FILE).exists() and not (
            results / monitor_results.RESULTS_FILE
        ).exists():
            return [RunDamage(name, "is missing, but its rows exist", remedy)]
        return []
    bad = monitor_results.find_damaged_rows(results, content)
    file = f"results/{monitor_results.ROWS_FILE}"
    return [RunDamage(file, f"is damaged in the rows of {', '.join(bad)}", remedy)] if bad else []
