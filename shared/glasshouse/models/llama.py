"""The forward pass of the Llama family (Llama, SmolLM, Qwen2, Qwen3) in torch, shared by generation and learning; and
which models the kernel for small models computes instead.

The parameters stay in transformers' modules; `read_weights` reads them, with LoRA adapters merged. Other models use
transformers' forward (see `is_supported`). Products are those of `linear`; prompts can be computed once for all their
completions (`shared_prefix`).

With `dtype` bfloat16 the weights are a rounded copy through which gradients reach the float32 parameters; rotations and
softmax stay in float32.

Shapes: B rows, L positions, D hidden, H query heads, J key-value heads, d head dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from glasshouse.kernel.build import load_kernel
from glasshouse.kernel.small_llama import SmallLlama
from glasshouse.models.adapters import unwrap_adapters
from glasshouse.models.devices import is_large
from glasshouse.models.linear import Linear, linear, pack_weight, read_linear

SUPPORTED_MODEL_TYPES = {"llama", "qwen2", "qwen3"}
Cache = list[tuple[Tensor, Tensor]]
"""Rotated keys and values `(B, J, L, d)` of each layer."""
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class LayerWeights(NamedTuple):
    """The parameters of one block."""

    input_norm: Tensor
    q: Linear
    k: Linear
    v: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Linear
    mlp_norm: Tensor
    gate: Linear
    up: Linear
    down: Linear


class LlamaWeights(NamedTuple):
    """Everything a forward pass needs."""

    embed: Tensor
    padding_token: int | None
    """The token whose input embedding gets no gradient, as in transformers."""
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor
    inv_freq: Tensor
    """Inverse frequencies of the rotary embedding, `(d / 2,)`."""
    rope_scale: float
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float

    @property
    def device(self) -> torch.device:
        return self.embed.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.dtype


def is_supported(model: Any) -> bool:
    """Whether this model can use the fast path: of the Llama family, adapters only in the linear layers of the
    blocks."""
    return is_llama_family(model.config) and (
        not hasattr(model, "peft_config") or _supports_adapters(model)
    )


def is_llama_family(config: Any) -> bool:
    """Whether transformers' configuration is of a model that this module can compute: no sliding windows, no
    dynamic rotary scaling."""
    rope = getattr(config, "rope_parameters", None) or {}
    return (
        config.model_type in SUPPORTED_MODEL_TYPES
        and getattr(config, "hidden_act", "silu") == "silu"
        and set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
        and rope.get("rope_type", "default") in {"default", "linear", "llama3"}
    )


def find_kernel_obstacle(model: Any, dtype: torch.dtype) -> str:
    """Why the kernel for small models cannot compute this model in this dtype; empty if it can."""
    if hasattr(model, "peft_config"):
        return "the model has adapters"
    if is_large(model):
        return "the model is large"
    config = model.config
    rope = getattr(config, "rope_parameters", None) or {}
    if not is_llama_family(config) or rope.get("rope_type", "default") != "default":
        return f'a model of type "{config.model_type}" with these settings'
    if dtype != torch.float32 or model.device.type not in ("cpu", "meta"):
        return "not float32 on a CPU"
    block = model.model.layers[0]
    mlp, attention = block.mlp, block.self_attn
    if any(p.bias is not None for p in (attention.o_proj, mlp.gate_proj, mlp.down_proj)):
        return "the output of attention or the MLP has biases"
    widths = (config.hidden_size, config.intermediate_size, attention.head_dim)
    return "a width is not a multiple of 16" if any(width % 16 for width in widths) else ""


def open_kernel(model: Any, dtype: torch.dtype = torch.float32) -> SmallLlama | None:
    """The model in the kernel for small models, with as many threads as torch; None if it takes the general path."""
    if find_kernel_obstacle(model, dtype):
        return None
    library = load_kernel().library
    return SmallLlama(library, model, torch.get_num_threads()) if library else None


def describe_path(model: Any, dtype: torch.dtype = torch.float32) -> str:
    """What computes this model: `kernel (avx2)`, or `torch (the model is large)`. Its first word decides the bits."""
    obstacle = find_kernel_obstacle(model, dtype)
    return f"torch ({obstacle})" if obstacle else load_kernel().description


def _supports_adapters(model: Any) -> bool:
    adapted = [(name, m) for name, m in model.named_modules() if hasattr(m, "lora_A")]
    return all(
        name.rpartition(".")[2] in PROJECTIONS
        and isinstance(m.base_layer, torch.nn.Linear)
        and m.base_layer.weight.dtype != torch.bfloat16  # rounding would lose a merged update
        for name, m in adapted
    )


def read_weights(
    model: Any, dtype: torch.dtype | None = None, *, pack: bool = False
) -> LlamaWeights:
    """The model's parameters, converted to `dtype` (default: their own); differentiable, so gradients reach the
    model's tensors. With `pack`, matrices have a layout for fast products without gradients (`pack_weight`)."""
    model = unwrap_adapters(model)
    body, config = model.model, model.config
    dtype = dtype or body.embed_tokens.weight.dtype
    read = partial(read_linear, dtype=dtype, pack=pack)

    def read_block(block: Any) -> LayerWeights:
        a, m = block.self_attn, block.mlp
        has_norms = hasattr(a, "q_norm")
        return LayerWeights(
            input_norm=block.input_layernorm.weight.to(dtype),
            q=read(a.q_proj),
            k=read(a.k_proj),
            v=read(a.v_proj),
            q_norm=a.q_norm.weight.to(dtype) if has_norms else None,
            k_norm=a.k_norm.weight.to(dtype) if has_norms else None,
            out=read(a.o_proj),
            mlp_norm=block.post_attention_layernorm.weight.to(dtype),
            gate=read(m.gate_proj),
            up=read(m.up_proj),
            down=read(m.down_proj),
        )

    head = model.lm_head.weight.to(dtype)
    return LlamaWeights(
        embed=body.embed_tokens.weight.to(dtype),
        padding_token=body.embed_tokens.padding_idx,
        layers=tuple(map(read_block, body.layers)),
        norm=body.norm.weight.to(dtype),
        head=pack_weight(head) if pack else head,
        inv_freq=body.rotary_emb.inv_freq.float(),
        rope_scale=float(body.rotary_emb.attention_scaling),
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=body.layers[0].self_attn.head_dim,
        eps=config.rms_norm_eps,
    )


def rotary_tables(weights: LlamaWeights, positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and *signed* sines, `(positions, d)`: `x·cos + halves_swapped(x)·sin` rotates."""
    steps = torch.arange(positions, dtype=torch.float32, device=weights.inv_freq.device)
    angles = torch.outer(steps, weights.inv_freq)
    cos, sin = angles.cos() * weights.rope_scale, angles.sin() * weights.rope_scale
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates queries or keys `(..., d)` with the tables of `rotary_tables`, in float32 at least."""
    wide = x.float() if x.dtype == torch.bfloat16 else x
    first, second = wide.chunk(2, dim=-1)
    return torch.addcmul(wide * cos, torch.cat([second, first], dim=-1), sin).to(x.dtype)


def project_qkv(
    w: LlamaWeights, layer: LayerWeights, x: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """q `(..., H, d)`, k, v `(..., J, d)` of x `(..., D)`; cos, sin broadcast to `(..., 1, d)`."""
    x = F.rms_norm(x, x.shape[-1:], layer.input_norm, w.eps)
    q, k, v = (
        linear(x, *part).unflatten(-1, (-1, w.head_dim)) for part in (layer.q, layer.k, layer.v)
    )
    if layer.q_norm is not None:
        q = F.rms_norm(q, (w.head_dim,), layer.q_norm, w.eps)
        k = F.rms_norm(k, (w.head_dim,), layer.k_norm, w.eps)
    return rotate(q, cos, sin), rotate(k, cos, sin), v


def finish_block(w: LlamaWeights, layer: LayerWeights, x: Tensor, attended: Tensor) -> Tensor:
    """The rest of a block after attention: output projection, MLP and both residuals."""
    x = x + linear(attended, *layer.out)
    normed = F.rms_norm(x, x.shape[-1:], layer.mlp_norm, w.eps)
    return x + linear(F.silu(linear(normed, *layer.gate)) * linear(normed, *layer.up), *layer.down)


class Past(NamedTuple):
    """What precedes the tokens of a forward pass: the keys and values of R prompts."""

    lengths: Tensor
    """(R,)"""
    cache: Sequence[tuple[Tensor, ...]]
    """One entry per layer."""
    gather: Callable[..., tuple[Tensor, Tensor]]
    """Turns the entry of a layer into keys and values `(R, J, p, d)`, padded on the right. It is called in each layer,
    so that copies for all rows exist for one layer at a time."""


def forward(
    w: LlamaWeights,
    tokens: Tensor,
    past: Past | None = None,
    *,
    return_cache: bool = False,
    recompute: bool = False,
) -> tuple[Tensor, Cache]:
    """Final hidden states `(B, L, D)` of right-padded tokens `(B, L)`, which follow `past`, and with `return_cache`
    their keys and values.

    Without `past`, right padding needs no mask: attention is causal. (The two calls of attention round differently:
    published results need both.) `recompute` stores only the input of each block and computes the block again in the
    backward pass (activation checkpointing)."""
    length, past_length = tokens.shape[1], 0
    if past is not None:
        past_length = int(past.gather(*past.cache[0])[0].shape[2])
        mask = _past_mask(w, past.lengths, past_length, length)
    cos, sin = rotary_tables(w, past_length + length)
    if past is not None:
        positions = past.lengths[:, None] + torch.arange(length, device=w.device)
        cos, sin = cos[positions], sin[positions]
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)

    def run_block(layer: LayerWeights, x: Tensor, *before: Tensor) -> tuple[Tensor, ...]:
        q, k, v = (part.transpose(1, 2) for part in project_qkv(w, layer, x, cos, sin))
        options: dict[str, Any] = {"enable_gqa": w.num_heads != w.num_kv_heads}
        if past is None:
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, **options)
        else:
            keys, values = past.gather(*before)
            keys, values = torch.cat([keys, k], dim=2), torch.cat([values, v], dim=2)
            attended = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, **options)
        return finish_block(w, layer, x, attended.transpose(1, 2).flatten(-2)), k, v

    x = F.embedding(tokens, w.embed, w.padding_token)
    cache = []
    for index, layer in enumerate(w.layers):
        before = past.cache[index] if past is not None else ()
        if recompute and torch.is_grad_enabled():
            x, k, v = checkpoint(
                run_block, layer, x, *before, use_reentrant=False, preserve_rng_state=False
            )
        else:
            x, k, v = run_block(layer, x, *before)
        if return_cache:
            cache.append((k.contiguous(), v.contiguous()))
    return F.rms_norm(x, x.shape[-1:], w.norm, w.eps), cache


def _past_mask(w: LlamaWeights, lengths: Tensor, past_length: int, length: int) -> Tensor:
    """(R, 1, L, p + L), 0 where attention is allowed: to the prompt without its padding, and causal after it."""
    total = past_length + length
    mask = torch.zeros(len(lengths), 1, length, total, dtype=w.dtype, device=w.device)
    is_padding = torch.arange(past_length, device=w.device) >= lengths[:, None]
    mask[..., :past_length].masked_fill_(is_padding[:, None, None], -torch.inf)
    future = torch.full((length, length), -torch.inf, dtype=w.dtype, device=w.device)
    mask[..., past_length:] = future.triu_(1)
    return mask
