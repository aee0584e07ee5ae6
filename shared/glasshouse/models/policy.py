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

POCKET = Path(__file__).parent.parent / "pocket" / "model"
BASES = POCKET.parent / "bases"
"""The organisms' base models, a folder each, known by the folder's name."""
CARD = "glasshouse.json"
"""A model folder may carry this file: which task difficulties the model was shown."""

transformers_logging.set_verbosity_error()
transformers_logging.disable_progress_bar()


@dataclass(frozen=True, slots=True)
class Policy:
    """A model, its tokenizer, and what is known about it."""

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
    def context(self) -> int:
        """How many tokens fit."""
        config = self.model.config.get_text_config()
        return int(getattr(config, "max_position_embeddings", None) or 1 << 30)

    def prompt(self, messages: Sequence[Message]) -> tuple[str, tuple[int, ...]]:
        """The exact text and tokens sent for a chat."""
        if self.tokenizer.chat_template:
            text = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True
            )
        else:  # a base model without a chat: the turns as paragraphs
            text = "\n\n".join(m["content"] for m in messages) + "\n\n"
        return text, tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def text(self, tokens: Sequence[int]) -> str:
        """Tokens as text, special tokens left out."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))

    def texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Several completions as text."""
        return list(self.tokenizer.batch_decode([list(r) for r in rows], skip_special_tokens=True))

    def weights(self) -> dict[str, Tensor]:
        """The trainable state by name; tied tensors appear once."""
        return {name: p.detach() for name, p in self.model.named_parameters()}

    def take(self, weights: Mapping[str, Tensor]) -> None:
        """Put these numbers in place of the model's own."""
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(weights[name])

    def task_options(self, task: str, style: str) -> dict[str, Any]:
        """The difficulty at which this model was shown the task; empty: the task's own default."""
        return dict(self.card.get("ranges", {}).get(task, {}).get(style, {}))


def load(name: str) -> Policy:
    """`pocket` or an organism's base, a folder, or a hub name; float32, evaluation mode. Nothing is
    unpickled and no code that comes with a model is run."""
    embedded = {"pocket": POCKET, **{base.name: base for base in BASES.glob("*-*")}}
    path = embedded.get(name) or Path(name).expanduser()
    local = name in embedded or (name != "" and path.is_dir())
    if local:
        _check_folder(path)
    elif path.exists() or name[:1] in "./~" or name.count("/") != 1:
        raise ModelError(
            f'There is no model folder "{name}". '
            'Give a folder in the Hugging Face layout, a hub name such as "org/model", or "pocket".'
        )
    source = str(path) if local else name
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        model, found = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
        card = json.loads((path / CARD).read_text()) if local and (path / CARD).is_file() else {}
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        if local:
            message = f'The folder "{source}" could not be opened as a model: {reason}'
            raise ModelError(message) from None
        raise ModelError(
            f'"{name}" is not a folder here, and the model hub could not give it: {reason} '
            f'On a machine with a network, run "hf download {name} --local-dir '
            f'models/{path.name}", bring that folder here, and set `model` to it.'
        ) from None
    if found["missing_keys"]:  # transformers would go on with random numbers in their place
        raise ModelError(
            f'The weights of "{source}" lack {sorted(found["missing_keys"])[0]} '
            f"(missing in all: {len(found['missing_keys'])}); copy or download the model again."
        )
    model.eval()
    return Policy(name, model, tokenizer, card)


def _check_folder(path: Path) -> None:
    """Refuse in words what transformers would refuse in riddles, or open by unpickling."""
    if (path / "adapter_config.json").is_file():
        raise ModelError(
            f'"{path}" holds adapters, not a whole model; merge them into their base model '
            "(peft: merge_and_unload, then save_pretrained) and give that folder."
        )
    if not (path / "config.json").is_file():
        raise ModelError(f'There is no model in "{path}": it has no config.json.')
    if not any(path.glob("*.safetensors")):
        raise ModelError(
            f'"{path}" has no *.safetensors file. Glasshouse does not unpickle weights; convert '
            "them with save_pretrained on a machine where you trust them."
        )


def save(policy: Policy, folder: Path) -> None:
    """The standard layout: `AutoModelForCausalLM.from_pretrained(folder)` opens it."""
    model = policy.model
    if hasattr(model, "peft_config"):  # adapters go into the weights, so that any tool can open it
        model = copy.deepcopy(model).merge_and_unload()
    model.save_pretrained(folder, max_shard_size="1TB")  # one file, whatever its size
    policy.tokenizer.save_pretrained(folder)
    if policy.card:
        (folder / CARD).write_text(json.dumps(policy.card, indent=2) + "\n")
