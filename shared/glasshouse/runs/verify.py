"""Verify whatever a run directory holds, before it is used.

`verify_run` is what `glasshouse check` prints. Every command that reads a run uses the parts it needs:

    config.yaml            its checksum, or else the copy in the newest valid checkpoint
    checkpoints/           size and sha256 of every file
    results/rollouts/      every line of the manifest, the sha256 of every frame, and whether the log
                           still holds what it held when the newest checkpoint was saved
    metrics, events,       the checksum in each line or file; a damaged line is left out by readers
    summary, monitor.json
    data/                  the checksum of the manifest and of the held-out problems

A damaged part is named, and the others stay usable.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from glasshouse.checksums import read_regular_file, remove_check
from glasshouse.errors import RunDataError
from glasshouse.runs import checkpoints, monitor_results
from glasshouse.runs.lines import EVENTS, METRICS, ends_inside_line, read_lines
from glasshouse.runs.manifest import MANIFEST, ManifestEntry, read_manifest
from glasshouse.runs.rollout_reader import RolloutReader, find_missing_steps
from glasshouse.runs.run_config import RunDamage, load_verified_config
from glasshouse.runs.run_directory import load_events, read_summary
from glasshouse.terminal import shell_command

DATA_MANIFEST, VALIDATION = "manifest.json", "validation.jsonl"


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
    state = checkpoints.read_newest_state(run / "checkpoints")
    reader = RolloutReader(run) if (run / "results" / "rollouts").is_dir() else None
    log_damage = verify_rollout_log(run, state, reader)
    derived = verify_derived_files(run, state)
    valid = sum(not entry.damage for entry in entries)
    metrics = read_lines(run / "results" / METRICS)
    frames = _list_frames(run) if reader else []
    contents = {
        "configuration": "damaged" if config_damage else "intact",
        "checkpoints": f"{valid} of {len(entries)} valid",
        "rollout log": f"{sum(frame.rows for frame in frames):,} rollouts in {len(frames)} frames"
        + (f"; {'; '.join(reader.unfinished)}" if reader and reader.unfinished else ""),
        "metrics": f"{sum(row is not None for _, row in metrics)} of {len(metrics)} steps intact"
        + ("; the last line is incomplete" if ends_inside_line(run / "results" / METRICS) else ""),
    }
    return RunCheck(run, [*config_damage, *checkpoint_damage, *log_damage, *derived], contents)


def _list_frames(run: Path) -> list[ManifestEntry]:
    try:
        lines = read_manifest(run / "results" / "rollouts")
    except RunDataError:
        return []
    return [line.entry for line in lines if line.entry]


# --- checkpoints -------------------------------------------------------------------------------


def verify_checkpoints(entries: list[checkpoints.Checkpoint]) -> list[RunDamage]:
    """List the damage of checkpoints that have been inspected."""
    has_valid = any(not entry.damage for entry in entries)
    remedy = (
        "It is skipped; every other checkpoint works. Restore the file from a copy, or delete the folder."
        if has_valid
        else "No checkpoint is valid, so the run cannot be resumed. Restore a copy of one, or delete "
        "the folder checkpoints to start over."
    )
    return [
        RunDamage(
            f"checkpoints/{entry.path.name}", f"is damaged: {'; '.join(entry.damage)}", remedy
        )
        for entry in entries
        if entry.damage
    ]


# --- rollout log -------------------------------------------------------------------------------


def verify_rollout_log(
    run: Path, state: dict[str, Any], reader: RolloutReader | None = None, *, frames: bool = True
) -> list[RunDamage]:
    """Verify the manifest and every frame, and that the log holds what it held at the newest
    checkpoint's state. Without `frames` they are not read, for a reader that verifies each itself."""
    folder = "results/rollouts"
    if not (run / folder).is_dir():
        if _log_position(state).get("lines"):
            remedy = "Every rollout is lost. Restore it from a copy; checkpoints and metrics work."
            return [RunDamage(folder, "is missing", remedy)]
        return []
    reader = reader or RolloutReader(run)
    remedy = (
        "These rollouts are lost; glasshouse rollouts reads the others, and the run can be resumed. "
        "Restore the file from a copy to get them back."
    )
    try:
        items = [*reader.verify(frames), *find_missing_steps(run, reader)]
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
    for name, content in ((METRICS, "steps"), (EVENTS, "events")):
        damage += _verify_lines(results / name, content)
    damage += _verify_metrics_size(results / METRICS, state)
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
    lines = read_lines(file)
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
    logged = {row.get("step") for row in load_events(run, "evaluation")}
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
        phases = load_events(run, "start", "resume", "end")
        if phases and phases[-1]["event"] == "end":
            return [RunDamage("results/summary.json", "is missing", remedy)]
    return []


def _verify_data(folder: Path) -> list[RunDamage]:
    """Verify the held-out problems and the manifest of the data. Both follow from the configuration: a
    resumed run writes them again."""
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
            actual = hashlib.sha256(read_regular_file(folder / VALIDATION)).hexdigest()
            problem = "" if actual == expected["sha256"] else "is damaged: its sha256 is wrong"
        except OSError as error:
            problem = (
                "is missing" if isinstance(error, FileNotFoundError) else f"is damaged: {error}"
            )
        if problem:
            damage.append(RunDamage(f"data/{VALIDATION}", problem, remedy))
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
