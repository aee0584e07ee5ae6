"""Checkpoints: folders that are whole, or not there, or known to be damaged.

    step-000020/   config.json, model.safetensors, tokenizer …   opens with plain transformers
                   learner.safetensors                           the optimizer's tensors
                   state.json                                    step, counters, best, config, versions
                   ahead.jsonl                                   with a lag: the next step's rollouts
                   sums.json                                     size and sha256 of every other file

A folder is written aside, flushed, read back and compared, and only then gets its name. Nothing
is ever unpickled: tensors are safetensors, the rest is JSON.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from glasshouse.errors import RunError
from glasshouse.store.atomic_files import sync_folder

MODEL, LEARNER, STATE, SUMS = "model.safetensors", "learner.safetensors", "state.json", "sums.json"
AHEAD = "ahead.jsonl"
ASIDE, GONE = ".writing", ".removing"
"""Ends of the names that half-written and half-removed folders have."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a checkpoint holds, before it is on disk."""

    state: dict[str, Any]
    weights: Mapping[str, Tensor]
    """The model's, by name, as they must be found in the file."""
    learner: dict[str, Tensor]
    save_model: Callable[[Path], None]
    """Writes the model in the Hugging Face layout into a folder."""
    ahead: bytes = b""
    """Rollouts that were generated ahead, as JSON lines; empty: none."""

    @property
    def step(self) -> int:
        return int(self.state["step"])


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One on disk."""

    path: Path
    step: int
    reward: float | None
    why: str
    bytes: int
    faults: tuple[str, ...]
    """What is wrong with it; empty: it is valid."""


@dataclass(frozen=True, slots=True)
class Removed:
    """One that was pruned."""

    path: Path
    why: str
    bytes: int


def write(folder: Path, snapshot: Snapshot) -> Checkpoint:
    """A new checkpoint in `folder`, verified; whatever has its name gives way only then."""
    final = folder / f"step-{snapshot.step:06d}"
    aside = folder / f"{final.name}{ASIDE}"
    _remove(aside)
    try:
        aside.mkdir(parents=True)
        with _disk_errors():
            snapshot.save_model(aside)
            save_file(snapshot.learner, aside / LEARNER)
        (aside / STATE).write_text(json.dumps(snapshot.state, indent=1) + "\n")
        if snapshot.ahead:
            (aside / AHEAD).write_bytes(snapshot.ahead)
        for file in aside.iterdir():
            _flush(file)
        sums = {file.name: _sum(file) for file in sorted(aside.iterdir())}
        (aside / SUMS).write_text(_listing(sums))
        _flush(aside / SUMS)
        sync_folder(aside)
        _compare(aside, snapshot)
    except BaseException:
        _remove(aside)  # a full disk needs the space, and what is there is of no use
        raise
    if final.exists():
        os.replace(final, _free_name(folder / f"{final.name}{GONE}"))
    os.replace(aside, final)
    sync_folder(folder)
    tidy(folder)
    return look(final, thorough=False)


@contextmanager
def _disk_errors() -> Iterator[None]:
    """safetensors and tokenizers wrap the system's errors; a full disk is to be seen as one."""
    try:
        yield
    except Exception as error:
        if f"os error {errno.ENOSPC}" in str(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
        raise


def _compare(aside: Path, snapshot: Snapshot) -> None:
    """What was written, read back: the same numbers, the same state."""
    faults = check(aside)
    if not faults:
        state, weights, learner = read(aside)
        if state != json.loads(json.dumps(snapshot.state)):
            faults = (f"{STATE} says something else",)
        for file, wanted, found in (
            (MODEL, snapshot.weights, weights),
            (LEARNER, snapshot.learner, learner),
        ):
            faults += tuple(
                f"{file} lacks {name} or has other numbers in it"
                for name, tensor in wanted.items()
                if name not in found or not torch.equal(found[name], tensor)
            )
    if faults:
        raise RunError(
            f"The checkpoint of step {snapshot.step} cannot be read back as it was written: {faults[0]}."
        )


def check(path: Path) -> tuple[str, ...]:
    """What is wrong with a checkpoint, as short sentences; nothing: it is valid."""
    try:
        text = (path / SUMS).read_text()
        sums = json.loads(text)
        if text != _listing(sums):
            return (f"{SUMS} is not as it was written",)
        expected = {str(name): (int(s["bytes"]), str(s["sha256"])) for name, s in sums.items()}
    except FileNotFoundError:
        return (f"{SUMS} is missing",)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return (f"{SUMS} cannot be read",)
    faults = [f"{name} is missing from {SUMS}" for name in (MODEL, LEARNER, STATE) if name not in expected]  # fmt: skip
    for name, (size, digest) in expected.items():
        file = path / name
        if not file.is_file():
            faults.append(f"{name} is missing")
        elif file.stat().st_size != size:
            faults.append(f"{name} has {file.stat().st_size} bytes instead of {size}")
        elif _sum(file)["sha256"] != digest:
            faults.append(f"{name} is not what was written (its sha256 differs)")
    return tuple(faults)


def look(path: Path, thorough: bool = True) -> Checkpoint:
    """What a folder holds; `thorough` reads every byte of it."""
    faults = check(path) if thorough else ()
    size = sum(file.stat().st_size for file in path.iterdir())
    try:
        state = json.loads((path / STATE).read_text())
        reward = state["reward"]
        return Checkpoint(path, int(state["step"]), reward, str(state["why"]), size, faults)
    except (OSError, ValueError, KeyError, TypeError) as error:
        faults = faults or (f"{STATE} cannot be read ({type(error).__name__})",)
        return Checkpoint(path, _step(path), None, "", size, faults)


def listed(folder: Path, thorough: bool = True) -> list[Checkpoint]:
    """Every checkpoint of a run, oldest first."""
    return [look(path, thorough) for path in _folders(folder)]


def newest(folder: Path) -> tuple[Checkpoint | None, list[Checkpoint]]:
    """The newest valid checkpoint, and the damaged ones that are newer."""
    damaged: list[Checkpoint] = []
    for path in reversed(_folders(folder)):
        found = look(path)
        if not found.faults:
            return found, damaged
        damaged.append(found)
    return None, damaged


def read(checkpoint: Path) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    """State, the model's tensors, the learner's tensors."""
    try:
        state = json.loads((checkpoint / STATE).read_text())
        return state, load_file(checkpoint / MODEL), load_file(checkpoint / LEARNER)
    except (OSError, ValueError, SafetensorError) as error:
        raise RunError(f"The checkpoint {checkpoint} cannot be read: {error}.") from None


def read_ahead(checkpoint: Path) -> bytes:
    """The rollouts that were generated ahead, as JSON lines."""
    file = checkpoint / AHEAD
    return file.read_bytes() if file.exists() else b""


def prune(folder: Path, keep: Sequence[str]) -> list[Removed]:
    """Remove what `keep` does not name; the newest has been verified by whoever wrote it."""
    found = listed(folder, thorough=False)
    whole = [c for c in found if not c.faults]
    kept = {path for role in keep for path in roles(whole).get(role, ())}
    removed = []
    for checkpoint in found:
        if checkpoint.path in kept:
            continue
        why = "damaged" if checkpoint.faults else f"not {_or(keep)}"
        os.replace(checkpoint.path, _free_name(folder / f"{checkpoint.path.name}{GONE}"))
        removed.append(Removed(checkpoint.path, why, checkpoint.bytes))
    if removed:
        sync_folder(folder)
        tidy(folder)
    return removed


def roles(checkpoints: Sequence[Checkpoint]) -> dict[str, tuple[Path, ...]]:
    """Which checkpoint is the first, the second to last, the last and the best."""
    if not checkpoints:
        return {}
    scored = [c for c in checkpoints if c.reward is not None]
    best = max(scored, key=lambda c: (c.reward, -c.step), default=None)
    return {
        "first": (checkpoints[0].path,),
        "previous": tuple(c.path for c in checkpoints[-2:-1]),
        "last": (checkpoints[-1].path,),
        "best": (best.path,) if best else (),
    }


def tidy(folder: Path) -> None:
    """Clear away what a crash left half written or half removed."""
    if folder.is_dir():
        for path in folder.iterdir():
            if path.name.endswith(ASIDE) or GONE in path.name:
                _remove(path)


def _folders(folder: Path) -> list[Path]:
    found = [p for p in folder.glob("step-*") if p.is_dir() and p.name[5:].isdigit()]
    return sorted(found, key=_step)


def _step(path: Path) -> int:
    return int(path.name[5:])


def _or(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _free_name(path: Path) -> Path:
    number = 0
    while (found := path.with_name(f"{path.name}-{number}")).exists():
        number += 1
    return found


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


def _listing(sums: dict[str, Any]) -> str:
    """The text of sums.json: this very one, so that any change to it shows."""
    return json.dumps(sums, indent=1) + "\n"


def _flush(file: Path) -> None:
    with open(file, "rb") as handle:
        os.fsync(handle.fileno())


def _sum(file: Path) -> dict[str, Any]:
    with open(file, "rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    return {"bytes": file.stat().st_size, "sha256": digest}
