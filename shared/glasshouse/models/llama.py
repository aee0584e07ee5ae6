"""The Llama family's forward pass, written once for generating and for learning.

transformers' own modules hold the parameters; this file reads them (`fuse`) and computes with
fewer, larger operations: one product for q, k and v, one for gate and up, a rotation without
temporary halves. Covers Llama, SmolLM, Qwen2 and Qwen3; anything else goes through transformers'
forward (see `supported`).

Shapes: B rows, L positions, D hidden, H query heads, J key heads, d head dimension.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from glasshouse.models.fused_ops import gated_down, norm_linear

FAMILY = {"llama", "qwen2", "qwen3"}


class Layer(NamedTuple):
    """One block's parameters, q/k/v and gate/up joined."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


class Weights(NamedTuple):
    """Everything a forward pass reads."""

    embed: Tensor
    padding: int | None
    """The token whose embedding gets no gradient as an input, as in transformers."""
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Tensor
    rotation: Tensor
    """Inverse frequencies of the rotary embedding, `(d / 2,)`."""
    rotation_scale: float
    heads: int
    key_heads: int
    head_dim: int
    eps: float


def supported(model: Any) -> bool:
    """Can this model take the fast path? Sliding windows and dynamic rotations cannot."""
    config = model.config
    rope = getattr(config, "rope_parameters", None) or {}
    return (
        config.model_type in FAMILY
        and getattr(config, "hidden_act", "silu") == "silu"
        and set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
        and rope.get("rope_type", "default") in {"default", "linear", "llama3"}
        and not hasattr(model, "peft_config")
    )


def fuse(model: Any) -> Weights:
    """The model's parameters, joined. Differentiable: gradients reach the model's own tensors."""
    body, config = model.model, model.config
    layers = []
    for block in body.layers:
        a, m = block.self_attn, block.mlp
        layers.append(
            Layer(
                block.input_layernorm.weight,
                torch.cat([a.q_proj.weight, a.k_proj.weight, a.v_proj.weight]),
                _join(a.q_proj.bias, a.k_proj.bias, a.v_proj.bias),
                a.q_norm.weight if hasattr(a, "q_norm") else None,
                a.k_norm.weight if hasattr(a, "k_norm") else None,
                a.o_proj.weight,
                a.o_proj.bias,
                block.post_attention_layernorm.weight,
                torch.cat([m.gate_proj.weight, m.up_proj.weight]),
                _join(m.gate_proj.bias, m.up_proj.bias),
                m.down_proj.weight,
                m.down_proj.bias,
            )
        )
    return Weights(
        embed=body.embed_tokens.weight,
        padding=body.embed_tokens.padding_idx,
        layers=tuple(layers),
        norm=body.norm.weight,
        head=model.lm_head.weight,
        rotation=body.rotary_emb.inv_freq.float(),
        rotation_scale=float(body.rotary_emb.attention_scaling),
        heads=config.num_attention_heads,
        key_heads=config.num_key_value_heads,
        head_dim=body.layers[0].self_attn.head_dim,
        eps=config.rms_norm_eps,
    )


def _join(*parts: Tensor | None) -> Tensor | None:
    present = [p for p in parts if p is not None]
    return torch.cat(present) if present else None


def rotations(weights: Weights, positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and *signed* sines, `(positions, d)`: `x·cos + halves_swapped(x)·sin` rotates."""
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), weights.rotation)
    cos, sin = angles.cos() * weights.rotation_scale, angles.sin() * weights.rotation_scale
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def attention_inputs(
    w: Weights, layer: Layer, x: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """q `(..., H, d)`, k, v `(..., J, d)` of x `(..., D)`; cos, sin broadcast to `(..., 1, d)`."""
    h, j, d = w.heads, w.key_heads, w.head_dim
    joined = norm_linear(x, layer.input_norm, layer.qkv, layer.qkv_bias, w.eps)
    joined = joined.unflatten(-1, (h + 2 * j, d))
    qk, v = joined[..., : h + j, :], joined[..., h + j :, :]
    if layer.q_norm is not None and layer.k_norm is not None:
        q = F.rms_norm(qk[..., :h, :], (d,), layer.q_norm, w.eps)
        k = F.rms_norm(qk[..., h:, :], (d,), layer.k_norm, w.eps)
        qk = torch.cat([q, k], dim=-2)
    swapped = torch.cat([qk[..., d // 2 :], qk[..., : d // 2]], dim=-1)
    qk = torch.addcmul(qk * cos, swapped, sin)
    return qk[..., :h, :], qk[..., h:, :], v


def after_attention(w: Weights, layer: Layer, x: Tensor, attended: Tensor) -> Tensor:
    """The rest of a block: output projection, MLP, both residuals."""
    x = x + F.linear(attended, layer.out, layer.out_bias)
    gate_up = norm_linear(x, layer.mlp_norm, layer.gate_up, layer.gate_up_bias, w.eps)
    return gated_down(x, gate_up, layer.down, layer.down_bias)


def forward(
    w: Weights, tokens: Tensor, *, keep_cache: bool = False, scale: float | None = None
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Final hidden states `(B, L, D)` of right-padded tokens `(B, L)`, and if asked each layer's
    rotated keys and values `(B, J, L, d)`. Padding on the right needs no mask: attention is causal.
    `scale` is what scores are multiplied by, `d ** -0.5` unless given."""
    cos, sin = rotations(w, tokens.shape[1])
    cos, sin = cos[:, None], sin[:, None]
    x = F.embedding(tokens, w.embed, w.padding)
    cache = []
    for layer in w.layers:
        q, k, v = attention_inputs(w, layer, x, cos, sin)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if keep_cache:
            cache.append((k.contiguous(), v.contiguous()))
        attended = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scale, enable_gqa=w.heads != w.key_heads
        )
        x = after_attention(w, layer, x, attended.transpose(1, 2).flatten(-2))
    return F.rms_norm(x, x.shape[-1:], w.norm, w.eps), cache
