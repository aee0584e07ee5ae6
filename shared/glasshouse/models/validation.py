"""Checks of a model folder that transformers does not make: its JSON files, weights and chat template."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch

from glasshouse.errors import ModelError
from glasshouse.models.chat_template import MAX_PROMPT_CHARACTERS
from glasshouse.models.tokenizer import CHAT_TEMPLATE

MAX_JSON_BYTES = 10_000_000
MAX_TEMPLATE_BYTES = 1_000_000
MAX_TEMPLATE_SECONDS = 5
MAX_TEMPLATE_MEMORY = 1 << 30
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
JSON_FILES = ("config.json", "generation_config.json", "tokenizer_config.json", "glasshouse.json")


def check_json_files(folder: Path) -> None:
    """Raises unless each of the folder's JSON files is a JSON object of reasonable size."""
    for file in filter(Path.is_file, (folder / name for name in JSON_FILES)):
        problem = ""
        try:
            if file.stat().st_size > MAX_JSON_BYTES:
                problem = f"is larger than {MAX_JSON_BYTES:,} bytes"
            elif not isinstance(json.loads(file.read_text(encoding="utf-8")), dict):
                problem = "is not an object with keys"
        except (ValueError, RecursionError) as error:
            problem = f"is not valid JSON: {error}"
        if problem:
            raise ModelError(f'"{file}" {problem}. Copy the model again.')


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


def check_chat_template(tokenizer: Any, source: str) -> None:
    """Raises if the chat template needs too much time or memory for a chat of two short messages."""
    template = tokenizer.chat_template
    for text in template.values() if isinstance(template, dict) else [template]:
        problem = text and text != CHAT_TEMPLATE and _find_excess(text)
        if problem:
            raise ModelError(
                f'The chat template of "{source}" {problem}, for a chat of two short messages. Replace '
                "chat_template.jinja by the template of the original model."
            )


@cache
def _find_excess(template: str) -> str:
    """Renders the template in a limited process; returns the limit that it exceeds, or an empty text."""
    if len(template) > MAX_TEMPLATE_BYTES:
        return f"has more than {MAX_TEMPLATE_BYTES:,} characters"
    limits = [MAX_TEMPLATE_SECONDS, MAX_TEMPLATE_MEMORY, MAX_PROMPT_CHARACTERS]
    script = Path(__file__).with_name("render_template.py")
    command = [sys.executable, "-I", str(script), *map(str, limits)]
    timeout = 10 * MAX_TEMPLATE_SECONDS
    try:
        process = subprocess.run(
            command, input=template, text=True, capture_output=True, timeout=timeout
        )
        code = process.returncode
    except subprocess.TimeoutExpired:
        code = 1
    return {
        0: "",
        3: f"makes a prompt of more than {MAX_PROMPT_CHARACTERS:,} characters",
        4: f"needs more than {MAX_TEMPLATE_MEMORY >> 20} MB",
    }.get(code, f"runs for more than {MAX_TEMPLATE_SECONDS} s or crashes")
