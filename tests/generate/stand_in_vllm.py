"""A stand-in for the parts of vLLM that our engine calls, since vLLM needs a separate environment.

It keeps vLLM's contracts (signatures, order of calls, what each side may know) and computes with
transformers. `make proofs ONLY=vllm` runs the same engine on the real vLLM.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, Generic, NamedTuple, TypeVar

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

OURS = ("keyed_sampler", "weight_transfer")
"""Modules of ours that import vLLM."""
Init, Update = TypeVar("Init"), TypeVar("Update")


class Base:
    """In place of vLLM's data classes."""


@dataclass
class TrainerInitInfo:
    rank: int = field(kw_only=True)


class ParamMeta(NamedTuple):
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class TrainerEngine(Generic[Init]):
    def __init__(self, *, client: Any, source: Any = None) -> None:
        self.client, self.source = client, source


class ReceiverEngine(Generic[Init, Update]):
    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        self.model, self.model_config = model, None


class Factory:
    def __init__(self) -> None:
        self.engines: dict[str, Any] = {}

    def register_engine(self, name: str, engine: Any) -> None:
        self.engines[name] = engine

    def trainer_init(self, init_info: Any, *, client: Any, source: Any) -> Any:
        made = self.engines[init_info.backend]
        return made.trainer_init(init_info, client=client, source=source)


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
    def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> set[str]:
        parameters = dict(self.inner.named_parameters())
        for name, tensor in weights:
            parameters[name].copy_(tensor)
        return {name for name, _ in weights}


class LLM:
    """`vllm.LLM` for requests of which all run from the first step on."""

    receivers: Any
    made: list[LLM]

    def __init__(self, **arguments: Any) -> None:
        self.arguments, self.calls = arguments, list[str]()
        self.model = Model(arguments["model"])
        self.tokenizer = AutoTokenizer.from_pretrained(arguments["model"])
        receiver = self.receivers.engines[arguments["weight_transfer_config"]["backend"]]
        self.receiver = receiver(None, None, None, self.model)
        module, _, name = arguments["worker_extension_cls"].rpartition(".")
        self.worker = getattr(importlib.import_module(module), name)()
        self.worker.weight_transfer_engine = self.receiver
        module, _, name = arguments["logits_processors"][0].partition(":")
        self.sampler = getattr(importlib.import_module(module), name)(None, None, False)
        self.llm_engine = SimpleNamespace(
            model_config=SimpleNamespace(max_model_len=96),
            engine_core=SimpleNamespace(shutdown=lambda: self.calls.append("shutdown")),
        )
        self.spoil = lambda output: None
        LLM.made.append(self)

    def init_weight_transfer_engine(self, request: dict[str, Any]) -> None:
        info = self.receiver.init_info_cls(**request["init_info"])
        self.receiver.init_transfer_engine(info)

    def start_weight_update(self) -> None:
        self.calls.append("start")
        self.receiver.start_weight_update()

    def update_weights(self, request: dict[str, Any]) -> None:
        self.calls.append("update")
        info = self.receiver.update_info_cls(**request["update_info"])
        self.receiver.receive_weights(info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.calls.append(f"finish {weight_version}")
        self.receiver.finish_weight_update()

    def sleep(self, level: int) -> None:
        self.calls.append(f"sleep {level}")

    def wake_up(self, tags: list[str]) -> None:
        self.calls.append(f"wake {tags[0]}")

    def reset_prefix_cache(self) -> bool:
        self.calls.append("reset")
        return True

    def collective_rpc(self, method: str) -> list[Any]:
        return [getattr(self.worker, method)()]

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
    receivers, trainers = Factory(), Factory()
    LLM.receivers, LLM.made = receivers, []
    base = {
        "TrainerInitInfo": TrainerInitInfo,
        "WeightTransferInitInfo": Base,
        "WeightTransferUpdateInfo": Base,
    }
    contents: dict[str, dict[str, Any]] = {
        "vllm": {"LLM": LLM, "SamplingParams": SimpleNamespace},
        "vllm.v1.sample.logits_processor": {
            "BatchUpdate": Base, "LogitsProcessor": object, "process_dict_updates": process_dict_updates,
        },
        "vllm.distributed.weight_transfer": {
            "ParamMeta": ParamMeta, "TrainerWeightTransferEngine": TrainerEngine,
            "WeightSource": object, "WeightTransferEngine": ReceiverEngine,
            "WeightTransferEngineFactory": receivers, "WeightTransferTrainerFactory": trainers,
        },
        "vllm.distributed.weight_transfer.base": base,
        "vllm.model_executor.layers.vocab_parallel_embedding": {"ParallelLMHead": ParallelLMHead},
        "vllm.model_executor.model_loader.reload": {
            "initialize_layerwise_reload": lambda model: None,
            "finalize_layerwise_reload": lambda model, config: None,
        },
    }  # fmt: skip
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
    for name in OURS:  # import them again, here and after the test
        monkeypatch.setitem(sys.modules, f"{package}.{name}", ModuleType(name))
        del sys.modules[f"{package}.{name}"]
        vars(importlib.import_module(package)).pop(name, None)
    installed = importlib.import_module(f"{package}.installed")
    monkeypatch.setattr(installed, "find_version", lambda: version)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    return LLM
