"""Any Hugging Face causal language model, from a folder, from a hub, or embedded or packaged models."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from glasshouse.config.schema import ChatConfig, Config
from glasshouse.errors import ModelError, unwrap_os_error
from glasshouse.models.adapters import (
    ADAPTER_FOLDER,
    add_adapters,
    holds_only_adapters,
    load_adapters,
    read_base_name,
    save_adapters,
    unwrap_adapters,
)
from glasshouse.models.chat_template import (
    DEFAULT_CHAT,
    check_template_options,
    find_turn_end,
    render_prompt,
)
from glasshouse.models.devices import (
    LARGE_MODEL_PARAMETERS,
    WEIGHT_DTYPE,
    check_generator_memory,
    choose_formats,
    keep_freed_memory,
    resolve_device,
    resolve_dtype,
)
from glasshouse.models.folders import check_json_files, locate_model, read_card
from glasshouse.models.packaged import CARD_FILE
from glasshouse.models.validation import (
    build_empty_model,
    check_cache_support,
    check_finite,
    probe_model,
)
from glasshouse.types import Message

transformers_logging.set_verbosity_error()
transformers_logging.disable_progress_bar()


@dataclass(frozen=True, slots=True)
class Policy:
    """A model with its tokenizer and model card."""

    name: str
    model: Any
    tokenizer: Any
    card: Mapping[str, Any]
    dtype: torch.dtype = torch.float32
    """What matrix products are computed in."""
    chat: ChatConfig = DEFAULT_CHAT

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end a turn."""
        ids = self.model.generation_config.eos_token_id
        ids = self.tokenizer.eos_token_id if ids is None else ids
        return frozenset(ids if isinstance(ids, list) else [ids] if ids is not None else [])

    @property
    def context_length(self) -> int:
        """The maximum number of tokens of prompt and completion."""
        config = self.model.config.get_text_config()
        return int(getattr(config, "max_position_embeddings", None) or 1 << 30)

    def encode_prompt(self, messages: Sequence[Message]) -> tuple[str, tuple[int, ...]]:
        """The prompt of a chat, as text and as tokens."""
        text = render_prompt(self.tokenizer, messages, self.name, self.chat)
        return text, tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, without special tokens."""
        return self.decode_batch([tokens])[0]

    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Texts of several completions."""
        return list(self.tokenizer.batch_decode([list(r) for r in rows], skip_special_tokens=True))

    def weights(self) -> dict[str, Tensor]:
        """The model's parameters by name; tied tensors appear once."""
        return {name: p.detach() for name, p in self.model.named_parameters()}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copies these weights into the model, unless they are its own tensors; raises unless name, shape and dtype
        of each are the model's. `copy_` alone would broadcast and convert."""
        parameters = dict(self.model.named_parameters())
        for name, parameter in parameters.items():
            check_tensor(name, weights.get(name), parameter)
        with torch.no_grad():
            for name, parameter in parameters.items():
                source = weights[name]
                if parameter.device != source.device or parameter.data_ptr() != source.data_ptr():
                    parameter.copy_(source)


def check_tensor(name: str, tensor: Tensor | None, expected: Tensor) -> None:
    """Raises if a saved tensor is missing or differs from the expected one in shape or dtype."""
    if tensor is None:
        raise ModelError(f"The tensor {name} is missing.")
    if tensor.shape != expected.shape or tensor.dtype != expected.dtype:
        raise ModelError(
            f"The tensor {name} has shape {tuple(tensor.shape)} and type {tensor.dtype} instead of "
            f"{tuple(expected.shape)} and {expected.dtype}."
        )


def load_policy(
    name: str, chat: ChatConfig = DEFAULT_CHAT, dtype: torch.dtype = WEIGHT_DTYPE
) -> Policy:
    """Loads `pocket`, the base model of an organism, a packaged model, a folder or a hub name, in evaluation mode, on
    the CPU. Nothing is unpickled, and no code from the model repository is run."""
    folder = locate_model(name)
    if folder and holds_only_adapters(folder):
        base = load_policy(read_base_name(folder / ADAPTER_FOLDER), chat, dtype)
        merged = load_adapters(base.model, folder / ADAPTER_FOLDER)
        return replace(base, name=name, model=merged, tokenizer=load_tokenizer(name))
    source = str(folder or name)
    tokenizer = load_tokenizer(name)
    try:
        model, loading_info = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, with the name
        )
    except Exception as error:  # transformers raises any kind
        raise loading_error(name, folder, error) from None
    for tensor, found, expected in sorted(loading_info["mismatched_keys"]):
        raise ModelError(
            f'The weights of "{source}" have {tensor} of shape {tuple(found)}, but its config.json asks for '
            f"{tuple(expected)}: they belong to different models. Copy the files of one model."
        )
    missing = sorted(loading_info["missing_keys"])
    if missing:  # transformers would continue with random weights
        raise ModelError(
            f'The weights of "{source}" lack {missing[0]} ({len(missing)} missing in total); '
            "copy or download the model again."
        )
    check_cache_support(model, source)
    check_finite(model, source)
    check_template_options(tokenizer, name, chat)
    set_end_tokens(model, tokenizer, source)
    model.eval()
    return Policy(name, model, tokenizer, read_card(name), chat=chat)


def load_configured_policy(
    config: Config, *, training: bool, role: str = "learner", index: int = 0
) -> Policy:
    """Loads `config.model`; raises before loading if its device, dtype or memory do not suffice.

    `role` is that of the process: a `learner` uses `device`, a `generator` `generate.device`, and a
    `controller`, which only holds weights, the CPU. `index` numbers the processes of a role. `training`
    adds adapters."""
    parameters = count_parameters(config.model)
    device = choose_device(config, parameters, role, index)
    dtype = resolve_dtype(config.dtype, device, parameters)
    held = choose_formats(config, parameters, training=training).weights
    if role == "generator":  # training is checked as a whole, in `training.memory`
        check_generator_memory(parameters, config, held, device)
    computes_here = role != "controller" and device.type == "cpu"
    if computes_here and parameters >= LARGE_MODEL_PARAMETERS:
        keep_freed_memory()
    policy = load_policy(config.model, config.chat, held)
    if training and config.learn.lora_rank:  # on the CPU, so that they start equal on every device
        learn = config.learn
        policy = add_adapters(policy, learn.lora_rank, config.seed, learn.lora_targets)
    policy.model.to(device)
    return replace(policy, dtype=dtype)


def count_parameters(name: str) -> int:
    """The parameters of a model, without loading its weights."""
    return sum(p.numel() for p in load_empty_model(name).parameters())


def load_empty_model(name: str) -> Any:
    """A model without its weights. A folder with only a config.json is enough."""
    folder = Path(name).expanduser() if is_bare_config(name) else locate_model(name)
    if folder is not None:
        check_json_files(folder)
    try:
        config = AutoConfig.from_pretrained(str(folder or name), trust_remote_code=False)
        return build_empty_model(config, name)
    except Exception as error:  # transformers raises any kind
        raise loading_error(name, folder, error) from None


def is_bare_config(name: str) -> bool:
    """Whether this is a folder with the configuration of a model, but without its weights."""
    folder = Path(name).expanduser()
    return (folder / "config.json").is_file() and not any(folder.glob("*.safetensors"))


def choose_device(config: Config, parameters: int, role: str, index: int = 0) -> torch.device:
    """The device of a process with this role."""
    if role == "controller":
        return torch.device("cpu")
    if role == "generator" and config.generate.device:
        if config.backend == "monarch" and config.device in ("auto", "cuda"):
            index += config.monarch.learners  # the learners have the GPUs before it
        return resolve_device(config.generate.device, parameters, index, "generate.device")
    return resolve_device(config.device, parameters, index)


def set_end_tokens(model: Any, tokenizer: Any, source: str) -> None:
    """Adds to the generation config's end tokens those of the tokenizer and of the chat template: some
    models name only the end of a text there, and would never end a turn. Raises if there is none."""
    configured = model.generation_config.eos_token_id
    ids = set(configured if isinstance(configured, list) else [configured])
    every = (ids | {tokenizer.eos_token_id, find_turn_end(tokenizer)}) - {None}
    if not every:
        raise ModelError(
            f'"{source}" has no end-of-text token, so that no completion would ever end. Set eos_token in '
            "tokenizer_config.json, or eos_token_id in generation_config.json."
        )
    if every != ids:
        model.generation_config.eos_token_id = sorted(every)


def load_tokenizer(name: str) -> Any:
    """Loads only the tokenizer of a model, with its chat template."""
    folder = locate_model(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder or name), trust_remote_code=False)
    except Exception as error:  # transformers raises any kind
        raise loading_error(name, folder, error) from None
    if folder is None:  # those of a folder are tried before they are loaded
        probe_model(name)
    return tokenizer


def loading_error(name: str, folder: Path | None, error: Exception) -> ModelError:
    """The error to raise for what transformers raised."""
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    if folder:
        return ModelError(f'The folder "{folder}" could not be loaded as a model: {reason}')
    if "gated" in reason.lower() or "is not a valid model identifier" in reason:
        return ModelError(
            f'There is no model "{name}" on the hub, or it is private or gated. Check the spelling, accept its terms '
            f"at https://huggingface.co/{name} and log in with `hf auth login`, or set `model` to a local folder."
        )
    return ModelError(
        f'"{name}" is not a local folder and could not be loaded from the model hub: {reason} '
        f'On a machine with internet access, run "hf download {name} --local-dir '
        f'models/{Path(name).name}", copy that folder to this machine, and set `model` to it.'
    )


def save_policy(policy: Policy, folder: Path, *, merge_adapters: bool = True) -> None:
    """Saves in the standard layout, which `AutoModelForCausalLM.from_pretrained(folder)` loads. Adapters are saved in
    peft's layout in a folder of their own, and merged into the weights; without `merge_adapters` only the former."""
    model = unwrap_adapters(policy.model)
    has_adapters = model is not policy.model
    if has_adapters:
        save_adapters(policy.model, folder / ADAPTER_FOLDER)
    # One file, whatever its size. transformers renames the tensors of some architectures (mixtures of
    # experts, GPT-NeoX) on saving; with their own names a checkpoint can be compared and resumed.
    with unwrap_os_error():
        if has_adapters and not merge_adapters:
            model.config.save_pretrained(folder)
            model.generation_config.save_pretrained(folder)
        else:
            if has_adapters:
                model = copy_to_cpu(policy.model).merge_and_unload()
            elif policy.device.type != "cpu":
                model = copy_to_cpu(model)
            model.save_pretrained(folder, max_shard_size="1TB", save_original_format=False)
        policy.tokenizer.save_pretrained(folder)
    if policy.card:
        (folder / CARD_FILE).write_text(json.dumps(policy.card, indent=2) + "\n")


def copy_to_cpu(model: Any) -> Any:
    """A copy of the model on the CPU; tensors that are tied in the model are tied in it."""
    copies: dict[int, Any] = {id(b): b.to("cpu", copy=True) for b in model.buffers()}
    for parameter in model.parameters():
        copied = parameter.detach().to("cpu", copy=True)
        copies[id(parameter)] = torch.nn.Parameter(copied, parameter.requires_grad)
    return copy.deepcopy(model, copies)
