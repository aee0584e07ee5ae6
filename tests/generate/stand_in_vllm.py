"""A stand-in for the parts of vLLM that our engine calls, since vLLM needs a separate environment.

It keeps vLLM's contracts (signatures, order of calls, what each side may know) and computes with
transformers. `make proofs ONLY=vllm` runs the same engine on the real vLLM.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer


class ParallelLMHead:
    """No module of the stand-in is one."""


class Model:
    """The model inside vLLM: transformers' own, with vLLM's `load_weights`."""

    def __init__(self, folder: str) -> None:
        self.inner = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).eval()

    def named_parameters(self) -> Any:
        return self.inner.named_parameters()

    def modules(self) -> Any:
        return self.inner.modules()

    @torch.no_grad()
    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        parameters, loaded = dict(self.inner.named_parameters()), set()
        for name, tensor in weights:
            parameters[name].copy_(tensor)
            loaded.add(name)
        return loaded


class LLM:
    """`vllm.LLM` for requests of which all run from the first step on."""

    made: list[LLM]

    def __init__(self, **arguments: Any) -> None:
        self.arguments, self.calls = arguments, list[str]()
        self.model = Model(arguments["model"])
        self.tokenizer = AutoTokenizer.from_pretrained(arguments["model"])
        module, _, name = arguments["worker_extension_cls"].rpartition(".")
        self.worker = getattr(importlib.import_module(module), name)()
        self.worker.model_runner = SimpleNamespace(get_model=lambda: self.model)
        self.worker.vllm_config = SimpleNamespace(model_config=None)
        module, _, name = arguments["logits_processors"][0].partition(":")
        self.sampler = getattr(importlib.import_module(module), name)(None, None, False)
        self.llm_engine = SimpleNamespace(
            model_config=SimpleNamespace(max_model_len=96),
            engine_core=SimpleNamespace(shutdown=lambda: self.calls.append("shutdown")),
        )
        self.spoil = lambda output: None
        LLM.made.append(self)

    def sleep(self, level: int) -> None:
        self.calls.append(f"sleep {level}")

    def wake_up(self, tags: list[str]) -> None:
        self.calls.append(f"wake {tags[0]}")

    def reset_prefix_cache(self) -> bool:
        self.calls.append("reset")
        return True

    def collective_rpc(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        self.calls.append(method)
        return [getattr(self.worker, method)(*args)]

    @torch.no_grad()
    def generate(self, prompts: list[Any], params: list[Any], use_tqdm: bool) -> list[Any]:
        assert not use_tqdm
        assert self.arguments["logprobs_mode"] == "processed_logits"
        rows = [SimpleNamespace(tokens=list[int](), logprobs=list[float](), reason=None, stop=None)
                for _ in prompts]  # fmt: skip
        added = [
            (i, p, prompts[i]["prompt_token_ids"], rows[i].tokens) for i, p in enumerate(params)
        ]
        self.sampler.update_state(SimpleNamespace(removed=[], added=added, moved=[]))
        while any(row.reason is None for row in rows):
            logits = torch.stack([
                self.model.inner(torch.tensor([p["prompt_token_ids"] + row.tokens])).logits[0, -1]
                for p, row in zip(prompts, rows, strict=True)
            ])  # fmt: skip
            logits = self.sampler.apply(logits)
            self.sampler.update_state(None)
            for row, row_logits, p in zip(rows, logits, params, strict=True):
                if row.reason is None:
                    self.take_token(row, row_logits, p)
        self.sampler.update_state(
            SimpleNamespace(removed=list(range(len(rows))), added=[], moved=[])
        )
        outputs = [SimpleNamespace(
            token_ids=row.tokens, logprobs=SimpleNamespace(logprobs=row.logprobs),
            finish_reason=row.reason, stop_reason=row.stop) for row in rows]  # fmt: skip
        for output in outputs:
            self.spoil(output)
        return [SimpleNamespace(outputs=[o], num_cached_tokens=0) for o in outputs]

    def take_token(self, row: Any, logits: torch.Tensor, params: Any) -> None:
        token = int(logits.argmax())
        row.tokens.append(token)
        row.logprobs.append(float(logits[token]))
        text = self.tokenizer.decode(row.tokens) if params.detokenize else ""
        stopped = [string for string in params.stop if string in text]
        if token in params.stop_token_ids:
            row.reason, row.stop = "stop", token
        elif stopped:
            row.reason, row.stop = "stop", stopped[0]
        elif len(row.tokens) == params.max_tokens:
            row.reason = "length"


def process_dict_updates(rows: dict[int, Any], update: Any, new_state: Any) -> None:
    """What vLLM does with a change of the batch: removed, then added."""
    if update is None:
        return
    for index in update.removed:
        rows.pop(index, None)
    for index, params, prompt, output in update.added:
        state = new_state(params, prompt, output)
        if state is not None:
            rows[index] = state


def install(monkeypatch: pytest.MonkeyPatch, version: str = "0.32.0") -> type[LLM]:
    """Make `import vllm` find the stand-in, for one test."""
    LLM.made = []
    contents: dict[str, dict[str, Any]] = {
        "vllm": {"LLM": LLM, "SamplingParams": SimpleNamespace},
        "vllm.config": {"set_current_vllm_config": nullcontext},
        "vllm.v1.sample.logits_processor": {
            "BatchUpdate": object,
            "LogitsProcessor": object,
            "process_dict_updates": process_dict_updates,
        },
        "vllm.model_executor.layers.vocab_parallel_embedding": {"ParallelLMHead": ParallelLMHead},
        "vllm.model_executor.model_loader.reload": {
            "initialize_layerwise_reload": lambda model: None,
            "finalize_layerwise_reload": lambda model, config: None,
        },
    }
    for path, members in contents.items():
        parts = path.split(".")
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            if name not in contents or end < len(parts):
                monkeypatch.setitem(sys.modules, name, sys.modules.get(name) or ModuleType(name))
        module = ModuleType(path)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, path, module)
    package = "glasshouse.generate.vllm"
    name = "keyed_sampler"  # imports vLLM: import it again, here and after the test
    monkeypatch.setitem(sys.modules, f"{package}.{name}", ModuleType(name))
    del sys.modules[f"{package}.{name}"]
    vars(importlib.import_module(package)).pop(name, None)
    engine = importlib.import_module(f"{package}.engine")
    monkeypatch.setattr(engine, "find_version", lambda: version)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    return LLM
