"""Generation: from prompts to completions. It knows tokens, not tasks.

`Generator` is the protocol, `TorchGenerator` the default engine, `vllm/` the one for GPUs and large models
(docs/models.md). A generator gets weights with a version (`load_weights`) and records that version in every
completion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from glasshouse.config.schema import GenerateConfig
from glasshouse.errors import ConfigError
from glasshouse.models.policy import Policy
from glasshouse.registry import Registry, require_members
from glasshouse.types import Completion, Request, SamplingParams


class Generator(Protocol):
    """Anything that turns requests into completions."""

    def load_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Switches to these weights and records this version in completions from now on."""

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams
    ) -> list[list[Completion]]:
        """Returns one list of completions per request, in order."""

    def free(self) -> None:
        """Called before an update: frees what the new weights will replace. May do nothing."""


engine: Registry[Callable[..., Generator]] = Registry(
    "engine",
    "engines",
    key="generate.engine",
    modules={
        "torch": "glasshouse.generate.torch_engine",
        "vllm": "glasshouse.generate.vllm.engine",
    },
    check=require_members(
        "engine", ("load_weights", "generate", "free"), "glasshouse/generate/engines.py"
    ),
)
"""Classes with the methods of `Generator` by name; built as `Engine(policy, config.generate)`.

Example: `@engine("my_engine")` above `class MyEngine`, for `generate.engine: my_engine`
"""


def make_generator(policy: Policy, config: GenerateConfig) -> Generator:
    """The engine of `generate.engine`, of this package, the user's modules or an installed package."""
    return engine.get(config.engine)(policy, config)


def max_length(request: Request, sampling: SamplingParams, limit: int, cache: str = "") -> int:
    """Maximum tokens of prompt and completion of a request; raises if there are more than `limit`, which the model's
    context sets, and the `cache` if it is named."""
    length = len(request.prompt) + sampling.max_tokens
    if length > limit:
        of_cache = f" or {cache}" if cache else ""
        raise ConfigError(
            f"A prompt of {len(request.prompt)} tokens and {sampling.max_tokens} new ones exceed the {limit} tokens of "
            f"the model's context{of_cache}; lower generate.max_tokens."
        )
    if not request.prompt:
        raise ConfigError(
            "A prompt has no tokens; check the task's question and the chat template."
        )
    return length
