"""Checks of a model folder that transformers does not make: its JSON files, size and weights."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import torch

from glasshouse.errors import ModelError

MAX_JSON_BYTES = 10_000_000
MAX_ARCHITECTURE = {
    "num_hidden_layers": 1_000,
    "hidden_size": 10_000_000,
    "intermediate_size": 10_000_000,
    "head_dim": 10_000_000,
    "num_attention_heads": 100_000,
    "num_experts": 100_000,
    "num_local_experts": 100_000,
    "vocab_size": 100_000_000,
}
JSON_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "glasshouse.json",
    "model.safetensors.index.json",
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


def check_architecture(config: Any, source: str) -> None:
    """Raises if a model's configuration asks for more than any model has: building it would take hours."""
    text = config.get_text_config()
    for name, most in MAX_ARCHITECTURE.items():
        value = getattr(text, name, None)
        if isinstance(value, int) and value > most:
            raise ModelError(
                f'"{source}" has {name} {value:,} in its config.json; at most {most:,}.'
            )


def check_cache_support(model: Any, source: str) -> None:
    """Raises for architectures without an attention cache, such as Mamba: the engine could not generate."""
    if "past_key_values" not in inspect.signature(model.forward).parameters:
        raise ModelError(
            f'"{source}" is a model of type "{model.config.model_type}", which has no attention cache '
            "(past_key_values). Generation needs one: set `model` to a transformer or a hybrid model."
        )


def check_finite(model: torch.nn.Module, source: str) -> None:
    """Raises if a weight is NaN or infinite: such a model gives no answer and learns nothing."""
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            count = int((~torch.isfinite(parameter)).sum())
            raise ModelError(
                f'The weights of "{source}" are not finite: {count:,} of {parameter.numel():,} values of '
                f"{name} are NaN or infinite. Copy the model again, or choose an earlier checkpoint."
            )
