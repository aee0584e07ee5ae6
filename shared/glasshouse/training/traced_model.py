"""A model on PyTorch's meta device, and prompts for it: everything that is read of a model to estimate its memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from glasshouse import randomness
from glasshouse.config.imports import import_modules
from glasshouse.config.schema import Config
from glasshouse.measurement.evaluation_setup import fill_task_options
from glasshouse.models.chat_template import ChatOptions
from glasshouse.models.policy import (
    LOADING_ERRORS,
    Policy,
    load_tokenizer,
    loading_error,
    locate_model,
    read_card,
)
from glasshouse.models.validation import check_architecture, check_json_files
from glasshouse.tasks.base import make_task
from glasshouse.training.memory_trace import PARTS, Bytes, MemoryTrace, extrapolate

TRACED_LAYERS = (2, 3)
"""Layers that are traced of a model with more, equal layers. One is not enough: in the first layer of a loop
nothing of a previous layer is alive."""
SAMPLED_PROMPTS = 8
DEFAULT_PROMPT_TOKENS = 256
"""Length of a prompt if the model's tokenizer is not available."""
Prompts = Sequence[tuple[int, ...]]
T = TypeVar("T")


class TracedModel:
    """A model without weights. It remembers its traces, so that a search for a layout makes each once."""

    def __init__(self, config: Any) -> None:
        """`config` is transformers' configuration of the model."""
        self.config = config
        self.text_config = config.get_text_config()
        self.layers = int(self.text_config.num_hidden_layers)
        self.whole = self.build()
        self.parameters = count_parameters(self.whole)
        self.has_equal_layers = False
        if self.layers > max(TRACED_LAYERS):
            few, more = (count_parameters(self.build(n)) for n in TRACED_LAYERS)
            further = self.layers - TRACED_LAYERS[0]
            self.has_equal_layers = few + further * (more - few) == self.parameters
        self._results: dict[str, Any] = {}

    @classmethod
    def read(cls, name: str) -> TracedModel:
        """The model of this name; a folder with only a config.json is enough."""
        folder = Path(name).expanduser() if is_bare_config(name) else locate_model(name)
        if folder is not None:
            check_json_files(folder)
        try:
            config = AutoConfig.from_pretrained(str(folder or name), trust_remote_code=False)
        except LOADING_ERRORS as error:
            raise loading_error(name, folder, error) from None
        check_architecture(config, name)
        return cls(config)

    def build(self, layers: int | None = None) -> Any:
        """The model on the meta device, with this many layers."""
        config = self.config
        if layers is not None:
            config = copy.deepcopy(config)
            text = config.get_text_config()
            if getattr(text, "layer_types", None):
                text.layer_types = text.layer_types[:layers]
            text.num_hidden_layers = layers
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config).eval()

    def trace(self, key: str, run: Callable[[Any], MemoryTrace]) -> dict[str, int]:
        """Bytes by part at the peak of a computation; `run` traces it on a model that it is given. `key` names
        everything else that the result depends on."""

        def find_peak() -> Bytes:
            if not self.has_equal_layers:
                return run(self.build()).peak()
            few, more = (run(self.build(layers)) for layers in TRACED_LAYERS)
            return extrapolate(few, more, self.layers - TRACED_LAYERS[0])

        return dict(zip(PARTS, self.remember(key, find_peak), strict=True))

    def remember(self, key: str, compute: Callable[[], T]) -> T:
        """The result of `compute`, which is called once for each key."""
        if key not in self._results:
            self._results[key] = compute()
        result: T = self._results[key]
        return result


def count_parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def is_bare_config(name: str) -> bool:
    """Is this a folder with the configuration of a model, but without its weights?"""
    folder = Path(name).expanduser()
    return (folder / "config.json").is_file() and not any(folder.glob("*.safetensors"))


def sample_prompts(config: Config, tokens: int | None = None) -> Prompts:
    """Prompts of the task. With a number of tokens, or without a tokenizer: prompts of that length."""
    if tokens or is_bare_config(config.model):
        return make_prompts(tokens or DEFAULT_PROMPT_TOKENS)
    import_modules(config.imports)
    tokenizer, card = load_tokenizer(config.model), read_card(config.model)
    policy = Policy(config.model, None, tokenizer, card, chat=ChatOptions.from_config(config.chat))
    options = fill_task_options(config, policy).task.options
    task = make_task(config.task.name, options)
    random = randomness.stream("plan", config.seed)
    problems = [task.draw(random) for _ in range(SAMPLED_PROMPTS)]
    return [policy.encode_prompt(task.messages(p, config.task.style))[1] for p in problems]


def make_prompts(tokens: int) -> Prompts:
    """Prompts of a length that differ in their last quarter."""
    start = tokens - max(1, tokens // 4)
    return [(1,) * start + (2 + n,) * (tokens - start) for n in range(SAMPLED_PROMPTS)]
