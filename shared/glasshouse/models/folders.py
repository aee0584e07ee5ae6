"""Where a model is (a folder, an embedded or a packaged model, or a name on the hub), and what its folder must hold.

Nothing here imports torch unless the folder of somebody else is tried, so that a wrong name is refused at once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from glasshouse.errors import ModelError, did_you_mean
from glasshouse.files import CHECKSUMS, verify_folder
from glasshouse.models.packaged import CARD_FILE, PACKAGED_MODELS, locate_packaged_model
from glasshouse.terminal import shell_command

POCKET_FOLDER = Path(__file__).parent.parent / "pocket" / "model"
BASES_FOLDER = POCKET_FOLDER.parent / "bases"
"""Base models of the organisms: one folder each, loaded by the name of the folder."""

STATE_FILE, LEARNER_FILES = "state.json", "learner*.safetensors"
"""What a checkpoint holds besides the model; a checkpoint always has checksums."""

MAX_JSON_BYTES = 10_000_000
JSON_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "glasshouse.json",
    "model.safetensors.index.json",
)


def locate_model(name: str) -> Path | None:
    """Returns the folder of a local, embedded or packaged model, whose files are checked, or None for the name of a
    model on the hub. Raises if it is none of them."""
    folder = find_model(name)
    if folder is None or name in PACKAGED_MODELS:
        return folder
    validate_folder(folder)
    if not folder.is_relative_to(POCKET_FOLDER.parent):
        from glasshouse.models.validation import probe_folder  # imports torch

        probe_folder(folder)
    return folder


def find_model(name: str) -> Path | None:
    """The folder of a model as `locate_model` returns it, without a look into it."""
    if name in PACKAGED_MODELS:
        return locate_packaged_model(name)
    embedded = {"pocket": POCKET_FOLDER, **{base.name: base for base in BASES_FOLDER.glob("*-*")}}
    path = embedded.get(name) or Path(name).expanduser()
    if name in embedded or (name != "" and path.is_dir()):
        return path
    if path.exists() or name[:1] in "./~" or name.count("/") != 1:
        raise ModelError(
            f'There is no model folder "{name}".{did_you_mean(name, [*embedded, *PACKAGED_MODELS])} '
            'Set `model` to a folder in the Hugging Face layout, a hub name such as "org/model", or "pocket".'
        )
    return None


def read_card(name: str) -> dict[str, Any]:
    """The card of a local or embedded model; empty without one, and for a model on the hub."""
    folder = locate_model(name)
    if folder is None or not (folder / CARD_FILE).is_file():
        return {}
    card: dict[str, Any] = json.loads((folder / CARD_FILE).read_text())  # `check_json_files` did it
    return card


def validate_folder(path: Path) -> None:
    """Raises a clear error for folders that transformers would reject obscurely or unpickle, and for
    damaged checkpoints. A folder without checksums that is not a checkpoint is not verified."""
    is_checkpoint = (path / STATE_FILE).exists() and any(path.glob(LEARNER_FILES))
    if is_checkpoint or (path / CHECKSUMS).exists():
        problems = verify_folder(path)
        if problems:
            command = shell_command(["glasshouse", "check", path.parent.parent])
            raise ModelError(
                f'The checkpoint "{path}" is damaged: {problems[0]}. Its results would be wrong, so it '
                "is not used. Restore the file from a copy, or choose another checkpoint "
                f"({command} lists them)."
            )
    for file in path.iterdir():
        if file.exists() and not (file.is_file() or file.is_dir()):
            raise ModelError(f'"{file}" is not a regular file. Remove it from the model folder.')
    if (path / "adapter_config.json").is_file():
        raise ModelError(
            f'"{path}" holds adapters, not a whole model; merge them into their base model '
            "(peft: merge_and_unload, then save_pretrained) and set `model` to that folder."
        )
    if not (path / "config.json").is_file():
        hint = ""
        for file in sorted(path.glob("checkpoints/step-*/config.json")):
            hint = f' It is a run directory; name a checkpoint, as in "{file.parent}".'
        raise ModelError(f'There is no model in "{path}": it has no config.json.{hint}')
    check_json_files(path)
    if not any(path.glob("*.safetensors")):
        raise ModelError(
            f'"{path}" has no *.safetensors file. Glasshouse does not unpickle weights; convert '
            "them with save_pretrained on a machine where you trust them."
        )


def check_json_files(folder: Path) -> None:
    """Raises unless each of the folder's JSON files is a JSON object of reasonable size."""
    for file in filter(Path.is_file, (folder / name for name in JSON_FILES)):
        problem = ""
        try:
            if file.stat().st_size > MAX_JSON_BYTES:
                problem = f"is larger than {MAX_JSON_BYTES:,} bytes"
            else:
                problem = _find_wrong_value(json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, RecursionError) as error:
            problem = f"is not valid JSON: {error}"
        if problem:
            raise ModelError(f'"{file}" {problem}. Copy the model again.')


def _find_wrong_value(content: Any) -> str:
    """What is wrong with values that are used as they are in the file; an empty text if nothing."""
    if not isinstance(content, dict):
        return "is not an object with keys"
    tokens = content.get("eos_token_id")
    for token in tokens if isinstance(tokens, list) else [tokens]:
        if token is not None and (type(token) is not int or token < 0):
            return f"has the eos_token_id {token!r:.50}, which is not the number of a token"
    by_task = content.get("task_options", {})
    by_style = list(by_task.values()) if isinstance(by_task, dict) else [by_task]
    by_style += [o for options in by_style if isinstance(options, dict) for o in options.values()]
    if not all(isinstance(options, dict) for options in by_style):
        return "has task_options that are not options by task and style"
    files = content.get("weight_map", {})
    for file in files.values() if isinstance(files, dict) else [files]:
        if not isinstance(file, str) or Path(file).name != file:
            return f"names the weights {file!r:.50}, which is not a file of this folder"
    if not isinstance(content.get("packaged_model", {}), dict):
        return "has a packaged_model that is not an object with keys"
    return ""
