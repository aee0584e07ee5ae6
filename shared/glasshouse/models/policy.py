"""Any Hugging Face causal language model, from a folder, from a hub, or the pocket model."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from glasshouse.errors import ModelError
from glasshouse.types import Message

POCKET_FOLDER = Path(__file__).parent.parent / "pocket" / "model"
BASES_FOLDER = POCKET_FOLDER.parent / "bases"
"""Base models of the organisms: one folder each, loaded by the name of the folder."""
CARD_FILE = "glasshouse.json"
"""Optional file in a model folder: the task difficulties that the model was trained on."""

transformers_logging.set_verbosity_error()
transformers_logging.disable_progress_bar()


@dataclass(frozen=True, slots=True)
class Policy:
    """A model with its tokenizer and model card."""

    name: str
    model: Any
    tokenizer: Any
    card: Mapping[str, Any]

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
        if self.tokenizer.chat_template:
            text = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True
            )
        else:  # a base model without a chat template: turns become paragraphs
            text = "\n\n".join(m["content"] for m in messages) + "\n\n"
        return text, tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, tokens: Sequence[int]) -> str:
        """Decodes tokens to text without special tokens."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))

    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Decodes several completions."""
        return list(self.tokenizer.batch_decode([list(r) for r in rows], skip_special_tokens=True))

    def weights(self) -> dict[str, Tensor]:
        """The model's parameters by name; tied tensors appear once."""
        return {name: p.detach() for name, p in self.model.named_parameters()}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copies these weights into the model."""
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(weights[name])

    def task_options(self, task: str, style: str) -> dict[str, Any]:
        """The difficulty at which this model was trained on the task; empty: the task's default."""
        return dict(self.card.get("task_options", {}).get(task, {}).get(style, {}))


def load_policy(name: str) -> Policy:
    """Loads `pocket`, the base model of an organism, a folder or a hub name, in float32 and evaluation
    mode. Nothing is unpickled, and no code from the model repository is run."""
    embedded = {"pocket": POCKET_FOLDER, **{base.name: base for base in BASES_FOLDER.glob("*-*")}}
    path = embedded.get(name) or Path(name).expanduser()
    local = name in embedded or (name != "" and path.is_dir())
    if local:
        _validate_folder(path)
    elif path.exists() or name[:1] in "./~" or name.count("/") != 1:
        raise ModelError(
            f'There is no model folder "{name}". '
            'Set `model` to a folder in the Hugging Face layout, a hub name such as "org/model", or "pocket".'
        )
    source = str(path) if local else name
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        model, loading_info = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
        card = (
            json.loads((path / CARD_FILE).read_text())
            if local and (path / CARD_FILE).is_file()
            else {}
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        if local:
            message = f'The folder "{source}" could not be loaded as a model: {reason}'
            raise ModelError(message) from None
        raise ModelError(
            f'"{name}" is not a local folder and could not be loaded from the model hub: {reason} '
            f'On a machine with internet access, run "hf download {name} --local-dir '
            f'models/{path.name}", copy that folder to this machine, and set `model` to it.'
        ) from None
    missing = sorted(loading_info["missing_keys"])
    if missing:  # transformers would continue with random weights
        raise ModelError(
            f'The weights of "{source}" lack {missing[0]} ({len(missing)} missing in total); '
            "copy or download the model again."
        )
    model.eval()
    return Policy(name, model, tokenizer, card)


def _validate_folder(path: Path) -> None:
    """Raises a clear error for folders that transformers would reject obscurely or unpickle."""
    if (path / "adapter_config.json").is_file():
        raise ModelError(
            f'"{path}" holds adapters, not a whole model; merge them into their base model '
            "(peft: merge_and_unload, then save_pretrained) and set `model` to that folder."
        )
    if not (path / "config.json").is_file():
        raise ModelError(f'There is no model in "{path}": it has no config.json.')
    if not any(path.glob("*.safetensors")):
        raise ModelError(
            f'"{path}" has no *.safetensors file. Glasshouse does not unpickle weights; convert '
            "them with save_pretrained on a machine where you trust them."
        )


def save_policy(policy: Policy, folder: Path) -> None:
    """Saves in the standard layout, which `AutoModelForCausalLM.from_pretrained(folder)` loads."""
    model = policy.model
    if hasattr(model, "peft_config"):  # merge adapters, so that any tool can load the folder
        model = copy.deepcopy(model).merge_and_unload()
    model.save_pretrained(folder, max_shard_size="1TB")  # one file, whatever its size
    policy.tokenizer.save_pretrained(folder)
    if policy.card:
        (folder / CARD_FILE).write_text(json.dumps(policy.card, indent=2) + "\n")
