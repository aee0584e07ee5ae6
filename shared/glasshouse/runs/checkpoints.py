"""Checkpoints: written atomically, verified by checksums.

    step-000020/   config.json, model.safetensors, tokenizer …   loads with plain transformers
                   adapter/                                      with LoRA: the adapters, loads with peft
                   learner.safetensors                           optimizer state, or with learn.sharding
                                                                 learner-00001-of-00002.safetensors …
                   state.json                                    step, counters, best, config, versions
                   next_rollouts.jsonl                           with max_offpolicy_steps: rollouts
                                                                 of the next steps
                   checksums.json                                size and sha256 of every other file

A checkpoint is written to a temporary folder, flushed, read back and compared, and only then
renamed. Nothing is ever unpickled: tensors are safetensors, the rest is JSON. Verifying a checkpoint
needs no torch; reading or writing tensors imports it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glasshouse.errors import RunError, unwrap_os_error
from glasshouse.files import (
    CHECKSUMS,
    flush_to_disk,
    read_regular_file,
    verify_folder,
    write_checksums,
)

if TYPE_CHECKING:
    from torch import Tensor

MODEL, LEARNER, STATE = "model.safetensors", "learner.safetensors", "state.json"
ADAPTER = "adapter/adapter_model.safetensors"
NEXT_ROLLOUTS = "next_rollouts.jsonl"
WRITING, REMOVING = ".writing", ".removing"
"""Suffixes of folders that are being written or removed."""
SHARD = re.compile(r"learner-([0-9]{5})-of-([0-9]{5})\.safetensors")
"""The learner's tensors of one rank (`learn/sharded.py`)."""
STEP_FOLDER = re.compile(r"step-[0-9]{1,12}")
END_OF_TRAINING = "end of training"
"""Part of `why_saved`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint on disk, or the base model (step 0)."""

    name: str
    """`step-000020`, or `base`."""
    step: int
    path: Path
    weights_sha256: str = ""
    """Identifies the weights; empty if they are damaged."""
    reward: float | None = None
    why_saved: str = ""
    bytes: int = 0
    damage: tuple[str, ...] = ()
    """What is damaged; empty if the checkpoint is valid."""


def write_checkpoint(
    folder: Path,
    state: Mapping[str, Any],
    *,
    weights: Mapping[str, Tensor],
    learner: dict[str, Tensor],
    save_model: Callable[[Path], None],
    save_shards: Callable[[Path], None] | None = None,
    next_rollouts: bytes = b"",
) -> Checkpoint:
    """Write and verify a new checkpoint in `folder`, then replace an existing one of this step.

    `save_model` writes the model in the Hugging Face layout to a folder; what it wrote is compared with `weights`.
    `learner` holds the learner's tensors; instead, `save_shards` lets the ranks of a sharded learner write, and
    compare, their parts of them. `next_rollouts` were already generated for the next steps, as JSON lines."""
    from safetensors.torch import save_file

    final = folder / f"step-{state['step']:06d}"
    temporary = folder / f"{final.name}{WRITING}"
    _delete_folder(temporary)
    try:
        temporary.mkdir(parents=True)
        with unwrap_os_error():
            save_model(temporary)
            if save_shards:
                save_shards(temporary)
            else:
                save_file(learner, temporary / LEARNER)
        (temporary / STATE).write_text(json.dumps(state, indent=1) + "\n")
        if next_rollouts:
            (temporary / NEXT_ROLLOUTS).write_bytes(next_rollouts)
        write_checksums(temporary)
        _read_back(temporary, state, {MODEL: weights, LEARNER: {} if save_shards else learner})
    except BaseException:
        _delete_folder(temporary)  # a full disk needs the space
        raise
    if final.exists():
        _set_aside(final)
    os.replace(temporary, final)
    flush_to_disk(folder)
    remove_partial(folder)
    return inspect_checkpoint(final, verify=False)


def _read_back(
    path: Path, state: Mapping[str, Any], expected: Mapping[str, Mapping[str, Tensor]]
) -> None:
    """Raise unless the checkpoint reads back with the same state and the same tensors, one by one."""
    problems = list(verify_checkpoint(path))
    if not problems and read_state(path) != json.loads(json.dumps(state)):
        problems.append(f"{STATE} differs")
    for file, tensors in expected.items():
        if tensors and not problems:
            problems += _compare_tensors(path / file, tensors)
    if problems:
        raise RunError(
            f"The checkpoint {path.name} does not read back as it was written: "
            f"{problems[0]}. Check the disk."
        )


def _compare_tensors(file: Path, tensors: Mapping[str, Any]) -> Iterator[str]:
    """Say which tensors a safetensors file lacks or holds with other bytes. They are read here because each tensor that
    safetensors 0.8 reads leaks 60 bytes."""
    import torch

    with open(file, "rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(size))
        for name, tensor in tensors.items():
            entry = header.get(name, {"shape": None, "data_offsets": (0, 0)})
            start, end = entry["data_offsets"]
            opened.seek(8 + size + start)
            data = opened.read(end - start)
            expected = tensor.cpu().contiguous().flatten().view(torch.uint8).numpy()
            if entry["shape"] != list(tensor.shape) or memoryview(data) != memoryview(expected):
                yield f"{name} in {file.name} is missing or differs"


def verify_checkpoint(path: Path) -> tuple[str, ...]:
    """Compare every file with its checksum; returns what is damaged, nothing if it is valid."""
    total = max((int(file.stem[-5:]) for file in list_shards(path)), default=0)
    shards = [f"learner-{n:05d}-of-{total:05d}.safetensors" for n in range(1, total + 1)]
    return verify_folder(path, required=(weights_file(path), STATE, *(shards or [LEARNER])))


def weights_file(path: Path) -> str:
    """The file whose checksum identifies the weights: adapters if they are not merged into a saved model."""
    only_adapters = (path / ADAPTER).exists() and not (path / MODEL).exists()
    return ADAPTER if only_adapters else MODEL


def inspect_checkpoint(path: Path, verify: bool = True) -> Checkpoint:
    """Describe a checkpoint on disk; `verify` reads every byte of it."""
    size = sum(file.lstat().st_size for file in path.rglob("*"))
    damage = verify_checkpoint(path) if verify else ()
    found = Checkpoint(name=path.name, step=_step_of(path), path=path, bytes=size, damage=damage)
    if damage:
        return found
    try:
        state = read_state(path)
        if state["step"] != found.step:
            return replace(found, damage=(f"{STATE} is of step {state['step']}",))
        checksums = json.loads(read_regular_file(path / CHECKSUMS))
        return replace(
            found,
            weights_sha256=checksums[weights_file(path)]["sha256"],
            reward=None if state["reward"] is None else float(state["reward"]),
            why_saved=str(state["reason"]),
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return replace(found, damage=(f"{STATE} cannot be read ({type(error).__name__})",))


def list_checkpoints(folder: Path, verify: bool = True) -> list[Checkpoint]:
    """Describe every checkpoint of a run, oldest first."""
    return [inspect_checkpoint(path, verify) for path in _checkpoint_folders(folder)]


def list_steps(folder: Path) -> list[int]:
    """The steps that have a checkpoint, without reading one."""
    return [_step_of(path) for path in _checkpoint_folders(folder)]


def newest_checkpoint(folder: Path) -> tuple[Checkpoint | None, list[Checkpoint]]:
    """Find the newest valid checkpoint; returns it and the damaged ones that are newer."""
    damaged: list[Checkpoint] = []
    for path in reversed(_checkpoint_folders(folder)):
        checkpoint = inspect_checkpoint(path)
        if not checkpoint.damage:
            return checkpoint, damaged
        damaged.append(checkpoint)
    return None, damaged


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    """Read the state, the model's tensors and the learner's tensors, whole. Those of a sharded learner are read by
    its ranks: here, they are empty."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        learner = load_file(path / LEARNER) if (path / LEARNER).exists() else {}
        return read_state(path), load_file(path / weights_file(path)), learner
    except (OSError, ValueError, SafetensorError) as error:
        raise RunError(f"The checkpoint {path} cannot be read: {error}.") from None


def list_shards(path: Path) -> list[Path]:
    """The files that ranks have written to a checkpoint; empty if its learner was not divided."""
    return sorted(file for file in path.glob("learner-*") if SHARD.fullmatch(file.name))


def read_state(path: Path) -> dict[str, Any]:
    """Read state.json of a checkpoint that has been verified."""
    state = json.loads(read_regular_file(path / STATE))
    if not isinstance(state, dict):
        raise ValueError(f"{STATE} is not a JSON object")
    return state


def read_newest_state(folder: Path) -> dict[str, Any]:
    """Read the newest state.json that matches its checksum; empty if there is none. The other files of
    the checkpoint are not read, so this is quick."""
    for path in reversed(_checkpoint_folders(folder)):
        if not verify_folder(path, (STATE,), only_required=True):
            try:
                return read_state(path)
            except (OSError, ValueError, RecursionError):
                continue
    return {}


def prune_checkpoints(folder: Path, keep: Sequence[str]) -> list[tuple[Checkpoint, str]]:
    """Delete all checkpoints except those of a rule in `keep` (`checkpoints.keep`); returns each with the
    reason. The newest has been verified when it was written."""
    checkpoints = list_checkpoints(folder, verify=False)
    roles = roles_of(checkpoints)
    intervals = [int(rule[7:]) for rule in keep if rule.startswith("every: ")]
    reason = f"not {', '.join(keep[:-1])} or {keep[-1]}"
    removed = []
    for checkpoint in [] if "all" in keep else checkpoints:
        is_even = any(checkpoint.step % interval == 0 for interval in intervals)
        if not is_even and not {*keep, "end"} & set(roles[checkpoint.path]):
            _set_aside(checkpoint.path)
            removed.append((checkpoint, "damaged" if checkpoint.damage else reason))
    if removed:
        flush_to_disk(folder)
        remove_partial(folder)
    return removed


def roles_of(checkpoints: Sequence[Checkpoint]) -> dict[Path, list[str]]:
    """By checkpoint: whether it is the first, the second to last, the last, the best of the valid ones, or
    the end of a run that was then trained longer."""
    valid = [c for c in checkpoints if not c.damage]
    scored = [(-c.reward, c.step, c) for c in valid if c.reward is not None]
    roles = {
        "first": valid[:1],
        "previous": valid[-2:-1],
        "last": valid[-1:],
        "best": [min(scored)[2]] if scored else [],
        "end": [c for c in valid[:-1] if END_OF_TRAINING in c.why_saved],
    }
    return {c.path: [role for role, kept in roles.items() if c in kept] for c in checkpoints}


def remove_partial(folder: Path) -> None:
    """Delete checkpoints that a crash left partly written or partly removed."""
    for path in folder.glob("*"):
        if path.name.endswith((WRITING, REMOVING)):
            _delete_folder(path)


def _set_aside(path: Path) -> None:
    """Rename a checkpoint that is to be deleted: a crash then leaves no part of it."""
    target = path.with_name(f"{path.name}{REMOVING}")
    _delete_folder(target)
    os.replace(path, target)


def _checkpoint_folders(folder: Path) -> list[Path]:
    # not str.isdigit, which is true of "²"
    paths = [p for p in folder.glob("step-*") if p.is_dir() and STEP_FOLDER.fullmatch(p.name)]
    return sorted(paths, key=_step_of)


def _step_of(path: Path) -> int:
    return int(path.name[5:])


def _delete_folder(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
