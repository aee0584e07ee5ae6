"""Verify whatever a run directory holds, before it is used.

`verify_run` is what `glasshouse check` prints. Every command that reads a run uses the parts it needs:

    config.yaml            its checksum, or else the copy in the newest valid checkpoint
    checkpoints/           size and sha256 of every file
    rollouts.jsonl.zst     every header, the sha256 of every frame, and whether the log still holds what it
                           held when the newest checkpoint was saved
    metrics, events,       the checksum in each line or file; a damaged line is left out by readers
    summary, monitor.json
    data/                  the checksum of the manifest and of the held-out problems

A damaged part is named, and the others stay usable.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from glasshouse.checksums import read_regular_file, remove_check
from glasshouse.errors import RunDataError
from glasshouse.runs import checkpoints, monitor_results
from glasshouse.runs.lines import EVENTS, METRICS, ends_inside_line, read_lines
from glasshouse.runs.rollout_log import (
    EMPTY_POSITION,
    LOG,
    LogSize,
    RolloutReader,
    refuse_other_version,
    scan_log,
)
from glasshouse.runs.rows import RolloutFilter
from glasshouse.runs.run_config import RunDamage, load_verified_config
from glasshouse.runs.run_directory import load_events, load_metrics, read_summary
from glasshouse.terminal import count_noun, shell_command

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
    _, damage = load_verified_config(run)
    refuse_other_version(run)
    entries = checkpoints.list_checkpoints(run / "checkpoints")
    state = checkpoints.read_newest_state(run / "checkpoints")
    metrics = read_lines(run / "results" / METRICS)
    valid = sum(not entry.damage for entry in entries)
    contents = {
        "configuration": "damaged" if damage else "intact",
        "checkpoints": f"{valid} of {len(entries)} valid",
        "rollout log": "damaged",
        "metrics": f"{sum(row is not None for _, row in metrics)} of {len(metrics)} steps intact"
        + ("; the last line is incomplete" if ends_inside_line(run / "results" / METRICS) else ""),
    }
    with suppress(RunDataError):
        log = scan_log(run / "results" / LOG)
        size = LogSize.of(log.frames)
        contents["rollout log"] = f"{size.rows:,} rollouts in {size.frames} frames"
        if log.unfinished:
            contents["rollout log"] += "; the last frame is incomplete"
    damage = [
        *damage,
        *verify_checkpoints(entries),
        *verify_rollout_log(run, state),
        *verify_derived_files(run, state),
    ]
    return RunCheck(run, damage, contents)


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


def verify_rollout_log(run: Path, state: dict[str, Any], *, frames: bool = True) -> list[RunDamage]:
    """Verify every frame, and that the log holds what it held at the newest checkpoint's state. Without
    `frames` only headers are read, for a reader that verifies each frame itself."""
    name = f"results/{LOG}"
    if not (run / name).exists():
        if not _log_position(state)["bytes"]:
            return []
        remedy = "Every rollout is lost. Restore it from a copy; checkpoints and metrics work."
        return [RunDamage(name, "is missing", remedy)]
    try:
        reader = RolloutReader(run)
        last = math.inf if frames else -1
        for _ in reader.iter_rows(RolloutFilter(last_step=last)):
            pass
        problems = [*reader.damage, *find_lost_rollouts(run, state)]
    except RunDataError as error:  # it is not a file that can be read
        problems = [str(error)]
    remedy = (
        "These rollouts are lost; glasshouse rollouts reads the others, and the run can be resumed. "
        "Restore the file from a copy to get them back."
    )
    return [RunDamage(name, f"is damaged: {problem}", remedy) for problem in problems]


def find_lost_rollouts(run: Path, state: dict[str, Any]) -> list[str]:
    """Say what a log without damaged bytes lacks: compared with the newest checkpoint's state, with the metrics,
    whose steps are logged after their rollouts, and with the summary of a finished run."""
    log = scan_log(run / "results" / LOG)
    lost = log.find_difference(_log_position(state))
    problems = [f"it {lost}"] if lost else []
    logged = {frame.step for frame in log.frames if frame.kind == "train"}
    missing = sorted({row["step"] for row in load_metrics(run)} - logged)
    if missing:
        steps = f"{count_noun(len(missing), 'step')} {'is' if len(missing) == 1 else 'are'}"
        problems.append(
            f"train, step {missing[0]}: {steps} in metrics.jsonl but not in the rollout log"
        )
    with suppress(RunDataError):
        summary = read_summary(run / "results" / "summary.json") or {}
        if not problems and len(log.frames) < summary.get("rollout_log", {}).get("frames", 0):
            problems.append("it has fewer frames than summary.json counts")
    return problems


def _log_position(state: dict[str, Any]) -> dict[str, Any]:
    return state.get("log_position", {}).get("rollouts", EMPTY_POSITION)


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
    steps: list[int] = []
    with suppress(RunDataError):
        frames = scan_log(run / "results" / LOG).frames
        steps = sorted({frame.step for frame in frames if frame.kind == "validation"})
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
