"""Generation: from prompts to completions. It knows tokens, not tasks.

`Generator` is the protocol, `TorchGenerator` the default engine, `vllm/` the one for GPUs and large models
(docs/models.md). A generator gets weights with a version (`load_weights`) and records that version in every
completion.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from glasshouse.config.schema import GenerateConfig
from glasshouse.errors import ConfigError
from glasshouse.registry import Registry, require_members
from glasshouse.types import Completion, Request, SamplingParams

if TYPE_CHECKING:
    from torch import Tensor

    from glasshouse.models.policy import Policy


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


def find_defect(completion: Completion, max_tokens: int, vocab_size: int) -> str:
    """What is wrong with a completion that a working engine cannot have returned; empty if nothing is."""
    tokens, logprobs = completion.tokens, completion.logprobs
    defects = {
        "a completion that is empty or too long": not 1 <= len(tokens) <= max_tokens,
        "log-probabilities that do not match the tokens": not len(tokens)
        == len(logprobs)
        == completion.length,
        "a token outside the vocabulary": any(not 0 <= token < vocab_size for token in tokens),
        "a log-probability that is not finite": not all(map(math.isfinite, logprobs)),
    }
    return next((defect for defect, found in defects.items() if found), "")


class LocalGeneration:
    """Generates in this process, for evaluation and for the local backend.

    Example: `LocalGeneration(policy, config.generate).submit(chunks, sampling, check_interrupt)`
    """

    def __init__(self, policy: Policy, config: GenerateConfig) -> None:
        self.policy = policy
        self.generator = make_generator(policy, config)

    def submit(
        self,
        chunks: Sequence[list[Request]],
        sampling: SamplingParams,
        check_interrupt: Callable[[], None],
    ) -> list[list[list[Completion]]]:
        """Generate at once, since an update may change the weights before the result is collected."""
        completions = []
        for chunk in chunks:
            completions.append(self.generator.generate(chunk, sampling))
            check_interrupt()
        return completions
