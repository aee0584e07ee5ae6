"""Prompts of a configuration's task, in tokens, without loading the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig

from glasshouse import randomness
from glasshouse.config.schema import Config
from glasshouse.models.chat_template import ChatOptions
from glasshouse.models.policy import (
    LOADING_ERRORS,
    Policy,
    load_tokenizer,
    loading_error,
    locate_model,
)
from glasshouse.models.validation import check_architecture, check_json_files
from glasshouse.tasks.catalogue import make_task

SAMPLED = 8


def read_model_config(name: str) -> Any:
    """transformers' configuration of a model. For a plan a folder with only a config.json is enough."""
    path = Path(name).expanduser()
    folder = path if is_bare_config(name) else locate_model(name)
    if folder is not None:
        check_json_files(folder)
    try:
        config = AutoConfig.from_pretrained(str(folder or name), trust_remote_code=False)
    except LOADING_ERRORS as error:
        raise loading_error(name, folder, error) from None
    check_architecture(config, name)
    return config


def is_bare_config(name: str) -> bool:
    """Is this a folder with the configuration of a model, but without its weights?"""
    folder = Path(name).expanduser()
    return (folder / "config.json").is_file() and not any(folder.glob("*.safetensors"))


def sample_prompts(config: Config) -> list[tuple[int, ...]]:
    """Prompts of problems of the task; `task.options` must be filled in."""
    task = make_task(config.task.name, config.task.options)
    tokenizer = load_tokenizer(config.model)
    policy = Policy(config.model, None, tokenizer, {}, chat=ChatOptions.from_config(config.chat))
    random = randomness.stream("plan", config.seed)
    problems = [task.draw(random) for _ in range(SAMPLED)]
    return [policy.encode_prompt(task.messages(p, config.task.style))[1] for p in problems]


def make_prompts(tokens: int) -> list[tuple[int, ...]]:
    """Prompts of a length that differ in their last quarter, for a model whose tokenizer is not available."""
    start = tokens - max(1, tokens // 4)
    return [(1,) * start + (2 + n,) * (tokens - start) for n in range(SAMPLED)]
