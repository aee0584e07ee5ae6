"""The default generator: torch on this machine's processor.

    requests ──► prefill (a prompt once) ──► pick ──► step ──► pick ──► … ──► completions
                                              ▲        │
                                              └─ compact when a quarter of the slots is done

Noise is keyed by (row key, position), so that what a request yields does not depend on the
process that ran it. Floating point does depend on the batch's shape: hand over the same requests
in the same call to have the same bits.
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
from glasshouse.generate.sampling import Sampling, pick
from glasshouse.models import llama
from glasshouse.models.policy import Policy
from glasshouse.types import Completion, Request, StopReason

COMPACT_BELOW = 0.75
"""Finished slots are dropped once the live ones are fewer than this share."""


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

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Take over the learner's weights. They may be the policy's own: nothing is copied
        then, yet the call is needed, since the engine keeps some of them joined."""
        with torch.no_grad():
            for name, parameter in self.policy.model.named_parameters():
                if parameter.data_ptr() != weights[name].data_ptr():
                    parameter.copy_(weights[name])
        self.version = version
        self._decoder = None

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        """One list of completions a request, in order; batches are bounded by `cache_mb`."""
        if self._decoder is None:
            model = self.policy.model
            fast = llama.supported(model)
            self._decoder = LlamaDecoder(model) if fast else TransformersDecoder(model)
        results: list[list[Completion]] = [[] for _ in requests]
        for batch in self._batches(requests, sampling):
            completions = self._run([request for _, request in batch], sampling)
            for (number, _), some in zip(batch, completions, strict=True):
                results[number] += some
        return results

    def _batches(
        self, requests: Sequence[Request], sampling: Sampling
    ) -> list[list[tuple[int, Request]]]:
        """Consecutive requests, numbered, whose caches fit with their padding; one with too many
        samples is cut. The division depends on config and shapes only."""
        config = self.policy.model.config.get_text_config()
        heads = config.num_attention_heads
        width = getattr(config, "num_key_value_heads", None) or heads
        width *= getattr(config, "head_dim", None) or config.hidden_size // heads
        budget = self.cache_mb * 2**20 // (2 * 4 * width * config.num_hidden_layers)  # in tokens
        batches: list[list[tuple[int, Request]]] = []
        longest = widest = 0
        for number, request in enumerate(requests):
            length = self._checked_length(request, sampling)
            most = max(1, budget // length)
            for start in range(0, len(request.keys), most):
                piece = replace(request, keys=request.keys[start : start + most])
                longest, widest = max(longest, length), max(widest, len(piece.keys))
                if not batches or (len(batches[-1]) + 1) * widest * longest > budget:
                    batches.append([])
                    longest, widest = length, len(piece.keys)
                batches[-1].append((number, piece))
        return batches

    def _checked_length(self, request: Request, sampling: Sampling) -> int:
        """The most tokens a sample of this request may come to."""
        length = len(request.prompt) + sampling.max_tokens
        if length > self.policy.context:
            raise ConfigError(
                f"A prompt of {len(request.prompt)} tokens and {sampling.max_tokens} new ones "
                f"exceed the model's context of {self.policy.context}; lower generate.max_tokens."
            )
        if not request.prompt:
            raise ConfigError("A prompt has no tokens; ask something, or mend the chat template.")
        return length

    def _run(self, requests: list[Request], sampling: Sampling) -> list[list[Completion]]:
        assert self._decoder is not None
        samples, room = max(len(r.keys) for r in requests), sampling.max_tokens
        keys = np.zeros((len(requests), samples), dtype=np.uint64)
        live = torch.zeros(len(requests), samples, dtype=torch.bool)
        for i, request in enumerate(requests):
            keys[i, : len(request.keys)] = request.keys
            live[i, : len(request.keys)] = True
        live = live.flatten()
        noise = torch.from_numpy(randomness.uniforms(keys.ravel(), 0, room)).float()
        rows = torch.arange(len(live))  # which row each slot decodes
        tokens = torch.zeros(len(live), room, dtype=torch.long)
        logprobs = torch.zeros(len(live), room)
        lengths = torch.zeros(len(live), dtype=torch.long)
        stops = [StopReason.LENGTH] * len(live)
        ends = torch.tensor(sorted(self.policy.end_tokens), dtype=torch.long)

        logits = self._decoder.prefill([r.prompt for r in requests], samples, room)
        for t in range(room):
            chosen, chosen_logprobs = pick(logits, noise[rows, t], sampling)
            tokens[rows, t] = chosen
            logprobs[rows, t] = chosen_logprobs
            lengths[rows] += live
            ended = torch.isin(chosen, ends) & live
            for row in rows[ended].tolist():
                stops[row] = StopReason.END
            live = live & ~ended
            if sampling.stop:
                live = live & ~self._stopped(tokens, rows, live, t, sampling.stop, stops)
            remaining = int(live.sum())
            if not remaining or t + 1 == room:
                break
            if remaining < COMPACT_BELOW * len(rows):
                kept = self._decoder.compact(live)
                rows, live, chosen = rows[kept], live[kept], chosen[kept]
            logits = self._decoder.step(chosen)
        self._decoder.release()

        all_tokens, all_logprobs = tokens.tolist(), logprobs.tolist()
        results = []
        for i, request in enumerate(requests):
            mine = range(i * samples, i * samples + len(request.keys))
            results.append(
                [
                    Completion(
                        tokens=tuple(all_tokens[row][: int(lengths[row])]),
                        logprobs=tuple(all_logprobs[row][: int(lengths[row])]),
                        stop=stops[row],
                        version=self.version,
                    )
                    for row in mine
                ]
            )
        return results

    def _stopped(
        self,
        tokens: Tensor,
        rows: Tensor,
        live: Tensor,
        t: int,
        texts: tuple[str, ...],
        stops: list[StopReason],
    ) -> Tensor:
        """Which slots have just completed a stop string; a stop text may span many tokens."""
        window = max(len(s.encode()) for s in texts) + 1
        found = torch.zeros(len(rows), dtype=torch.bool)
        for slot in live.nonzero()[:, 0].tolist():
            row = int(rows[slot])
            tail = self.policy.text(tokens[row, max(0, t + 1 - window) : t + 1].tolist())
            if any(s in tail for s in texts):
                found[slot] = True
                stops[row] = StopReason.STOP
        return found
