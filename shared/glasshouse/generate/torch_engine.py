"""The default generator: torch on the CPU of this machine.

    requests ──► prefill (each prompt once) ──► sample ──► step ──► sample ──► … ──► completions
                                                   ▲         │
                                                   └─ compact when a quarter of the slots is done

Noise is keyed by (row key, position), so that the completions of a request do not depend on the
process that runs it. Floating-point results do depend on the shape of the batch: for the same bits,
pass the same requests in the same call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from glasshouse import randomness
from glasshouse.errors import ConfigError
from glasshouse.generate.decoders import Decoder, LlamaDecoder, TransformersDecoder
from glasshouse.generate.sampling import SamplingParams, sample_tokens
from glasshouse.models import llama
from glasshouse.models.policy import Policy
from glasshouse.types import Completion, Request, StopReason

COMPACT_BELOW = 0.75
"""Finished slots are dropped when the share of active ones falls below this."""


class TorchGenerator:
    """Implements `Generator` for any Hugging Face causal LM.

    Example:
        generator = TorchGenerator(policy)
        generator.generate([Request(prompt=tokens, keys=(1, 2))], Sampling(max_tokens=32))
    """

    def __init__(self, policy: Policy, cache_mb: int = 2048, version: int = 0) -> None:
        self.policy = policy
        self.cache_mb = cache_mb
        self.version = version
        self._decoder: Decoder | None = None

    def load_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Copies the learner's weights. If they are the policy's own tensors nothing is copied, but the
        call is still required, since the engine holds some of them concatenated."""
        with torch.no_grad():
            for name, parameter in self.policy.model.named_parameters():
                if parameter.data_ptr() != weights[name].data_ptr():
                    parameter.copy_(weights[name])
        self.version = version
        self._decoder = None

    @torch.inference_mode()
    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams
    ) -> list[list[Completion]]:
        """Returns one list of completions per request, in order; `cache_mb` bounds the batches."""
        if self._decoder is None:
            model = self.policy.model
            supported = llama.is_supported(model)
            self._decoder = LlamaDecoder(model) if supported else TransformersDecoder(model)
        results: list[list[Completion]] = [[] for _ in requests]
        for batch in self._batches(requests, sampling):
            groups = self._generate_batch([request for _, request in batch], sampling)
            for (index, _), completions in zip(batch, groups, strict=True):
                results[index] += completions
        return results

    def _batches(
        self, requests: Sequence[Request], sampling: SamplingParams
    ) -> list[list[tuple[int, Request]]]:
        """Consecutive requests with their indices whose padded caches fit the budget; a request with
        too many samples is split. The split depends on config and shapes only."""
        config = self.policy.model.config.get_text_config()
        heads = config.num_attention_heads
        width = getattr(config, "num_key_value_heads", None) or heads
        width *= getattr(config, "head_dim", None) or config.hidden_size // heads
        budget = self.cache_mb * 2**20 // (2 * 4 * width * config.num_hidden_layers)  # in tokens
        batches: list[list[tuple[int, Request]]] = []
        longest = widest = 0
        for index, request in enumerate(requests):
            length = self._max_length(request, sampling)
            max_samples = max(1, budget // length)
            for start in range(0, len(request.keys), max_samples):
                part = replace(request, keys=request.keys[start : start + max_samples])
                longest, widest = max(longest, length), max(widest, len(part.keys))
                if not batches or (len(batches[-1]) + 1) * widest * longest > budget:
                    batches.append([])
                    longest, widest = length, len(part.keys)
                batches[-1].append((index, part))
        return batches

    def _max_length(self, request: Request, sampling: SamplingParams) -> int:
        """Maximum tokens of prompt and completion of a request; raises if they do not fit the model."""
        length = len(request.prompt) + sampling.max_tokens
        if length > self.policy.context_length:
            raise ConfigError(
                f"A prompt of {len(request.prompt)} tokens and {sampling.max_tokens} new ones exceed "
                f"the model's context of {self.policy.context_length}; lower generate.max_tokens."
            )
        if not request.prompt:
            raise ConfigError(
                "A prompt has no tokens; check the task's question and the chat template."
            )
        return length

    def _generate_batch(
        self, requests: list[Request], sampling: SamplingParams
    ) -> list[list[Completion]]:
        assert self._decoder is not None
        group_size, max_tokens = max(len(r.keys) for r in requests), sampling.max_tokens
        keys = np.zeros((len(requests), group_size), dtype=np.uint64)
        active = torch.zeros(len(requests), group_size, dtype=torch.bool)
        for i, request in enumerate(requests):
            keys[i, : len(request.keys)] = request.keys
            active[i, : len(request.keys)] = True
        active = active.flatten()
        noise = torch.from_numpy(randomness.uniforms(keys.ravel(), 0, max_tokens)).float()
        rows = torch.arange(len(active))  # the row that each slot decodes
        tokens = torch.zeros(len(active), max_tokens, dtype=torch.long)
        logprobs = torch.zeros(len(active), max_tokens)
        lengths = torch.zeros(len(active), dtype=torch.long)
        stop_reasons = [StopReason.LENGTH] * len(active)
        end_tokens = torch.tensor(sorted(self.policy.end_tokens), dtype=torch.long)

        logits = self._decoder.prefill([r.prompt for r in requests], group_size, max_tokens)
        for t in range(max_tokens):
            next_tokens, next_logprobs = sample_tokens(logits, noise[rows, t], sampling)
            tokens[rows, t] = next_tokens
            logprobs[rows, t] = next_logprobs
            lengths[rows] += active
            ended = torch.isin(next_tokens, end_tokens) & active
            for row in rows[ended].tolist():
                stop_reasons[row] = StopReason.END
            active = active & ~ended
            if sampling.stop:
                stopped = self._completed_stop_strings(tokens, rows, active, t, sampling.stop)
                for row in rows[stopped].tolist():
                    stop_reasons[row] = StopReason.STOP
                active = active & ~stopped
            remaining = int(active.sum())
            if not remaining or t + 1 == max_tokens:
                break
            if remaining < COMPACT_BELOW * len(rows):
                slots = self._decoder.compact(active)
                rows, active, next_tokens = rows[slots], active[slots], next_tokens[slots]
            logits = self._decoder.step(next_tokens)
        self._decoder.release()

        all_tokens, all_logprobs = tokens.tolist(), logprobs.tolist()
        return [
            [
                Completion(
                    tokens=tuple(all_tokens[row][: int(lengths[row])]),
                    logprobs=tuple(all_logprobs[row][: int(lengths[row])]),
                    stop=stop_reasons[row],
                    version=self.version,
                )
                for row in range(i * group_size, i * group_size + len(request.keys))
            ]
            for i, request in enumerate(requests)
        ]

    def _completed_stop_strings(
        self, tokens: Tensor, rows: Tensor, active: Tensor, t: int, stop: tuple[str, ...]
    ) -> Tensor:
        """Which active slots have just completed a stop string, which may span many tokens."""
        window = max(len(string.encode()) for string in stop) + 1
        stopped = torch.zeros(len(rows), dtype=torch.bool)
        for slot in active.nonzero()[:, 0].tolist():
            tail = tokens[int(rows[slot]), max(0, t + 1 - window) : t + 1].tolist()
            text = self.policy.decode(tail)
            stopped[slot] = any(string in text for string in stop)
        return stopped
