"""Log-probabilities and entropies from hidden states, without the logits of all tokens at once.

The output layer is applied to some tokens at a time, in the forward pass and again in the backward pass, so that
memory does not grow with tokens × vocabulary. The cost is one more product with the output layer per token.

Shapes: N tokens, D hidden, V the vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_LOGITS = 1 << 23
"""Logits at a time: 32 MB in float32."""


def chunked_logprobs(
    hidden: Tensor, head: Tensor, targets: Tensor, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """`log_softmax(hidden @ head.T / temperature)[target]` and the entropy of that distribution, both `(N,)` and
    float32, or double for double inputs."""
    chosen, entropy = _ChunkedLogprobs.apply(hidden, head, targets, temperature)
    return chosen, entropy


class _ChunkedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        chosen, normalisers, entropies = [], [], []
        for part, target in _chunks(head, hidden, targets):
            logits = _logits(part, head, temperature)
            normaliser = logits.logsumexp(-1)
            chosen.append(logits.gather(-1, target[:, None])[:, 0] - normaliser)
            probabilities = (logits - normaliser[:, None]).exp_()
            entropies.append(normaliser - torch.linalg.vecdot(probabilities, logits))
            normalisers.append(normaliser)
        entropy = torch.cat(entropies)
        ctx.temperature = temperature
        ctx.save_for_backward(hidden, head, targets, torch.cat(normalisers), entropy)
        return torch.cat(chosen), entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_chosen: Tensor, grad_entropy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, head, targets, normaliser, entropy = ctx.saved_tensors
        grad_head = torch.zeros_like(head) if ctx.needs_input_grad[1] else None
        grad_hidden = []
        columns = (normaliser, entropy, grad_chosen, grad_entropy)
        for part, target, norm, mean, grad, grad_mean in _chunks(head, hidden, targets, *columns):
            log_p = _logits(part, head, ctx.temperature).sub_(norm[:, None])
            p = log_p.exp()
            # d chosen / d logit = [target] - p;  d entropy / d logit = -p (log p + entropy)
            factor = log_p.add_(mean[:, None]).mul_(-grad_mean[:, None]).sub_(grad[:, None])
            grad_logits = p.mul_(factor)
            grad_logits.scatter_add_(-1, target[:, None], grad[:, None])
            grad_logits = grad_logits.div_(ctx.temperature).to(part.dtype)
            grad_hidden.append(grad_logits @ head)
            if grad_head is not None:
                grad_head.addmm_(grad_logits.t(), part)
        return torch.cat(grad_hidden), grad_head, None, None


def _chunks(head: Tensor, *tensors: Tensor) -> Any:
    """Parts of the tensors, each of so many tokens that their logits have `CHUNK_LOGITS` entries."""
    size = max(1, CHUNK_LOGITS // len(head))
    return zip(*(tensor.split(size) for tensor in tensors), strict=True)


def _logits(hidden: Tensor, head: Tensor, temperature: float) -> Tensor:
    logits = hidden @ head.t()
    logits = logits.float() if logits.dtype == torch.bfloat16 else logits
    return logits if temperature == 1 else logits.div_(temperature)
