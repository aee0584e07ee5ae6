"""Models for tests: the pocket model itself, and tiny random ones of each architecture.

torch and transformers are imported by the fixtures: the process that distributes the tests reads this file too, and
does not need them.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from glasshouse.models.policy import Policy

# CI draws the same few examples every time; `make proofs` draws many new ones.
settings.register_profile("ci", max_examples=60, derandomize=True, deadline=None)
settings.register_profile("proofs", max_examples=2000, deadline=None)
settings.load_profile("proofs" if os.environ.get("GLASSHOUSE_PROOFS") == "1" else "ci")

# As in an activated environment: commands are printed as `glasshouse …`.
os.environ["PATH"] = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"

SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "tie_word_embeddings": True},
    "llama grouped untied": {
        "model_type": "llama",
        "num_key_value_heads": 2,
        "tie_word_embeddings": False,
    },
    "llama biased": {
        "model_type": "llama",
        "num_key_value_heads": 1,
        "attention_bias": True,
        "mlp_bias": True,
        "head_dim": 16,
    },
    "qwen2": {"model_type": "qwen2", "num_key_value_heads": 2},
    "qwen3": {"model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 16},
    "gpt2": {"model_type": "gpt2"},
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with the stand-in device come last: after a backward pass on any device but the CPU, torch cannot compute
    gradients in forks of the process, as the ranks of the sharded learner's tests are."""
    items.sort(key=lambda item: item.path.name == "test_devices.py")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Two cores run several tests at a time."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def unchanged_process() -> Iterator[None]:
    """The environment, the working directory and the path of imports are as before after each file of tests."""
    environment, folder, path = dict(os.environ), os.getcwd(), list(sys.path)
    yield
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:] = path


@pytest.fixture(scope="module", autouse=True)
def unchanged_registries() -> Iterator[None]:
    """Parts that a file's tests register go with them: files that share a process must not see each other's."""
    from glasshouse.registry import Registry

    def find() -> dict[str, Registry[Any]]:
        modules = [
            module for name, module in list(sys.modules.items()) if name.startswith("glasshouse.")
        ]
        parts = [part for module in modules for part in vars(module).values()]
        return {part.group: part for part in parts if isinstance(part, Registry)}

    before = {group: set(registry.parts) for group, registry in find().items()}
    imported = set(sys.modules)
    yield
    for group, registry in find().items():
        for name in set(registry.parts) - before.get(group, set()):
            module = getattr(registry.parts[name], "__module__", "")
            if not module.startswith("glasshouse."):  # those register once, on import
                del registry.parts[name], registry.facts[name]
    for name in set(sys.modules) - imported:
        if name.startswith("imported from "):  # a user's file: the next file imports it again
            del sys.modules[name]


@pytest.fixture(scope="session")
def shared_pocket() -> Policy:
    """The pocket model, for tests that do not change it."""
    from glasshouse.models.policy import load_policy

    return load_policy("pocket")


@pytest.fixture
def pocket(shared_pocket: Policy) -> Policy:
    """A copy of the pocket model for each test."""
    return replace(shared_pocket, model=copy.deepcopy(shared_pocket.model))


@pytest.fixture(scope="session")
def small_tokenizer() -> Any:
    """A tokenizer of about 300 entries."""
    from glasshouse.models import tokenizer

    return tokenizer.train_tokenizer(["What is 12 + 34? It is 46. [ANSWER] 46"] * 4, 300)


@pytest.fixture
def tiny(small_tokenizer: Any) -> Callable[..., Policy]:
    """`tiny("qwen3")`: a model of that architecture with random weights. All of them, norm gains and
    biases too, are far from their initial values, so that the logits of tokens differ clearly."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from glasshouse.models.policy import Policy

    def make(name: str, seed: int = 0, **changes: Any) -> Policy:
        options = {**SHAPE, "vocab_size": len(small_tokenizer), **ARCHITECTURES[name], **changes}
        if name == "gpt2":
            options["n_inner"] = options.pop("intermediate_size")
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**options)).eval()
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                noise = 0.3 * torch.randn(parameter.shape, generator=generator)
                parameter.copy_(noise if parameter.ndim > 1 else parameter + noise)
        return Policy(name, model, small_tokenizer, {})

    return make
