"""Sentence embedders: a Hugging Face encoder whose hidden states are averaged over the tokens of a text.

Texts are embedded one at a time, so that a vector does not depend on the other texts of a batch.
"""

from __future__ import annotations

import hashlib
import time
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from glasshouse.errors import ModelError, MonitorError, import_extra
from glasshouse.monitors.base import View
from glasshouse.values import Floats


class Embedding(NamedTuple):
    """The vector of a text, of length 1, and what it cost."""

    vector: Floats
    tokens: int
    seconds: float


def embed(encoder: str, view: View) -> Embedding:
    """The embedding of what a view shows. Example: `embed("sentence-transformers/all-MiniLM-L6-v2", view).vector`"""
    return _embed_text(encoder, "\n".join(view.parts.values()))


@lru_cache(maxsize=4)
def load_encoder(name: str) -> tuple[Any, Any, str]:
    """The tokenizer, the model and the SHA-256 of the weights of a folder or a hub name. Nothing is unpickled, and no
    code of the repository is run."""
    torch, transformers = import_extra(
        "train", "An embedder", "torch", "transformers", error=MonitorError
    )
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        model = transformers.AutoModel.from_pretrained(
            name, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
        )
    except Exception as error:  # transformers raises any kind
        reason = " ".join(str(error).split())[:200]
        raise ModelError(
            f'The embedder "{name}" could not be loaded: {reason} Name the folder of an encoder, or a hub name such '
            "as sentence-transformers/all-MiniLM-L6-v2."
        ) from None
    digest = hashlib.sha256()
    for key, tensor in sorted(model.state_dict().items()):
        digest.update(key.encode() + tensor.numpy().tobytes())
    return tokenizer, model.eval(), digest.hexdigest()


@lru_cache(maxsize=1 << 14)
def _embed_text(name: str, text: str) -> Embedding:
    import torch

    (tokenizer, model, _), started = load_encoder(name), time.perf_counter()
    limit = min(
        tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None) or 512
    )
    inputs = tokenizer(text.strip() or "-", truncation=True, max_length=limit, return_tensors="pt")
    with torch.inference_mode():
        mean = model(**inputs).last_hidden_state[0].mean(0).double().numpy()
    seconds = time.perf_counter() - started
    return Embedding(mean / np.linalg.norm(mean), inputs["input_ids"].numel(), seconds)
