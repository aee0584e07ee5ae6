"""The learner: rollouts in, one update out. It is blind to the algorithm.

    samples ──► drop rows without a signal ──► pack by length ──► for each micro-batch, in fixed
    order: log-probabilities, loss, backward ──► clip ──► AdamW

What was removed: padding to the longest row of the step (rows are packed with their like), logits
of prompt tokens, computing a prompt once for each of its samples, and rows whose advantage is zero,
where leaving them out changes nothing.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from glasshouse.answers import split
from glasshouse.config import Config, LearnConfig
from glasshouse.errors import RunError
from glasshouse.learn.losses import LossInputs, LossSettings, algorithm, skippable
from glasshouse.models import llama
from glasshouse.models.logprobs import Batch, logprobs
from glasshouse.models.policy import Policy
from glasshouse.models.shared_prefix import Prefixes

WEIGHT = "weight"
"""Under this key a state holds the weights that are not in the model's own file."""
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
class LearnerState:
    """Where a learner stands, beside the weights."""

    version: int
    tensors: dict[str, torch.Tensor]
    """The optimizer's, as `exp_avg/<parameter>`, `exp_avg_sq/<parameter>`, `step/<parameter>`, and
    adapters as `weight/<parameter>`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one unit of work gave."""

    loss: float
    gap: float
    """Largest difference between the sampler's and the learner's log-probabilities."""
    sums: dict[str, float]
    gradients: Sequence[torch.Tensor | None]


Unit = tuple[bool, list[list[Sample]]]
"""Whether prompts are computed once for several samples, and the micro-batches."""


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
        self.reference = copy.deepcopy(policy.model).requires_grad_(False)
        self.parameters = [p for p in policy.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=config.learning_rate, weight_decay=config.weight_decay, foreach=True
        )

    @classmethod
    def of(cls, policy: Policy, config: Config) -> Learner:
        """As a run's configuration says."""
        return cls(
            policy, config.learn, max_tokens=config.generate.max_tokens,
            steps=config.steps, temperature=config.generate.temperature,
        )  # fmt: skip

    def state(self) -> LearnerState:
        """What the policy's saved weights do not say: the optimizer's memory, and adapters, since
        they are merged into the weights that are saved."""
        tensors = {}
        for name, parameter in self._named():
            if hasattr(self.policy.model, "peft_config"):
                tensors[f"{WEIGHT}/{name}"] = parameter.detach()
            for key, value in self.optimizer.state[parameter].items():
                tensors[f"{key}/{name}"] = value
        return LearnerState(self.version, tensors)

    def restore(self, state: LearnerState) -> None:
        """Go on from a state; the weights, unless they are adapters, are the policy's."""
        self.version = state.version
        self.optimizer.state.clear()
        parameters = dict(self._named())
        with torch.no_grad():
            for path, value in state.tensors.items():
                key, _, name = path.partition("/")
                if key == WEIGHT:
                    parameters[name].copy_(value)
                else:
                    self.optimizer.state[parameters[name]][key] = value.clone()

    def _named(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(n, p) for n, p in self.policy.model.named_parameters() if p.requires_grad]

    def update(self, samples: Sequence[Sample]) -> dict[str, float]:
        """One step's rollouts, `config.passes` updates; returns what happened, for the log."""
        rows, tokens = len(samples), sum(len(s.tokens) for s in samples)
        skip = self.config.skip_zero_advantage and skippable(self.settings)
        kept = [s for s in samples if s.advantage != 0 or not skip]
        kept = [s for s in kept if s.tokens]
        metrics: dict[str, float] = {"learned_rows": len(kept), "kl": self._divergence(samples)}
        for _ in range(self.config.epochs_per_batch):
            rate = self.config.learning_rate * schedule(self.config, self.version, self.steps)
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
            for parameter, gradient in zip(self.parameters, outcome.gradients, strict=True):
                if gradient is not None:
                    parameter.grad += gradient
        limit = self.config.max_grad_norm or math.inf
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, limit).item()
        if not math.isfinite(norm):
            raise RunError(
                f"The gradient's norm became {norm} in step {self.version + 1}, and the update was "
                f"not made. Lower learn.learning_rate (it is {self.config.learning_rate}) or generate.max_tokens."
            )
        self.optimizer.step()
        count = totals.pop("tokens", 1.0)
        means = {name: value / count for name, value in totals.items()}
        return {"loss": loss_sum, "grad_norm": norm, **means, "gap_max": gap}

    def _outcomes(self, samples: list[Sample], rows: int, tokens: int) -> Iterator[Outcome]:
        """Every unit of work, differentiated in fixed order."""
        for unit in self._units(samples):
            yield self._differentiate(rows, tokens, unit)

    def _units(self, samples: list[Sample]) -> list[Unit]:
        """The work in fixed order: blocks of samples whose prompts are computed once, where several
        share one, else micro-batches."""
        shared = (
            len({s.prompt for s in samples}) < len(samples)
            and not self.settings.entropy
            and llama.supported(self.policy.model)
        )
        most = self.config.microbatch_tokens
        if shared:
            cut = blocks(samples, most, self.config.gradient_blocks)
            return [(True, pack(block, most, prompts=False)) for block in cut]
        return [(False, [part]) for part in pack(samples, most)]

    def _differentiate(self, rows: int, tokens: int, unit: Unit) -> Outcome:
        """The loss of one unit and its gradients: completions first, then the prompts they share."""
        shared, parts = unit
        prefixes = None
        if shared:
            prefixes = Prefixes(self.policy.model, [s.prompt for part in parts for s in part])
        targets = [*self.parameters, *(prefixes.leaves if prefixes else ())]
        found: list[torch.Tensor | None] = [None] * len(targets)
        loss_sum, gap, totals = 0.0, 0.0, dict[str, float]()
        for part in parts:
            inputs = self._inputs(part, prefixes, rows, tokens)
            loss, sums = self.algorithm.loss(inputs)
            if not math.isfinite(loss.item()):
                raise RunError(
                    f"The loss became {loss.item()} in step {self.version + 1}, and the update was "
                    "not made. The likeliest reasons are a learning rate that is too high "
                    f"(learn.learning_rate is {self.config.learning_rate}) and no gradient clipping "
                    f"(learn.max_grad_norm is {self.config.max_grad_norm})."
                )
            add(found, torch.autograd.grad(loss, targets, allow_unused=True))
            apart = (inputs.logprobs.detach() - inputs.sampler_logprobs).abs() * inputs.mask
            loss_sum, gap = loss_sum + loss.item(), max(gap, apart.max().item())
            totals = {name: totals.get(name, 0.0) + value.item() for name, value in sums.items()}
        own = found[: len(self.parameters)]
        if prefixes:
            add(own, prefixes.gradients(found[len(own) :], self.parameters))
        return Outcome(loss_sum, gap, totals, own)

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
            if self.config.kl_tokens == "cot":  # equal beyond the CoT: no divergence, no gradient
                thought = cot_mask(self.policy, [s.tokens for s in part])
                reference = torch.where(thought, reference, current.detach())
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
        for part in pack(rows, self.config.microbatch_tokens):
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


def cot_mask(policy: Policy, rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """(R, T) true where a token begins within the chain of thought, as the answer parser divides.

    Tokens are measured by decoding each alone: exact where none of them is a part of a character.
    """
    mask = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.bool)
    for row, tokens in enumerate(rows):
        end = split(policy.text(tokens)).start
        widths = [len(text) for text in policy.texts([[token] for token in tokens])]
        begins = itertools.accumulate(widths, initial=0)
        inside = [begin < end for begin, _ in zip(begins, tokens, strict=False)]
        mask[row, : len(tokens)] = torch.tensor(inside)
    return mask


def settings(config: LearnConfig) -> LossSettings:
    """The algorithm's own settings, overridden by what the configuration sets."""
    own = algorithm(config.algorithm).settings
    given: dict[str, Any] = {
        name: value
        for name in ("clip_low", "clip_high", "importance_cap")
        if (value := getattr(config, name)) is not None
    }
    return replace(own, kl=config.kl_coef, entropy=config.entropy_coef, **given)


def blocks(samples: Sequence[Sample], most: int, multiple: int = 1) -> list[list[Sample]]:
    """Samples by prompt, in order, in blocks of about equally many distinct prompts; a block's
    prompts hold about `most` tokens at most, and the blocks are a multiple of `multiple`."""
    grouped: dict[tuple[int, ...], list[Sample]] = {}
    for sample in samples:
        grouped.setdefault(sample.prompt, []).append(sample)
    groups = list(grouped.values())
    rounds = math.ceil(sum(len(p) for p in grouped) / (most * multiple))
    count = min(len(groups), rounds * multiple)
    cuts = [number * len(groups) // count for number in range(count + 1)]
    return [[s for g in groups[start:end] for s in g] for start, end in itertools.pairwise(cuts)]


def add(sums: list[torch.Tensor | None], gradients: Sequence[torch.Tensor | None]) -> None:
    """Gradients onto their sums, in place of the list; None is no gradient."""
    for place, gradient in enumerate(gradients):
        if gradient is not None:
            here = sums[place]
            sums[place] = gradient if here is None else here + gradient


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
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, steps - config.warmup_steps)
    match config.lr_schedule:
        case "linear":
            return 1 - done
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * done))
        case _:
            return 1.0
