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

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glasshouse.errors import RunDataError
from glasshouse.files import compute_checksum, parse_checked, read_regular_file
from glasshouse.runs import monitor_results
from glasshouse.runs.checkpoints import Checkpoint, list_checkpoints, read_newest_state
from glasshouse.runs.rollout_log import EMPTY_POSITION, LOG, LogSize, RolloutReader, scan_log
from glasshouse.runs.run_directory import (
    EVENTS,
    METRICS,
    RunDamage,
    load_events,
    load_metrics,
    load_verified_config,
    read_lines,
    read_summary,
)
from glasshouse.terminal import count_noun, shell_command


@dataclass(frozen=True, slots=True)
class RunCheck:
    """The result of `verify_run`."""

    run: Path
    damage: list[RunDamage] = field(default_factory=list)
    contents: dict[str, str] = field(default_factory=dict)
    """What was verified, by part: `{"checkpoints": "3 of 3 valid"}`."""
    checkpoints: list[Checkpoint] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not self.damage


def verify_run(run: Path) -> RunCheck:
    """Verify every file of a run that another command reads; raise if `run` is not a run directory.

    Example: `verify_run(Path("runs/try")).is_sound`
    """
    _, damage = load_verified_config(run)
    checkpoints = list_checkpoints(run / "checkpoints")
    state = read_newest_state(run / "checkpoints")
    metrics = read_lines(run / "results" / METRICS)
    valid = sum(not checkpoint.damage for checkpoint in checkpoints)
    contents = {
        "configuration": "damaged" if damage else "intact",
        "checkpoints": f"{valid} of {len(checkpoints)} valid",
        "rollout log": "damaged",
        "metrics": f"{sum(row is not None for _, row in metrics)} of {len(metrics)} steps intact",
    }
    with suppress(RunDataError):
        log = scan_log(run / "results" / LOG)
        size = LogSize.of(log.frames)
        contents["rollout log"] = f"{size.rows:,} rollouts in {size.frames} frames"
        if log.unfinished:
            contents["rollout log"] += "; the last frame is incomplete"
    remedy = (
        "It is skipped; every other checkpoint works. Restore the file from a copy, or delete the folder."
        if valid
        else "No checkpoint is valid, so the run cannot be resumed. Restore a copy of one, or delete "
        "the folder checkpoints to start over."
    )
    damage = [
        *damage,
        *(
            RunDamage(f"checkpoints/{c.name}", f"is damaged: {'; '.join(c.damage)}", remedy)
            for c in checkpoints
            if c.damage
        ),
        *verify_rollout_log(run, state),
        *verify_derived_files(run, state),
    ]
    return RunCheck(run, damage, contents, checkpoints)


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
        reader.verify(frames=frames)
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


# --- files that hold results only: none of them is needed to resume a run ------------------------


def verify_derived_files(run: Path, state: dict[str, Any]) -> list[RunDamage]:
    """Verify metrics, events, summary, monitor results and data."""
    return [
        *verify_curves(run, state),
        *_verify_monitor_results(run / "results"),
        *_verify_data(run / "data"),
    ]


def verify_curves(run: Path, state: dict[str, Any]) -> list[RunDamage]:
    """Verify metrics, events and summary: what curves and times are read from."""
    return [
        *_verify_lines(run / "results" / METRICS, "steps"),
        *_verify_lines(run / "results" / EVENTS, "events"),
        *_verify_lost_lines(run, state),
        *_verify_summary(run),
    ]


def name_curve_damage(run: Path, warn: Callable[[str], None]) -> None:
    """Pass a sentence to `warn` for each damage of what curves and times are read from. Quick: of the
    checkpoints, only the newest state is read.

    Example: `name_curve_damage(Path("runs/try"), print)`
    """
    for damage in verify_curves(run, read_newest_state(run / "checkpoints")):
        warn(f"{run}: {damage}")


def _verify_lines(file: Path, content: str) -> Iterator[RunDamage]:
    if file.exists() and not file.is_file():
        yield RunDamage(f"results/{file.name}", "is not a regular file", "Remove it.")
    bad = [number for number, (_, row) in enumerate(read_lines(file), 1) if row is None]
    if bad:
        listed = ", ".join(map(str, bad[:5])) + (", …" if len(bad) > 5 else "")
        remedy = f"These {content} are left out of reports and uploads; everything else works."
        yield RunDamage(f"results/{file.name}", f"is damaged in line {listed}", remedy)


def _verify_lost_lines(run: Path, state: dict[str, Any]) -> Iterator[RunDamage]:
    """Metrics are compared with the newest checkpoint's state, and evaluations with the rollout log: their
    rollouts are logged first and an event then, so only the last may lack one."""
    file = run / "results" / METRICS
    expected = state.get("log_position", {}).get("metrics", 0)
    size = file.stat().st_size if file.is_file() else 0
    if size < expected:
        remedy = "The metrics of some steps are lost; the run can be resumed, and the rest works."
        yield RunDamage(f"results/{METRICS}", f"has lost {expected - size:,} bytes", remedy)
    steps: list[int] = []
    with suppress(RunDataError):
        frames = scan_log(run / "results" / LOG).frames
        steps = sorted({frame.step for frame in frames if frame.kind == "validation"})
    if not (run / "results" / "summary.json").exists():
        steps = steps[:-1]
    logged = {row.get("step") for row in load_events(run, "evaluation")}
    if missing := [step for step in steps if step not in logged]:
        remedy = "Curves lack them; their rollouts are in the rollout log (split validation)."
        listed = ", ".join(map(str, missing[:5]))
        yield RunDamage(f"results/{EVENTS}", f"lacks the evaluation after step {listed}", remedy)


def _verify_summary(run: Path) -> Iterator[RunDamage]:
    command = shell_command(["glasshouse", "resume", run])
    remedy = f"Reports show the run as unfinished; {command} writes it again."
    problem = ""
    try:
        if read_summary(run / "results" / "summary.json") is None:
            phases = load_events(run, "start", "resume", "end")
            problem = "is missing" if phases and phases[-1]["event"] == "end" else ""
    except RunDataError as error:
        problem = f"is damaged: {error}"
    if problem:
        yield RunDamage("results/summary.json", problem, remedy)


def _verify_data(folder: Path) -> Iterator[RunDamage]:
    """Verify the held-out problems and the manifest of the data. Both follow from the configuration: a
    resumed run writes them again."""
    remedy = "No result depends on it; glasshouse resume writes it again."
    manifest, validation = folder / "manifest.json", folder / "validation.jsonl"
    expected: dict[str, Any] = {}
    if manifest.exists():  # a run that was killed at its start has none
        try:
            expected = parse_checked(read_regular_file(manifest))["validation"]
        except (OSError, ValueError, KeyError, RecursionError) as error:
            yield RunDamage(f"data/{manifest.name}", f"is damaged: {error}", remedy)
    if "sha256" in expected:
        if not validation.is_file():
            yield RunDamage(f"data/{validation.name}", "is missing", remedy)
        elif compute_checksum(validation)["sha256"] != expected["sha256"]:
            yield RunDamage(f"data/{validation.name}", "is damaged: its sha256 is wrong", remedy)


def _verify_monitor_results(results: Path) -> Iterator[RunDamage]:
    name, rows = monitor_results.RESULTS_FILE, monitor_results.ROWS_FILE
    remedy = "Run glasshouse monitor again to measure what is lost; the run itself is not affected."
    try:
        content = monitor_results.read_monitor_results(results)
    except RunDataError as error:
        problem = f"is damaged: {error.args[0].split(': ', 1)[-1]}"
        yield RunDamage(f"results/{name}", problem, remedy)
        return
    has_rows = (results / rows).exists() or (results / LOG).exists()  # a study keeps neither
    if has_rows and content and (bad := monitor_results.find_damaged_rows(results, content)):
        yield RunDamage(f"results/{rows}", f"is damaged in the rows of {', '.join(bad)}", remedy)
    if (results / rows).exists() and not (results / name).exists():
        yield RunDamage(f"results/{name}", "is missing, but its rows exist", remedy)
