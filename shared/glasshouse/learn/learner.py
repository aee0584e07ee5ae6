"""The learner: rollouts in, one update out. It is blind to the algorithm.

    samples ──► drop rows without a signal ──► pack by length ──► for each micro-batch, in fixed
    order: log-probabilities, loss, backward ──► clip ──► AdamW

What was removed: padding to the longest row of the step (rows are packed with their like), logits
of prompt tokens, computing a prompt once for each of its samples, and rows whose advantage is zero,
where leaving them out changes nothing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from glasshouse.config import LearnConfig
from glasshouse.errors import RunError
from glasshouse.learn.losses import LossInputs, LossSettings, algorithm, skippable
from glasshouse.policy import llama
from glasshouse.policy.logprobs import Batch, logprobs
from glasshouse.policy.models import Policy
from glasshouse.policy.prefix import Prefixes

PROMPT_PASSES = 16
"""Prompts that several samples share are computed in blocks of so many passes' tokens."""
WATCHED_ROWS = 16
"""Rows a step on which the KL divergence from the start is measured when no loss term needs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One completion, as the learner sees it."""

    prompt: tuple[int, ...]
    tokens: Sequence[int]
    logprobs: Sequence[float]
    """The sampler's."""
    advantage: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one micro-batch gave."""

    loss: float
    gap: float
    """Largest difference between the sampler's and the learner's log-probabilities."""
    sums: dict[str, float]
    gradients: Sequence[torch.Tensor | None]


class Learner:
    """Holds the optimizer; changes the policy's weights in place.

    Example: `Learner(policy, config.learn, max_tokens=128, steps=60).update(samples)`
    """

    def __init__(
        self,
        policy: Policy,
        config: LearnConfig,
        *,
        max_tokens: int,
        steps: int,
        temperature: float = 1.0,
    ) -> None:
        self.policy, self.config = policy, config
        self.algorithm = algorithm(config.algorithm)
        self.settings = settings(config)
        self.max_tokens, self.steps, self.temperature = max_tokens, steps, temperature
        self.version = 0
        self.pool = (
            ThreadPoolExecutor(config.workers, initializer=partial(torch.set_num_threads, 1))
            if config.workers > 1
            else None
        )
        self.reference = copy.deepcopy(policy.model).requires_grad_(False)
        self.parameters = [p for p in policy.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=config.lr, weight_decay=config.weight_decay, foreach=True
        )

    def update(self, samples: Sequence[Sample]) -> dict[str, float]:
        """One step's rollouts, `config.passes` updates; returns what happened, for the log."""
        rows, tokens = len(samples), sum(len(s.tokens) for s in samples)
        kept = [s for s in samples if s.advantage != 0 or not skippable(self.settings)]
        kept = [s for s in kept if s.tokens]
        metrics: dict[str, float] = {"learned_rows": len(kept), "kl": self._divergence(samples)}
        for _ in range(self.config.passes):
            rate = self.config.lr * schedule(self.config, self.version, self.steps)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            metrics |= self._pass(kept, rows, tokens)
            metrics["lr"] = rate
        self.version += 1
        return metrics

    def _pass(self, samples: list[Sample], rows: int, tokens: int) -> dict[str, float]:
        totals: dict[str, float] = {}
        loss_sum, gap = 0.0, 0.0
        for parameter in self.parameters:  # zeros, not None: without a signal AdamW coasts on
            parameter.grad = torch.zeros_like(parameter)
        for outcome in self._outcomes(samples, rows, tokens):
            loss_sum += outcome.loss
            gap = max(gap, outcome.gap)
            for name, value in outcome.sums.items():
                totals[name] = totals.get(name, 0.0) + value
        limit = self.config.grad_clip or math.inf
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, limit).item()
        if not math.isfinite(norm):
            raise RunError(
                f"The gradient's norm became {norm} in step {self.version + 1}, and the update was "
                f"not made. Lower learn.lr (it is {self.config.lr}) or generate.max_tokens."
            )
        self.optimizer.step()
        count = totals.pop("tokens", 1.0)
        means = {name: value / count for name, value in totals.items()}
        return {"loss": loss_sum, "grad_norm": norm, **means, "gap_max": gap}

    def _outcomes(self, samples: list[Sample], rows: int, tokens: int) -> Iterator[Outcome]:
        """Every micro-batch differentiated, `workers` of them side by side, and its gradients added in
        fixed order: the sum does not depend on who was first."""
        workers = self.config.workers
        for prefixes, parts in self._parts(samples):
            targets = [*self.parameters, *(prefixes.leaves if prefixes else ())]
            differentiate = partial(self._differentiate, prefixes, targets, rows, tokens)
            for start in range(0, len(parts), workers):
                abreast = parts[start : start + workers]
                run = self.pool.map if self.pool and len(abreast) > 1 else map
                for outcome in run(differentiate, abreast):
                    for tensor, gradient in zip(targets, outcome.gradients, strict=True):
                        if gradient is not None:
                            tensor.grad = (
                                gradient if tensor.grad is None else tensor.grad + gradient
                            )
                    yield outcome
            if prefixes:
                prefixes.backward()

    def _parts(self, samples: list[Sample]) -> Iterator[tuple[Prefixes | None, list[list[Sample]]]]:
        """Micro-batches in fixed order, with their prompts where these are computed once for several
        samples."""
        shared = (
            len({s.prompt for s in samples}) < len(samples)
            and not self.settings.entropy
            and llama.supported(self.policy.model)
        )
        if not shared:
            yield None, pack(samples, self.config.micro_tokens)
            return
        for block in blocks(samples, PROMPT_PASSES * self.config.micro_tokens):
            prefixes = Prefixes(self.policy.model, [s.prompt for s in block])
            yield prefixes, pack(block, self.config.micro_tokens, prompts=False)

    def _differentiate(
        self,
        prefixes: Prefixes | None,
        targets: list[torch.Tensor],
        rows: int,
        tokens: int,
        part: list[Sample],
    ) -> Outcome:
        inputs = self._inputs(part, prefixes, rows, tokens)
        loss, sums = self.algorithm.loss(inputs)
        if not math.isfinite(loss.item()):
            raise RunError(
                f"The loss became {loss.item()} in step {self.version + 1}, and the update was "
                "not made. The likeliest reasons are a learning rate that is too high "
                f"(learn.lr is {self.config.lr}) and no gradient clipping "
                f"(learn.grad_clip is {self.config.grad_clip})."
            )
        gradients = torch.autograd.grad(loss, targets, allow_unused=True)
        apart = (inputs.logprobs.detach() - inputs.sampler_logprobs).abs() * inputs.mask
        return Outcome(
            loss.item(), apart.max().item(), {k: v.item() for k, v in sums.items()}, gradients
        )

    def _inputs(
        self, part: list[Sample], prefixes: Prefixes | None, rows: int, tokens: int
    ) -> LossInputs:
        pairs = [(s.prompt, s.tokens) for s in part]
        batch = Batch.of(pairs)
        entropy = None
        if prefixes:
            current = prefixes.logprobs(pairs, self.temperature)
        else:
            current, entropy = logprobs(
                self.policy.model, batch, self.temperature, entropy=self.settings.entropy != 0
            )
        reference = None
        if self.settings.kl:
            with torch.no_grad():
                reference, _ = logprobs(self.reference, batch, self.temperature)
        return LossInputs(
            logprobs=current,
            sampler_logprobs=padded(batch, part),
            mask=batch.mask,
            advantages=torch.tensor([s.advantage for s in part]),
            reference_logprobs=reference,
            entropy=entropy,
            rows=rows,
            tokens=tokens,
            max_tokens=self.max_tokens,
            settings=self.settings,
        )

    @torch.no_grad()
    def _divergence(self, samples: Sequence[Sample]) -> float:
        """KL of the sampler from the start, estimated (k3) on evenly spaced rows."""
        rows = [s for s in samples if s.tokens]
        rows = rows[:: max(1, math.ceil(len(rows) / WATCHED_ROWS))]
        total = 0.0
        for part in pack(rows, self.config.micro_tokens):
            batch = Batch.of([(s.prompt, s.tokens) for s in part])
            start, _ = logprobs(self.reference, batch, self.temperature)
            distance = start - padded(batch, part)  # 0 on padding, and so is its k3
            total += (distance.exp() - distance - 1).sum().item()
        return total / max(1, sum(len(s.tokens) for s in rows))


def padded(batch: Batch, part: Sequence[Sample]) -> torch.Tensor:
    """The sampler's log-probabilities, (R, T)."""
    values = torch.zeros(batch.mask.shape)
    for row, sample in enumerate(part):
        values[row, : len(sample.logprobs)] = torch.tensor(sample.logprobs)
    return values


def settings(config: LearnConfig) -> LossSettings:
    """The algorithm's own settings, overridden by what the configuration sets."""
    own = algorithm(config.algorithm).settings
    given: dict[str, Any] = {
        name: value
        for name in ("clip_low", "clip_high", "importance_cap")
        if (value := getattr(config, name)) is not None
    }
    return replace(own, kl=config.kl, entropy=config.entropy, **given)


def blocks(samples: Sequence[Sample], most: int) -> list[list[Sample]]:
    """Samples by prompt, in order, in blocks whose distinct prompts hold at most `most` tokens."""
    found: list[list[Sample]] = []
    prompts: set[tuple[int, ...]] = set()
    longest = 0
    for sample in samples:
        longest = max(longest, len(sample.prompt))
        if not found or (len(prompts | {sample.prompt}) * longest > most and prompts):
            found.append([])
            prompts, longest = set(), len(sample.prompt)
        prompts.add(sample.prompt)
        found[-1].append(sample)
    return found


def pack(
    samples: Sequence[Sample], micro_tokens: int, *, prompts: bool = True
) -> list[list[Sample]]:
    """Micro-batches of rows of similar length, each at most `micro_tokens` with its padding; the
    prompts count too, unless they are computed apart."""

    def width(sample: Sample) -> int:
        return len(sample.tokens) + (len(sample.prompt) if prompts else 0)

    parts: list[list[Sample]] = []
    for sample in sorted(samples, key=width):
        longest = width(sample)
        if parts and (len(parts[-1]) + 1) * longest <= micro_tokens:
            parts[-1].append(sample)
        else:
            parts.append([sample])
    return parts


def schedule(config: LearnConfig, step: int, steps: int) -> float:
    """The factor on the learning rate: constant unless warm-up or decay are asked for."""
    if step < config.warmup:
        return (step + 1) / config.warmup
    done = (step - config.warmup) / max(1, steps - config.warmup)
    match config.decay:
        case "linear":
            return 1 - done
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * done))
        case _:
            return 1.0
