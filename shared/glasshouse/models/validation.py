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
SAMPLE_CHAT = [{"role": "system", "content": "Answer."}, {"role": "user", "content": "1 + 1?"}]


def check_json_files(folder: Path) -> None:
    """Raises unless each of the folder's JSON files is a JSON object of reasonable size."""
    for file in (folder / name for name in JSON_FILES):
        if not file.is_file():
            continue
        if file.stat().st_size > MAX_JSON_BYTES:
            raise ModelError(f'"{file}" is larger than {MAX_JSON_BYTES:,} bytes.')
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ModelError(
                f'"{file}" is not valid JSON: {error}. Copy the model again.'
            ) from None
        if not isinstance(content, dict):
            raise ModelError(
                f'"{file}" holds a {type(content).__name__} instead of an object with keys. Copy the '
                "model again."
            )


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
    templates = list(template.values()) if isinstance(template, dict) else [template]
    for text in templates:
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
    request = {
        "template": template,
        "variables": {"messages": SAMPLE_CHAT, "add_generation_prompt": True, "tools": None},
        "max_bytes": MAX_TEMPLATE_MEMORY,
        "max_seconds": MAX_TEMPLATE_SECONDS,
        "max_characters": MAX_PROMPT_CHARACTERS,
    }
    script = str(Path(__file__).with_name("render_template.py"))
    try:
        process = subprocess.run(
            [sys.executable, "-I", script], input=json.dumps(request), text=True,
            capture_output=True, timeout=10 * MAX_TEMPLATE_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"runs for more than {MAX_TEMPLATE_SECONDS} s"
    return {
        0: "",
        3: f"makes a prompt of more than {MAX_PROMPT_CHARACTERS:,} characters",
        4: f"needs more than {MAX_TEMPLATE_MEMORY >> 20} MB",
    }.get(process.returncode, f"runs for more than {MAX_TEMPLATE_SECONDS} s or crashes")
