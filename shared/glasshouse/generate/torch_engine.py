"""The default generator: torch on a CPU or GPU of this machine, or the kernel for small models on a CPU.

    requests ──► prefill (each prompt once) ──► sample ──► step ──► sample ──► … ──► completions
                                                   ▲         │
                                                   └─ compact when enough rows are done

Noise is keyed by (row key, position), so that the completions of a request do not depend on the
process that runs it. The kernel gives the same bits in any batch; it has neither top-k, top-p and min-p nor stop
strings. Results of torch depend on the shape of the batch: for the same bits, pass the same requests in the same call.

The host does not wait for a GPU after every token: it checks which rows are done every few tokens
(`SYNC_EVERY`) and cuts what was generated past a stop string.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glasshouse import randomness
from glasshouse.config.schema import GenerateConfig
from glasshouse.generate.decoders import Decoder, make_decoder
from glasshouse.generate.engines import engine, max_length
from glasshouse.generate.sampling import sample_tokens
from glasshouse.kernel.small_llama import SmallLlama
from glasshouse.models import llama
from glasshouse.models.policy import Policy
from glasshouse.types import Completion, FinishReason, Request, SamplingParams

SYNC_EVERY = {"cpu": 1}
"""Tokens between two checks which rows are done, by device type. On a CPU a check costs nothing."""
SYNC_EVERY_DEFAULT = 16

RUNNING, ENDED, STOPPED = range(3)
FINISH_REASONS = (FinishReason.LENGTH, FinishReason.END, FinishReason.STOP)
"""Of a sample that is still running at the end of its batch, that has ended, that a stop string has ended."""


@engine("torch")
class TorchGenerator:
    """Implements `Generator` for any Hugging Face causal LM.

    Example:
        generator = TorchGenerator(policy)
        generator.generate([Request(prompt=tokens, noise_keys=(1, 2))], SamplingParams(max_tokens=32))
    """

    def __init__(
        self, policy: Policy, config: GenerateConfig | None = None, version: int = 0
    ) -> None:
        self.policy = policy
        self.cache_mb = (config or GenerateConfig()).kv_cache_mb
        self.version = version
        self._decoder: Decoder | None = None
        self._kernel = llama.open_kernel(policy.model, policy.dtype)
        self._is_stale = False

    def load_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Copies the learner's weights. If they are the policy's own tensors nothing is copied, but the
        call is still required, since the engine holds a packed copy."""
        self.policy.load_weights(weights)
        self.version = version
        self.free()

    def free(self) -> None:
        """Frees the packed weights; the next call of `generate` packs them again."""
        self._decoder = None
        self._is_stale = True

    @torch.inference_mode()
    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams
    ) -> list[list[Completion]]:
        """Returns one list of completions per request, in order; `cache_mb` bounds the batches."""
        if self._kernel and not sampling.is_truncated and not sampling.stop:
            return self._generate_by_kernel(self._kernel, requests, sampling)
        if self._decoder is None:
            self._decoder = make_decoder(self.policy.model, self.policy.dtype)
        results: list[list[Completion]] = [[] for _ in requests]
        for batch in self._batches(requests, sampling):
            with self._decoder.autocast():
                groups = self._generate_batch([request for _, request in batch], sampling)
            for (index, _), completions in zip(batch, groups, strict=True):
                results[index] += completions
        return results

    def _generate_by_kernel(
        self, kernel: SmallLlama, requests: Sequence[Request], sampling: SamplingParams
    ) -> list[list[Completion]]:
        if self._is_stale:
            kernel.load()
            self._is_stale = False
        for request in requests:
            max_length(request, sampling, self.policy.context_length)
        prompts, keys = [r.prompt for r in requests], [r.noise_keys for r in requests]
        flat = np.array([key for group in keys for key in group], np.uint64)
        tokens, logprobs, lengths = kernel.generate(
            prompts,
            [len(group) for group in keys],
            randomness.uniforms(flat, 0, sampling.max_tokens),
            temperature=sampling.temperature,
            end_tokens=self.policy.end_tokens,
        )
        rows = zip(tokens.tolist(), logprobs.tolist(), lengths.tolist(), strict=True)
        return [[self._complete(*next(rows)) for _ in group] for group in keys]

    def _complete(self, tokens: list[int], logprobs: list[float], length: int) -> Completion:
        ended = tokens[length - 1] in self.policy.end_tokens
        return Completion(
            tokens=tuple(tokens[:length]),
            logprobs=tuple(logprobs[:length]),
            length=length,
            finish_reason=FinishReason.END if ended else FinishReason.LENGTH,
            policy_version=self.version,
        )

    def _batches(
        self, requests: Sequence[Request], sampling: SamplingParams
    ) -> list[list[tuple[int, Request]]]:
        """Consecutive requests with their indices whose padded caches fit the budget; a request with
        too many samples is split. The split depends on config and shapes only."""
        layers = self.policy.model.config.get_text_config().per_layer_config
        size = 2 * self.policy.dtype.itemsize * sum(map(cache_width, layers))  # of a token
        budget = self.cache_mb * 2**20 // size  # in tokens
        batches: list[list[tuple[int, Request]]] = []
        longest = widest = 0
        for index, request in enumerate(requests):
            length = max_length(request, sampling, self.policy.context_length)
            max_samples = max(1, budget // length)
            for start in range(0, len(request.noise_keys), max_samples):
                part = replace(request, noise_keys=request.noise_keys[start : start + max_samples])
                longest, widest = max(longest, length), max(widest, len(part.noise_keys))
                if not batches or (len(batches[-1]) + 1) * widest * longest > budget:
                    batches.append([])
                    longest, widest = length, len(part.noise_keys)
                batches[-1].append((index, part))
        return batches

    def _generate_batch(
        self, requests: list[Request], sampling: SamplingParams
    ) -> list[list[Completion]]:
        assert self._decoder is not None
        group_size, max_tokens = max(len(r.noise_keys) for r in requests), sampling.max_tokens
        device = self.policy.device
        keys = np.zeros((len(requests), group_size), dtype=np.uint64)
        active = torch.zeros(len(requests), group_size, dtype=torch.bool)
        for i, request in enumerate(requests):
            keys[i, : len(request.noise_keys)] = request.noise_keys
            active[i, : len(request.noise_keys)] = True
        active = active.flatten().to(device)
        noise = torch.from_numpy(randomness.uniforms(keys.ravel(), 0, max_tokens)).float()
        noise = noise.to(device)
        samples = torch.arange(len(active), device=device)  # the sample that each row decodes
        tokens = torch.zeros(len(active), max_tokens, dtype=torch.long, device=device)
        logprobs = torch.zeros(len(active), max_tokens, device=device)
        lengths = torch.zeros(len(active), dtype=torch.long, device=device)
        state = torch.full((len(active),), RUNNING, device=device)  # of each sample
        end_tokens = torch.tensor(sorted(self.policy.end_tokens), dtype=torch.long, device=device)
        sync_every = SYNC_EVERY.get(device.type, SYNC_EVERY_DEFAULT)
        seen = 0  # tokens at the last check
        logits = self._decoder.prefill([r.prompt for r in requests], group_size, max_tokens)
        for t in range(max_tokens):
            next_tokens, next_logprobs = sample_tokens(logits, noise[samples, t], sampling)
            tokens[samples, t] = next_tokens
            logprobs[samples, t] = next_logprobs
            lengths[samples] += active
            ended = (next_tokens[:, None] == end_tokens).any(1) & active
            state[samples] = torch.where(ended, ENDED, state[samples])
            active = active & ~ended
            is_last = t + 1 == max_tokens
            if is_last or (t + 1) % sync_every == 0:
                if sampling.stop:
                    self._cut_at_stop_strings(
                        tokens[:, : t + 1], lengths, state, seen, sampling.stop
                    )
                    active = active & (state[samples] == RUNNING)
                seen = t + 1
                remaining = int(active.sum())
                if not remaining or is_last:
                    break
                if remaining < self._decoder.compact_when_active_below * len(samples):
                    rows = self._decoder.compact(active)
                    samples, active, next_tokens = samples[rows], active[rows], next_tokens[rows]
            logits = self._decoder.step(next_tokens)
        self._decoder.release()

        all_tokens, all_logprobs = tokens.tolist(), logprobs.tolist()
        all_lengths, all_states = lengths.tolist(), state.tolist()
        return [
            [
                Completion(
                    tokens=tuple(all_tokens[row][: all_lengths[row]]),
                    logprobs=tuple(all_logprobs[row][: all_lengths[row]]),
                    length=all_lengths[row],
                    finish_reason=FINISH_REASONS[all_states[row]],
                    policy_version=self.version,
                )
                for row in range(i * group_size, i * group_size + len(request.noise_keys))
            ]
            for i, request in enumerate(requests)
        ]

    def _cut_at_stop_strings(
        self, tokens: Tensor, lengths: Tensor, state: Tensor, seen: int, stop: tuple[str, ...]
    ) -> None:
        """Ends rows in which a stop string, which may span many tokens, was completed after the first
        `seen` tokens: sets their length and state."""
        window = max(len(string.encode()) for string in stop) + 1
        first = max(0, seen + 1 - window)  # the earliest token that can be part of one
        on_host = zip(tokens[:, first:].tolist(), lengths.tolist(), state.tolist(), strict=True)
        for row, (tail, length, current) in enumerate(on_host):
            # the end token of an ended row is not part of a stop string
            for end in range(seen + 1, length + (current != ENDED)):
                text = self.policy.decode(tail[max(0, end - window - first) : end - first])
                if any(string in text for string in stop):
                    lengths[row], state[row] = end, STOPPED
                    break


def cache_width(layer: Any) -> int:
    """Numbers that a layer of this config stores for the keys of a token."""
    heads = layer.num_attention_heads
    key_heads = getattr(layer, "num_key_value_heads", None) or heads
    return int(key_heads * (getattr(layer, "head_dim", None) or layer.hidden_size // heads))
