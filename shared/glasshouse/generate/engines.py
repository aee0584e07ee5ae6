"""Generation: from prompts to completions. It knows tokens, not tasks.

`Generator` is the protocol, `TorchGenerator` the default engine, `vllm/` the one for GPUs and large models
(docs/engines.md). A generator gets weights with a version (`load_weights`) and records that version in every
completion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from torch import Tensor

from glasshouse.config.schema import GenerateConfig
from glasshouse.errors import ConfigError, did_you_mean
from glasshouse.generate.torch_engine import TorchGenerator
from glasshouse.models.policy import Policy
from glasshouse.registry import describe_missing, find_missing, list_plugins, load_plugin
from glasshouse.types import Completion, Request, SamplingParams

__all__ = [
    "Generator",
    "SamplingParams",
    "TorchGenerator",
    "check_engine",
    "engine",
    "make_generator",
]


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


ENGINES: dict[str, Callable[..., Generator]] = {"torch": TorchGenerator}
"""By the name in `generate.engine`: called with the policy and the KV cache limit in MB. `vllm` is not in this
table: it is imported only when it is asked for, and has its own settings."""
EngineClass = TypeVar("EngineClass", bound=Callable[..., Generator])
MEMBERS = ("load_weights", "generate", "free")


def engine(name: str) -> Callable[[EngineClass], EngineClass]:
    """Registers a class with the methods of `Generator` under a name, for `generate.engine`.

    Example: `@engine("my_engine")` above `class MyEngine`, which is built as `MyEngine(policy, kv_cache_mb)`
    """

    def register(made: EngineClass) -> EngineClass:
        if missing := find_missing(made, MEMBERS):
            raise ConfigError(
                describe_missing("engine", made, missing, "glasshouse/generate/engines.py")
            )
        ENGINES[name] = made
        return made

    return register


def check_engine(name: str) -> None:
    """Registers the engine of an installed package; raises if there is no engine of this name."""
    if name == "vllm" or name in ENGINES:
        return
    made = load_plugin("engines", name)
    if made is None:
        known = [*ENGINES, "vllm", *list_plugins("engines")]
        raise ConfigError(f'generate.engine: unknown engine "{name}".{did_you_mean(name, known)}')
    engine(name)(made)


def make_generator(policy: Policy, config: GenerateConfig) -> Generator:
    """The engine of `generate.engine`, of this package, the user's modules or an installed package."""
    check_engine(config.engine)
    if config.engine == "vllm":
        from glasshouse.generate.vllm.engine import VllmGenerator

        return VllmGenerator(policy, config)
    return ENGINES[config.engine](policy, config.kv_cache_mb)
