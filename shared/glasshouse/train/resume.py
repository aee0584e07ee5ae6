"""Where a configuration's run is, and whether it may go on from there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from glasshouse.config import Config, changes, dump, leaves
from glasshouse.errors import RunError
from glasshouse.store import checkpoints
from glasshouse.store.atomic_files import write_text
from glasshouse.store.checkpoints import Checkpoint
from glasshouse.store.run_directory import (  # fmt: skip
    CONFIG,
    LOCK,
    RunDirectory,
    config_of,
    held,
    holds_run,
    next_free,
    numbered,
    summary_of,
)

UNBOUND = {
    "out", "steps", "checkpoints", "diagnostics", "monitor", "backend", "monarch", "hosts", "trackers",
}  # fmt: skip
"""Keys that change nothing of what a step computes: a run may go on under others."""


def place(config: Config) -> Path:
    """`out`, or the last numbered run of this very configuration if it has not come to its end, or
    a new one."""
    if config.out:
        return Path(config.out)
    for path in numbered(config)[-1:]:
        unfinished = holds_run(path) and not held(path) and not finished(path, config)
        if unfinished and not set(changes(config_of(path), config)) - {"out"}:
            return path
    return next_free(config)


def finished(path: Path, config: Config) -> dict[str, Any] | None:
    """The summary of a run that has done all steps which the configuration asks for."""
    summary = summary_of(path)
    if summary is None or "interrupted_at" in summary:
        return None
    done = summary["steps_done"] == config.steps or "used_up_at" in summary
    return {**summary, "run": str(path)} if done else None  # it may have been moved since


def check_same(path: Path, config: Config) -> None:
    """Refuse to go on with a configuration that would give other numbers."""
    before = config_of(path)
    # a decay is stretched over the steps, and a lag generates nothing ahead of the last one
    bound = (
        {"steps"} if config.learn.lr_schedule != "constant" or config.max_offpolicy_steps else set()
    )
    unbound = UNBOUND - bound
    broken = [key for key in changes(before, config) if key.split(".")[0] not in unbound]
    if broken:
        old, new = dict(leaves(before)), dict(leaves(config))
        listed = ", ".join(f"{k} ({old.get(k)!r} → {new.get(k)!r})" for k in broken)
        raise RunError(
            f"{path} holds a run with another configuration: {listed}. Going on would not be the same "
            f"run. Give another out=…, or branch off with: glasshouse resume {path} --fork NEW "
            + " ".join(f"{key}=…" for key in broken)
        )
    summary = summary_of(path)
    if summary and config.steps < summary["steps_done"]:
        raise RunError(
            f"{path} has done {summary['steps_done']} steps already, and steps={config.steps} asks for "
            "fewer. Give another out=…, or raise steps."
        )


def check_facts(path: Path, state: dict[str, Any], facts: dict[str, Any]) -> list[str]:
    """Refuse another starting model; sentences about software that may give other bits."""
    if state["start"] != facts["start"]:
        raise RunError(
            f"The model {facts['config']['model']} is not the one that {path} was started from: its "
            "weights differ. Bring that model back, or start a new run with another out=…."
        )
    then, here = state["versions"], facts["versions"]
    return [
        f"This run was started with {name} {then.get(name)}, and goes on with {here[name]}: from here on "
        "it may differ in its last bits from a run without an interruption."
        for name in here
        if here[name] != then.get(name)
    ]


def fork(source: Path, target: Path, config: Config) -> None:
    """A new run that begins with the record and the newest valid checkpoint of another."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RunError(f"{target} already holds files; --fork needs a directory that is new.")
    found, _ = checkpoints.newest(source / "checkpoints")
    if found is None:
        raise RunError(f"{source} has no valid checkpoint to branch off from.")
    aside = target.with_name(f".{target.name}.forking")
    shutil.rmtree(aside, ignore_errors=True)
    left = shutil.ignore_patterns("checkpoints", LOCK, "summary.json", "track")
    shutil.copytree(source, aside, ignore=left)
    shutil.copytree(found.path, aside / "checkpoints" / found.path.name)
    write_text(aside / CONFIG, dump(config))
    if target.exists():
        target.rmdir()
    os.replace(aside, target)


def newest(directory: RunDirectory) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint to go on from, and sentences about damaged ones that were passed over."""
    checkpoints.tidy(directory.checkpoints)
    found, damaged = checkpoints.newest(directory.checkpoints)
    if damaged and not found:
        raise RunError(
            f"No checkpoint of {directory.path} is valid ({damaged[0].path.name}: {damaged[0].faults[0]}), "
            "so the run cannot go on. Bring a copy back, or remove its checkpoints folder to start over."
        )
    sentences = [
        f"The checkpoint {bad.path.name} is damaged and was passed over: {'; '.join(bad.faults)}."
        for bad in damaged
    ]
    return found, sentences
