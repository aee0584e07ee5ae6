"""A model of the Llama family whose tensors are divided among processes (FSDP2, `learn.sharding: fsdp`).

Each rank holds a part of every tensor. When a block is called, FSDP gathers its tensors from all ranks, and it frees
them when the call returns; in the backward pass it gathers them again and adds up the ranks' gradients, of which each
rank keeps its part. A tensor may therefore be read only inside the call of the module to which it belongs:

    ShardedModel.forward(function, …)    embeddings, final norm, output layer
      block.forward(attend, …)           the tensors of one block

The fast path (`llama.fuse_weights`) does neither: it reads all tensors first, and keeps copies of them. Here the linear
layers are called as modules, with or without LoRA adapters. As on the fast path, the prompt of several completions is
computed once (`ShardedPrefixes`).

Every rank must make the same calls in the same order, since each call waits for the other ranks.

Shapes: as in `llama`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from glasshouse.errors import ConfigError
from glasshouse.models import llama
from glasshouse.models.chunked_head import chunked_logprobs
from glasshouse.models.fused_ops import rotate
from glasshouse.models.logprobs import scatter_to_mask
from glasshouse.models.shared_prefix import pad_completions

Tokens = tuple[int, ...]
Attend = Callable[..., Tensor]
"""Attention of queries `(B, H, n, d)` to keys and values `(B, J, n, d)` and to further tensors: `(B, H, n, d)`."""


class ShardedModel(torch.nn.Module):
    """transformers' model, called with a function that computes with its tensors.

    Example: `shard_model(policy.model, init_device_mesh("cpu", (2,)), dtype=torch.float32)`
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.base = [llama.unwrap_adapters(model)]  # in a list: not a second submodule

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(self.base[0], *arguments)

    @contextmanager
    def without_adapters(self) -> Iterator[None]:
        """Inside, LoRA adapters add nothing: the model is the one that training started from."""
        layers = [m for m in self.model.modules() if hasattr(m, "lora_A")]
        for layer in layers:
            layer._disable_adapters = True  # peft's own method also freezes them
        try:
            yield
        finally:
            for layer in layers:
                layer._disable_adapters = False


def check_shardable(config: Any) -> None:
    """Raises if transformers' configuration is not of a model of the Llama family."""
    if not llama.is_llama_family(config):
        names = ", ".join(sorted(llama.SUPPORTED_MODEL_TYPES))
        raise ConfigError(
            f'learn.sharding=fsdp: models of type "{config.model_type}" with these settings cannot be sharded; '
            f"the supported types are {names}, without sliding windows. Set learn.sharding=none."
        )


def shard_model(
    model: Any, mesh: DeviceMesh, *, dtype: torch.dtype, cpu_offload: bool = False
) -> ShardedModel:
    """Divides the tensors of a model, which is equal on all ranks, among the ranks of the mesh. Matrix products are
    computed in `dtype`; gradients are added up in float32. `cpu_offload` keeps the parts of this rank in the host's
    memory."""
    check_shardable(model.config)
    rounds = dtype != torch.float32
    options: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=dtype if rounds else None, reduce_dtype=torch.float32 if rounds else None
        ),
        "offload_policy": CPUOffloadPolicy() if cpu_offload else OffloadPolicy(),
    }
    sharded = ShardedModel(model)
    for block in sharded.base[0].model.layers:
        block.forward = partial(_run_block, block)
        fully_shard(block, reshard_after_forward=True, **options)
    fully_shard(sharded, reshard_after_forward=False, **options)
    for module in sharded.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # the sum over ranks, not the mean
            module.set_force_sum_reduction_for_comms(True)  # gloo cannot divide
    return sharded


def copy_frozen(sharded: ShardedModel, mesh: DeviceMesh, dtype: torch.dtype) -> ShardedModel:
    """A sharded copy that is never trained, rounded to `dtype`. No rank ever holds a whole copy."""
    source = sharded.base[0]
    with torch.device("meta"):
        model = type(source)(source.config).to(dtype).eval().requires_grad_(False)
    copied = shard_model(model, mesh, dtype=dtype)
    copied.to_empty(device=mesh.device_type)
    parameters = dict(source.named_parameters())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            local_part(parameter).copy_(local_part(parameters[name]))
        for (_, buffer), (_, original) in zip(
            model.named_buffers(), source.named_buffers(), strict=True
        ):
            buffer.copy_(original)
    return copied


def local_part(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole_tensor(tensor: Tensor, device: torch.device) -> Tensor:
    """A divided tensor, gathered on every rank; all ranks must call it. `device` is where ranks exchange tensors."""
    detached: Any = tensor.detach()
    whole: Tensor = detached.to(device).full_tensor() if isinstance(tensor, DTensor) else detached
    return whole


class ShardedPrefixes:
    """Prompts, computed once and ready to be continued, as `shared_prefix.SharedPrefixes`.

    Example:
        prefixes = ShardedPrefixes(sharded, prompts)
        logprobs, entropy = prefixes.completion_logprobs(pairs)
        compute_loss(logprobs).backward()    # for each microbatch; gradients reach the leaves, too
        prefixes.backward()
    """

    def __init__(
        self, model: ShardedModel, prompts: Sequence[Tokens], *, recompute: bool = False
    ) -> None:
        self.model, self.recompute = model, recompute
        self.prompt_index = {prompt: row for row, prompt in enumerate(dict.fromkeys(prompts))}
        self.lengths = torch.tensor([len(prompt) for prompt in self.prompt_index])
        tokens = torch.zeros(len(self.lengths), int(self.lengths.max()), dtype=torch.long)
        for row, prompt in enumerate(self.prompt_index):
            tokens[row, : len(prompt)] = torch.tensor(prompt)
        self.device = model.base[0].model.rotary_emb.inv_freq.device
        arguments = tokens.to(self.device), self.lengths.to(self.device), recompute
        self.outputs: list[Tensor] = model(_compute_prompts, *arguments)
        self.leaves = [tensor.detach().requires_grad_() for tensor in self.outputs]

    def completion_logprobs(
        self, pairs: Sequence[tuple[Tokens, Sequence[int]]], temperature: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """(R, T) log-probabilities and entropies of the completions of (prompt, completion) pairs, 0 on padding."""
        tokens, mask, rows = pad_completions(self.prompt_index, pairs)
        inputs = (tokens, mask, rows, self.lengths[rows])
        chosen, entropy = self.model(
            _compute_completions, *(tensor.to(self.device) for tensor in inputs),
            temperature, self.recompute, *self.leaves,
        )  # fmt: skip
        mask = mask.to(self.device)
        return scatter_to_mask(mask, chosen), scatter_to_mask(mask, entropy)

    def backward(self) -> None:
        """Propagates the gradients at the leaves through the prompts."""
        pairs = [
            (output, leaf.grad)
            for output, leaf in zip(self.outputs, self.leaves, strict=True)
            if output.requires_grad  # not before the first adapter
        ]
        outputs, gradients = zip(*pairs, strict=True)
        torch.autograd.backward(outputs, gradients)


def _run_block(
    block: Any, attend: Attend, rotate: Callable[[Tensor], Tensor], recompute: bool, x: Tensor, *past: Tensor
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The forward of a block: its output, and its rotated keys and values. The tensors in `past` are passed to
    `attend`; FSDP must see them among the inputs, as far as they need gradients."""

    def run(x: Tensor, *past: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        attention, normed = block.self_attn, block.input_layernorm(x)
        q, k, v = (
            projection(normed).unflatten(-1, (-1, attention.head_dim))
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        if hasattr(attention, "q_norm"):
            q, k = attention.q_norm(q), attention.k_norm(k)
        q, k, v = rotate(q).transpose(1, 2), rotate(k).transpose(1, 2), v.transpose(1, 2)
        attended = attend(q, k, v, *past).transpose(1, 2).flatten(-2)
        middle = x + attention.o_proj(attended)
        x = middle + block.mlp(block.post_attention_layernorm(middle))
        # copies that are contiguous: FSDP warns of views
        k, v = (tensor.clone(memory_format=torch.contiguous_format) for tensor in (k, v))
        return x, k, v

    output: tuple[Tensor, Tensor, Tensor] = llama.run_or_recompute(
        run, x, *past, recompute=recompute
    )
    return output


def _compute_prompts(model: Any, tokens: Tensor, lengths: Tensor, recompute: bool) -> list[Tensor]:
    """The last hidden state `(G, D)` of right-padded prompts `(G, P)`, then keys and values of each layer."""
    has_groups = model.config.num_attention_heads != model.config.num_key_value_heads
    attend = partial(F.scaled_dot_product_attention, is_causal=True, enable_gqa=has_groups)
    rotate = _rotation(model, torch.arange(tokens.shape[1], device=tokens.device)[None])
    x, cache = model.model.embed_tokens(tokens), []
    for block in model.model.layers:
        x, *pair = block(attend, rotate, recompute, x)
        cache += pair
    last = x[torch.arange(len(tokens), device=x.device), lengths - 1]
    return [model.model.norm(last), *cache]


def _compute_completions(
    model: Any, tokens: Tensor, mask: Tensor, rows: Tensor, starts: Tensor,
    temperature: float, recompute: bool, last: Tensor, *cache: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Log-probabilities and entropies `(N,)` of completions `(R, T)` of the prompts `rows`, whose lengths are
    `starts`. At least one token is run through the blocks, also for completions of one token, which the end of the
    prompt predicts: all ranks must call all blocks."""
    inputs = tokens[:, : max(1, tokens.shape[1] - 1)]
    n, p = inputs.shape[1], cache[0].shape[2]
    device = tokens.device
    visible = torch.ones(len(inputs), 1, n, p + n, dtype=torch.bool, device=device)
    visible[..., :p] = (torch.arange(p, device=device) < starts[:, None])[:, None, None]
    visible[..., p:] = torch.ones(n, n, dtype=torch.bool, device=device).tril_()
    has_groups = model.config.num_attention_heads != model.config.num_key_value_heads

    def attend(q: Tensor, k: Tensor, v: Tensor, past_k: Tensor, past_v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(
            q, torch.cat([past_k[rows], k], dim=2), torch.cat([past_v[rows], v], dim=2),
            attn_mask=visible, enable_gqa=has_groups,
        )  # fmt: skip

    rotate = _rotation(model, starts[:, None] + torch.arange(n, device=device))
    x = model.model.embed_tokens(inputs)
    for number, block in enumerate(model.model.layers):
        x, _, _ = block(attend, rotate, recompute, x, *cache[2 * number : 2 * number + 2])
    hidden = torch.cat([last[rows][:, None], model.model.norm(x)], dim=1)  # (R, n + 1, D)
    predicting = hidden[:, : tokens.shape[1]][mask]
    return chunked_logprobs(predicting, model.lm_head.weight, tokens[mask], temperature or 1.0)


def _rotation(model: Any, positions: Tensor) -> Callable[[Tensor], Tensor]:
    """Rotates `(B, n, heads, d)` at the positions `(B or 1, n)`."""
    rotary = model.model.rotary_emb
    cos, sin = llama.compute_rotary(
        rotary.inv_freq.float(), float(rotary.attention_scaling), int(positions.max()) + 1
    )
    return partial(rotate, cos=cos[positions][:, :, None], sin=sin[positions][:, :, None])
