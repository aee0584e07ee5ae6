"""The learner: samples in, one policy update out. It does not know which algorithm it runs.

    samples ──► drop rows of zero advantage ──► pack by length ──► for each microbatch, in fixed
    order: log-probabilities, loss, backward ──► clip ──► AdamW

Weights, gradients and AdamW's state are float32; with `policy.dtype` bfloat16 the forward and backward
passes compute with a rounded copy of the weights.

Rows of similar length are packed together, so little is padded. Logits are computed for completion
tokens only. A prompt is computed once for all its samples. Rows of zero advantage are left out where
that changes nothing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from glasshouse.config.schema import Config, LearnConfig
from glasshouse.errors import RunError
from glasshouse.learn.completion_tensors import cot_mask, pad_extra, pad_sampler_logprobs
from glasshouse.learn.learner_state import LearnerState, collect_tensors, restore_tensors
from glasshouse.learn.losses import LossInputs, LossSettings, can_skip_zero_advantage, get_algorithm
from glasshouse.learn.microbatches import TrainingSample, pack_microbatches, split_into_blocks
from glasshouse.learn.schedule import learning_rate_factor
from glasshouse.models import llama
from glasshouse.models.devices import is_large
from glasshouse.models.logprobs import CompletionBatch, compute_logprobs
from glasshouse.models.policy import Policy
from glasshouse.models.prompt_forward import count_common_tokens
from glasshouse.models.shared_prefix import SharedPrefixes, add_gradients

KL_ROWS = 16
"""Rows per step on which the KL divergence to the starting policy is measured for the metrics."""
KL_EVERY_LARGE = 10
"""Steps between two of these measurements for large models, by default."""


class GradientBlock(NamedTuple):
    """The unit of gradient computation: some microbatches of a step."""

    shares_prompts: bool
    """Prompts are computed once for all their samples."""
    microbatches: list[list[TrainingSample]]


@dataclass(frozen=True, slots=True)
class BlockGradients:
    """Loss, metrics and gradients of one block."""

    loss: float
    logprob_diffs: torch.Tensor
    """Differences between the log-probabilities of sampler and learner, one per token, on the CPU."""
    metric_sums: dict[str, float]
    gradients: Sequence[torch.Tensor | None]


class Learner:
    """Holds the optimizer and updates the policy's weights in place.

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
        kl_every: int = 0,
    ) -> None:
        """`kl_every` as in `diagnostics.kl_every`."""
        self.policy, self.config = policy, config
        self.device = policy.device
        self.is_large = is_large(policy.model)
        self.kl_every = kl_every or (KL_EVERY_LARGE if self.is_large else 1)
        self.algorithm = get_algorithm(config.algorithm)
        self.settings = build_loss_settings(config)
        self.max_tokens, self.steps, self.temperature = max_tokens, steps, temperature
        self.version = 0
        self.reference = self._copy_reference()
        self.parameters = [p for p in policy.model.parameters() if p.requires_grad]
        # one pass over memory without temporary copies, on the CPU; other bits, so not for small models
        fused = self.is_large and policy.device.type == "cpu"
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=config.learning_rate, weight_decay=config.weight_decay,
            foreach=not fused, fused=fused,
        )  # fmt: skip

    @classmethod
    def from_config(cls, policy: Policy, config: Config) -> Learner:
        """The learner of a run."""
        return cls(
            policy, config.learn, max_tokens=config.generate.max_tokens,
            steps=config.steps, temperature=config.generate.temperature,
            kl_every=config.diagnostics.kl_every,
        )  # fmt: skip

    def state(self) -> LearnerState:
        """What a checkpoint needs besides the policy's saved weights: the optimizer state, and
        adapters, which are merged into the saved weights."""
        return LearnerState(self.version, collect_tensors(self.policy.model, self.optimizer))

    def restore(self, state: LearnerState) -> None:
        """Continues from a state. Weights other than adapters must already be in the policy.

        Raises if a tensor is missing, or has another shape or type than the parameter. A state of
        version 0 has no optimizer tensors yet."""
        restore_tensors(self.policy.model, self.optimizer, state)
        self.version = state.version

    def update(self, samples: Sequence[TrainingSample]) -> dict[str, float]:
        """Trains `config.epochs_per_batch` epochs on the samples of a step; returns metrics."""
        rows, tokens = len(samples), sum(len(s.tokens) for s in samples)
        skip = self.config.skip_zero_advantage and can_skip_zero_advantage(self.settings)
        trained = [s for s in samples if s.tokens and (s.advantage != 0 or not skip)]
        metrics: dict[str, float] = {"learned_rows": len(trained)}
        step = self.version + 1
        if step in (1, self.steps) or step % self.kl_every == 0:
            metrics["kl"] = self._estimate_kl(samples)
        factor = learning_rate_factor(self.config, self.version, self.steps)
        learning_rate = self.config.learning_rate * factor
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        for _ in range(self.config.epochs_per_batch):
            metrics |= self._train_epoch(trained, rows, tokens)
        metrics["learning_rate"] = learning_rate
        self.version += 1
        return metrics

    def _train_epoch(
        self, samples: list[TrainingSample], rows: int, tokens: int
    ) -> dict[str, float]:
        """One optimizer step. `rows` and `tokens` count the whole step, skipped rows included."""
        for parameter in self.parameters:  # a large model's gradients are not allocated in advance
            parameter.grad = None if self.is_large else torch.zeros_like(parameter)
        loss, logprob_diffs, metric_sums = self._accumulate_gradients(samples, rows, tokens)
        for parameter in self.parameters:
            if parameter.grad is None:  # AdamW's momentum moves parameters without gradient, too
                parameter.grad = torch.zeros_like(parameter)
        norm = self._clip_gradients(self.config.max_grad_norm or math.inf)
        if not math.isfinite(norm):
            raise RunError(
                f"The gradient norm is {norm} in step {self.version + 1}; the update was not applied. "
                f"Lower learn.learning_rate (now {self.config.learning_rate}) or generate.max_tokens."
            )
        self.optimizer.step()
        token_count = metric_sums.pop("tokens", 1.0)
        means = {name: value / token_count for name, value in metric_sums.items()}
        differences = summarize_differences(logprob_diffs)
        return {"loss": loss, "grad_norm": norm, **means, **differences}

    def _accumulate_gradients(
        self, samples: list[TrainingSample], rows: int, tokens: int
    ) -> tuple[float, list[torch.Tensor], dict[str, float]]:
        """Adds the gradients of a step to those of the parameters; returns its loss, the differences between
        the log-probabilities of sampler and learner, and the sums of its metrics."""
        metric_sums: dict[str, float] = {}
        loss, logprob_diffs = 0.0, list[torch.Tensor]()
        for block in self._compute_gradients(samples, rows, tokens):
            loss += block.loss
            logprob_diffs.append(block.logprob_diffs)
            for name, value in block.metric_sums.items():
                metric_sums[name] = metric_sums.get(name, 0.0) + value
            add_gradients(self.parameters, block.gradients)
        return loss, logprob_diffs, metric_sums

    def _clip_gradients(self, limit: float) -> float:
        """Scales the gradients down to this norm; returns their norm before."""
        return torch.nn.utils.clip_grad_norm_(self.parameters, limit).item()

    def _check_loss(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise RunError(
                f"The loss is {loss} in step {self.version + 1}; the update was not "
                "applied. The likeliest causes are a learning rate that is too high "
                f"(learn.learning_rate is {self.config.learning_rate}) and no gradient clipping "
                f"(learn.max_grad_norm is {self.config.max_grad_norm})."
            )

    def _compute_gradients(
        self, samples: list[TrainingSample], rows: int, tokens: int
    ) -> Iterator[BlockGradients]:
        """Differentiates every block, in fixed order."""
        for block in self._plan_blocks(samples):
            yield self._differentiate_block(rows, tokens, block)

    def _plan_blocks(self, samples: list[TrainingSample]) -> list[GradientBlock]:
        """Blocks in fixed order: if samples share prompts, several microbatches whose prompts are
        computed once, else one microbatch each."""
        shares_prompts = (
            len({s.prompt for s in samples}) < len(samples)
            and not self.settings.entropy_coef
            and llama.is_supported(self.policy.model)
        )
        max_tokens = self.config.microbatch_tokens
        if not shares_prompts:
            parts = pack_microbatches(samples, max_tokens, minimise_padding=self.is_large)
            return [GradientBlock(False, [part]) for part in parts]
        common = count_common_tokens([*{s.prompt for s in samples}]) if self.is_large else 0
        blocks = split_into_blocks(samples, max_tokens, self.config.gradient_blocks, common=common)
        return [
            GradientBlock(
                True,
                pack_microbatches(
                    block, max_tokens, count_prompts=False, minimise_padding=self.is_large
                ),
            )
            for block in blocks
        ]

    def _differentiate_block(self, rows: int, tokens: int, block: GradientBlock) -> BlockGradients:
        """Loss and gradients of a block: completions first, then the prompts that they share."""
        prefixes = reference_prefixes = None
        if block.shares_prompts:
            prompts = [s.prompt for microbatch in block.microbatches for s in microbatch]
            prefixes = SharedPrefixes(
                self.policy.model, prompts, dtype=self.policy.dtype,
                recompute=self.config.activation_checkpointing,
            )  # fmt: skip
            if self.settings.kl_coef:
                reference_prefixes = self._share_reference_prompts(prompts)
        # in a model of the Llama family no two parameters have the same tensor as gradient
        in_place = self.is_large and block.shares_prompts
        targets = [*self.parameters, *(prefixes.leaves if prefixes else ())]
        gradients: list[torch.Tensor | None] = [None] * len(targets)
        loss_sum, logprob_diffs, metric_sums = 0.0, list[torch.Tensor](), dict[str, float]()
        for microbatch in block.microbatches:
            inputs = self._build_loss_inputs(microbatch, prefixes, reference_prefixes, rows, tokens)
            loss, sums = self.algorithm.loss(inputs)
            self._check_loss(loss.item())
            if prefixes and prefixes.weights:
                # the weights are leaves, too: the parameters get their gradients below
                loss.backward(inputs=prefixes.leaves)
            else:
                new_gradients = torch.autograd.grad(loss, targets, allow_unused=True)
                accumulate_gradients(gradients, new_gradients, in_place=in_place)
            difference = (inputs.logprobs.detach() - inputs.sampler_logprobs).abs()
            loss_sum += loss.item()
            logprob_diffs.append(difference[inputs.mask.bool()].cpu())
            for name, value in sums.items():
                metric_sums[name] = metric_sums.get(name, 0.0) + value.item()
        parameter_gradients = gradients[: len(self.parameters)]
        if prefixes:
            add_gradients(prefixes.leaves, gradients[len(self.parameters) :])
            accumulate_gradients(
                parameter_gradients,
                prefixes.parameter_gradients(self.parameters),
                in_place=in_place,
            )
        return BlockGradients(loss_sum, torch.cat(logprob_diffs), metric_sums, parameter_gradients)

    def _build_loss_inputs(
        self,
        microbatch: list[TrainingSample],
        prefixes: Any,
        reference_prefixes: Any,
        rows: int,
        tokens: int,
    ) -> LossInputs:
        pairs = [(s.prompt, s.tokens) for s in microbatch]
        batch = CompletionBatch.from_pairs(pairs, self.device)
        logprobs, entropy = self._policy_logprobs(pairs, batch, prefixes)
        reference = None
        if self.settings.kl_coef:
            reference = self._reference_logprobs(pairs, batch, reference_prefixes)
            if self.config.kl_tokens == "cot":  # equal outside the CoT: no divergence, no gradient
                in_cot = cot_mask(self.policy, [s.tokens for s in microbatch]).to(batch.mask.device)
                reference = torch.where(in_cot, reference, logprobs.detach())
        return LossInputs(
            logprobs=logprobs,
            sampler_logprobs=pad_sampler_logprobs(batch, microbatch),
            mask=batch.mask,
            advantages=torch.tensor([s.advantage for s in microbatch]).to(batch.mask.device),
            reference_logprobs=reference,
            entropy=entropy,
            rows=rows,
            tokens=tokens,
            max_tokens=self.max_tokens,
            settings=self.settings,
            extra=pad_extra(batch, microbatch, self.algorithm.inputs),
        )

    def _policy_logprobs(
        self,
        pairs: Sequence[tuple[tuple[int, ...], Sequence[int]]],
        batch: CompletionBatch,
        prefixes: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(R, T) log-probabilities under the policy, and entropies if the loss has an entropy term."""
        if prefixes:
            return prefixes.completion_logprobs(pairs, self.temperature), None
        return compute_logprobs(
            self.policy.model, batch, self.temperature,
            entropy=self.settings.entropy_coef != 0, dtype=self.policy.dtype,
            recompute=self.config.activation_checkpointing,
        )  # fmt: skip

    def _copy_reference(self) -> Any:
        return copy_reference(self.policy)

    @torch.no_grad()
    def _share_reference_prompts(self, prompts: Sequence[tuple[int, ...]]) -> Any:
        """The prompts under the starting policy, for `_reference_logprobs`; None if each row computes its
        prompt."""
        if not self.is_large or not llama.is_supported(self.reference):
            return None
        return SharedPrefixes(self.reference, prompts, dtype=self.policy.dtype)

    @torch.no_grad()
    def _reference_logprobs(
        self,
        pairs: Sequence[tuple[tuple[int, ...], Sequence[int]]],
        batch: CompletionBatch,
        prefixes: Any,
    ) -> torch.Tensor:
        """(R, T) log-probabilities under the starting policy."""
        if prefixes:
            return prefixes.completion_logprobs(pairs, self.temperature)
        return compute_logprobs(self.reference, batch, self.temperature, dtype=self.policy.dtype)[0]

    @torch.no_grad()
    def _estimate_kl(self, samples: Sequence[TrainingSample]) -> float:
        """KL of the sampler to the starting policy, estimated (k3) on evenly spaced rows."""
        rows = [s for s in samples if s.tokens]
        rows = rows[:: max(1, math.ceil(len(rows) / KL_ROWS))]
        if not rows:
            return 0.0
        total = 0.0
        prefixes = self._share_reference_prompts([s.prompt for s in rows])
        for microbatch in pack_microbatches(
            rows, self.config.microbatch_tokens, count_prompts=prefixes is None,
            minimise_padding=self.is_large,
        ):  # fmt: skip
            pairs = [(s.prompt, s.tokens) for s in microbatch]
            batch = CompletionBatch.from_pairs(pairs, self.device)
            reference = self._reference_logprobs(pairs, batch, prefixes)
            # log(reference / sampler): 0 on padding, where its k3 is 0 too
            log_ratio = reference - pad_sampler_logprobs(batch, microbatch)
            total += (log_ratio.exp() - log_ratio - 1).sum().item()
        return total / max(1, sum(len(s.tokens) for s in rows))


def copy_reference(policy: Policy) -> Any:
    """The starting policy: a copy of the model that is never updated. Frozen weights, as below adapters, are
    not copied, unless the copy is rounded to the policy's dtype."""
    rounds = policy.dtype != torch.float32
    frozen = () if rounds else (p for p in policy.model.parameters() if not p.requires_grad)
    reference = copy.deepcopy(policy.model, {id(parameter): parameter for parameter in frozen})
    reference.requires_grad_(False)
    return reference.to(policy.dtype) if rounds else reference


def build_loss_settings(config: LearnConfig) -> LossSettings:
    """The defaults of the algorithm, overridden by the values set in the configuration."""
    defaults = get_algorithm(config.algorithm).settings
    overrides: dict[str, Any] = {
        name: value
        for name in ("clip_low", "clip_high", "importance_cap")
        if (value := getattr(config, name)) is not None
    }
    return replace(defaults, kl_coef=config.kl_coef, entropy_coef=config.entropy_coef, **overrides)


def accumulate_gradients(
    sums: list[torch.Tensor | None],
    gradients: Sequence[torch.Tensor | None],
    *,
    in_place: bool = False,
) -> None:
    """Adds gradients to their sums, replacing the entries of the list, or with `in_place` their values;
    None counts as zero."""
    for index, gradient in enumerate(gradients):
        if gradient is not None:
            total = sums[index]
            if total is None:
                sums[index] = gradient
            else:
                sums[index] = total.add_(gradient) if in_place else total + gradient


def summarize_differences(differences: Sequence[torch.Tensor]) -> dict[str, float]:
    """Median, 99th percentile and maximum of the differences between sampler and learner, for the metrics."""
    ordered = torch.cat([*differences] or [torch.zeros(1)]).sort().values
    ranks = {"p50": (len(ordered) - 1) // 2, "p99": math.ceil(0.99 * len(ordered)) - 1, "max": -1}
    return {f"logprob_diff_{name}": ordered[rank].item() for name, rank in ranks.items()}
