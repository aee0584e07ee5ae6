"""The forward pass of the Llama family (Llama, SmolLM, Qwen2, Qwen3), shared by generation and learning.

The parameters stay in transformers' modules; `fuse_weights` reads them and `forward` computes with fewer, larger
operations: one product for q, k and v, one for gate and up, a rotation without temporary halves. LoRA adapters are
merged into the weights. Other models use transformers' forward (see `is_supported`).

With `dtype` bfloat16 the fused weights are a rounded copy through which gradients reach the float32 parameters;
rotations and softmax stay in float32.

Shapes: B rows, L positions, D hidden, H query heads, J key-value heads, d head dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from glasshouse.kernel.build import load_kernel
from glasshouse.kernel.small_llama import SmallLlama
from glasshouse.models.adapters import read_linears, unwrap_adapters
from glasshouse.models.devices import is_large
from glasshouse.models.fused_ops import (
    gated_mlp_output,
    rms_norm_linear,
    rotate,
    split_and_rotate,
)
from glasshouse.models.matmul import LinearWeights, LowRank, linear, pack_weight

SUPPORTED_MODEL_TYPES = {"llama", "qwen2", "qwen3"}
Cache = list[tuple[Tensor, Tensor]]
"""Rotated keys and values `(B, J, L, d)` of each layer."""
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class LayerWeights(NamedTuple):
    """The parameters of one block, with q/k/v and gate/up concatenated."""

    input_norm: Tensor
    qkv: LinearWeights
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: LinearWeights
    mlp_norm: Tensor
    gate_up: LinearWeights
    down: LinearWeights


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


def fuse_weights(
    model: Any,
    dtype: torch.dtype | None = None,
    query_scale: float | None = None,
    *,
    pack: bool = False,
) -> LlamaWeights:
    """Concatenates the model's parameters, converted to `dtype` (default: their own); differentiable, so
    gradients reach the model's tensors. `query_scale` multiplies the queries. With `pack`, the weights have
    a layout for fast products without gradients (`matmul`)."""
    model = unwrap_adapters(model)
    body, config = model.model, model.config
    dtype = dtype or body.embed_tokens.weight.dtype

    def convert_weight(weight: Tensor) -> Tensor:
        return pack_weight(weight.to(dtype)) if pack else weight.to(dtype)

    def convert_linear(layer: LinearWeights) -> LinearWeights:
        adapter = layer.adapter and LowRank(*(factor.to(dtype) for factor in layer.adapter))
        bias = None if layer.bias is None else layer.bias.to(dtype)
        return LinearWeights(convert_weight(layer.weight), bias, adapter)

    layers = []
    for block in body.layers:
        a, m = block.self_attn, block.mlp
        qkv, q_norm, k_norm = _fuse_qkv(a, query_scale)
        layers.append(
            LayerWeights(
                input_norm=block.input_layernorm.weight.to(dtype),
                qkv=convert_linear(qkv),
                q_norm=None if q_norm is None else q_norm.to(dtype),
                k_norm=None if k_norm is None else k_norm.to(dtype),
                out=convert_linear(read_linears(a.o_proj)),
                mlp_norm=block.post_attention_layernorm.weight.to(dtype),
                gate_up=convert_linear(read_linears(m.gate_proj, m.up_proj)),
                down=convert_linear(read_linears(m.down_proj)),
            )
        )
    return LlamaWeights(
        embed=body.embed_tokens.weight.to(dtype),
        padding_token=body.embed_tokens.padding_idx,
        layers=tuple(layers),
        norm=body.norm.weight.to(dtype),
        head=convert_weight(model.lm_head.weight),
        inv_freq=body.rotary_emb.inv_freq.float(),
        rope_scale=float(body.rotary_emb.attention_scaling),
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=body.layers[0].self_attn.head_dim,
        eps=config.rms_norm_eps,
    )


def detach_weights(weights: LlamaWeights) -> tuple[LlamaWeights, list[Tensor], list[Tensor]]:
    """The same weights as leaves without the graph that leads to the model's parameters; and the tensors that
    need gradients, with their graph and as leaves."""
    attached, leaves = list[Tensor](), dict[int, Tensor]()

    def detach(value: Any) -> Any:
        if isinstance(value, Tensor) and value.requires_grad:
            if id(value) not in leaves:  # tied weights are one leaf
                attached.append(value)
                leaves[id(value)] = value.detach().requires_grad_()
            return leaves[id(value)]
        if isinstance(value, LlamaWeights | LayerWeights | LinearWeights | LowRank):
            return type(value)(*map(detach, value))
        return tuple(map(detach, value)) if isinstance(value, tuple) else value

    return detach(weights), attached, list(leaves.values())


def _fuse_qkv(
    attention: Any, query_scale: float | None
) -> tuple[LinearWeights, Tensor | None, Tensor | None]:
    """q, k and v, and the gains of the norms of q and k. Queries are scaled in the gain of their norm if
    they have one, else in the projection."""
    a = attention
    if not hasattr(a, "q_norm"):
        return read_linears(a.q_proj, a.k_proj, a.v_proj, first_scale=query_scale), None, None
    q_gain = a.q_norm.weight if query_scale is None else a.q_norm.weight * query_scale
    return read_linears(a.q_proj, a.k_proj, a.v_proj), q_gain, a.k_norm.weight


def rotary_tables(weights: LlamaWeights, positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and *signed* sines, `(positions, d)`: `x·cos + halves_swapped(x)·sin` rotates."""
    steps = torch.arange(positions, dtype=torch.float32, device=weights.inv_freq.device)
    angles = torch.outer(steps, weights.inv_freq)
    cos, sin = angles.cos() * weights.rope_scale, angles.sin() * weights.rope_scale
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def project_qkv(
    w: LlamaWeights, layer: LayerWeights, x: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """q `(..., H, d)`, k, v `(..., J, d)` of x `(..., D)`; cos, sin broadcast to `(..., 1, d)`."""
    h, j, d = w.num_heads, w.num_kv_heads, w.head_dim
    joined = rms_norm_linear(x, layer.input_norm, layer.qkv, w.eps)
    joined = joined.unflatten(-1, (h + 2 * j, d))
    if layer.q_norm is None or layer.k_norm is None:
        return split_and_rotate(joined, cos, sin, h, j)
    q = F.rms_norm(joined[..., :h, :], (d,), layer.q_norm, w.eps)
    k = F.rms_norm(joined[..., h : h + j, :], (d,), layer.k_norm, w.eps)
    qk = rotate(torch.cat([q, k], dim=-2), cos, sin)
    return qk[..., :h, :], qk[..., h:, :], joined[..., h + j :, :]


def finish_block(w: LlamaWeights, layer: LayerWeights, x: Tensor, attended: Tensor) -> Tensor:
    """The rest of a block after attention: output projection, MLP and both residuals."""
    x = x + linear(attended, *layer.out)
    gate_up = rms_norm_linear(x, layer.mlp_norm, layer.gate_up, w.eps)
    return gated_mlp_output(x, gate_up, layer.down)


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
    scale: float | None = None,
    recompute: bool = False,
) -> tuple[Tensor, Cache]:
    """Final hidden states `(B, L, D)` of right-padded tokens `(B, L)`, which follow `past`, and with `return_cache`
    their keys and values.

    Without `past`, right padding needs no mask: attention is causal. (The two calls of attention round differently:
    published results need both.) Scores are multiplied by `scale`, by default `d ** -0.5`. `recompute` stores only the
    input of each block and computes the block again in the backward pass (activation checkpointing)."""
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
        options: dict[str, Any] = {"scale": scale, "enable_gqa": w.num_heads != w.num_kv_heads}
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
