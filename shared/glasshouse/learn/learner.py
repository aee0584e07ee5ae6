"""The learner: samples in, one policy update out. It does not know which algorithm it runs.

    samples ──► drop rows of zero advantage ──► blocks that share prompts ──► microbatches of similar length, in fixed
    order: log-probabilities, loss, gradients ──► add up ──► clip ──► AdamW

Small models are computed by the kernel (`kernel/small_llama.c`), in which a block is one prompt with its samples.

Weights, gradients and AdamW's state are float32; with `policy.dtype` bfloat16 the forward and backward passes compute
with a rounded copy of the weights.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from glasshouse.config.schema import Config, LearnConfig
from glasshouse.errors import ModelError, RunError
from glasshouse.kernel.small_llama import (
    KernelAdamW,
    SmallLlama,
    clip_gradients,
    count_common_tokens,
)
from glasshouse.learn.losses import LossInputs, LossSettings, can_skip_zero_advantage, get_algorithm
from glasshouse.learn.microbatches import (
    TrainingSample,
    cot_mask,
    pack_microbatches,
    pad_extra,
    pad_numbers,
    split_into_blocks,
)
from glasshouse.models import llama
from glasshouse.models.adapters import without_adapters
from glasshouse.models.devices import is_large, use_one_torch_thread
from glasshouse.models.logprobs import CompletionBatch, compute_logprobs
from glasshouse.models.policy import Policy, check_tensor
from glasshouse.models.shared_prefix import SharedPrefixes

KL_ROWS = 16
"""Rows per step on which the KL divergence to the starting policy is measured for the metrics."""
LARGE_KL_EVERY = 10
"""Steps between two such measurements in large models, by default; small models measure every step."""
KERNEL_ROWS = 8192
"""Tokens whose activations the kernel keeps at a time: about 16 KB each in a pocket model."""

ADAPTER_KEY = "weight"
"""Prefix of the adapter weights in `LearnerState.tensors`."""


class StepSize(NamedTuple):
    """Completions and tokens of a whole step, skipped rows included: what losses are divided by."""

    rows: int
    tokens: int


class GradientBlock(NamedTuple):
    """The unit of gradient computation: some microbatches of a step."""

    shares_prompts: bool
    """Prompts are computed once for all their samples; else the block is one microbatch."""
    microbatches: list[list[TrainingSample]]


@dataclass(frozen=True, slots=True)
class LearnerState:
    """The state of a learner apart from the policy's weights: what a checkpoint saves."""

    version: int
    tensors: dict[str, Tensor]
    """The optimizer's, as `exp_avg/<parameter>`, `exp_avg_sq/<parameter>` and `step/<parameter>`, and
    adapters as `weight/<parameter>`. Empty if the learner is sharded."""
    save_shards: Callable[[Path], None] | None = None
    """Of a sharded learner: lets every rank write its parts of the tensors to the folder of a checkpoint."""
    folder: Path | None = None
    """Of a sharded learner that is restored: the checkpoint from which every rank reads its parts."""


@dataclass(slots=True)
class Gradients:
    """Loss, metrics and gradients of a block, or of several that were added up."""

    values: list[Tensor | None]
    """One per trained parameter, or all in one array of the kernel; None counts as zero."""
    loss: float = 0.0
    logprob_diffs: list[Tensor] = field(default_factory=list)
    """Differences between the log-probabilities of sampler and learner, one per token, on the CPU."""
    metric_sums: dict[str, float] = field(default_factory=dict)

    def count_loss(self, loss: Tensor, sums: Mapping[str, Tensor], inputs: LossInputs) -> None:
        """Adds loss and metrics of a microbatch."""
        self.loss += loss.item()
        difference = (inputs.logprobs.detach() - inputs.sampler_logprobs).abs()
        self.logprob_diffs.append(difference[inputs.mask.bool()].cpu())
        self.count_metrics({name: value.item() for name, value in sums.items()})

    def count_metrics(self, sums: Mapping[str, float]) -> None:
        for name, value in sums.items():
            self.metric_sums[name] = self.metric_sums.get(name, 0.0) + value

    def add(self, other: Gradients) -> None:
        for n, gradient in enumerate(other.values):  # the first one becomes the sum
            total = self.values[n]
            if gradient is not None:
                self.values[n] = gradient if total is None else total.add_(gradient)
        self.loss += other.loss
        self.logprob_diffs += other.logprob_diffs
        self.count_metrics(other.metric_sums)

    def round(self) -> None:
        """Rounds sums of double precision to float32, so that they do not depend on the order of their terms."""
        self.loss = float(np.float32(self.loss))
        self.metric_sums = {n: float(np.float32(x)) for n, x in self.metric_sums.items()}

    def metrics(self) -> dict[str, float]:
        """Means over all tokens, and how sampler and learner differ."""
        tokens = self.metric_sums.get("tokens", 1.0)
        means = {n: total / tokens for n, total in self.metric_sums.items() if n != "tokens"}
        return means | summarize_differences(self.logprob_diffs)


class Learner:
    """Holds the optimizer and updates the policy's weights in place.

    Its subclasses in several processes have the same methods: `ParallelLearner` replaces `differentiate_blocks`,
    `ShardedLearner` replaces `compute_gradients`.

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
        kl_every: int | None = 0,
    ) -> None:
        """`kl_every` as in `diagnostics.kl_every`."""
        self.policy, self.config = policy, config
        self.device = policy.device
        self.is_large = is_large(policy.model)
        self.transformers_forward = config.sharding == "fsdp"
        self.kl_every = (LARGE_KL_EVERY if self.is_large else 1) if kl_every == 0 else kl_every
        self.algorithm = get_algorithm(config.algorithm)
        self.settings = build_loss_settings(config)
        self.max_tokens, self.steps, self.temperature = max_tokens, steps, temperature
        self.version = 0
        needs_reference = config.kl_coef or kl_every is not None
        self.reference = self._make_reference() if needs_reference else None
        self.parameters = [p for p in policy.model.parameters() if p.requires_grad]
        self.kernel: SmallLlama | None = None
        if not self.settings.entropy_coef and not self.transformers_forward:
            self.kernel = llama.open_kernel(policy.model, policy.dtype)
        self.gradient_shapes = [p.shape for p in self.parameters]
        if self.kernel:
            self.gradient_shapes = [torch.Size([self.kernel.count])]
        has_both = self.kernel and self.reference is not None
        self.reference_kernel = llama.open_kernel(self.reference) if has_both else None
        fused = policy.device.type == "cpu" and not self.kernel  # one pass over memory
        self.optimizer = (KernelAdamW if self.kernel else torch.optim.AdamW)(
            self.parameters,
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            foreach=not fused,
            fused=fused,
        )

    @classmethod
    def from_config(cls, policy: Policy, config: Config, **options: Any) -> Self:
        """The learner of a run."""
        return cls(
            policy,
            config.learn,
            max_tokens=config.generate.max_tokens,
            steps=config.steps,
            temperature=config.generate.temperature,
            kl_every=config.diagnostics.kl_every,
            **options,
        )

    def state(self) -> LearnerState:
        """What a checkpoint needs besides the policy's saved weights: the optimizer state, and
        adapters, which are merged into the saved weights."""
        tensors = {}
        for name, parameter in trained_parameters(self.policy.model).items():
            if hasattr(self.policy.model, "peft_config"):
                tensors[f"{ADAPTER_KEY}/{name}"] = parameter.detach().cpu()
            for key, value in self.optimizer.state[parameter].items():
                tensors[f"{key}/{name}"] = value.cpu().contiguous()
        return LearnerState(self.version, tensors)

    def restore(self, state: LearnerState) -> None:
        """Continues from a state. Weights other than adapters must already be in the policy.

        Raises before anything is changed if a tensor is missing, unknown, or has another shape or type than the
        parameter. A state of version 0 has no optimizer tensors yet."""
        keys = ["exp_avg", "exp_avg_sq", "step"] if state.version else []
        if hasattr(self.policy.model, "peft_config"):
            keys.append(ADAPTER_KEY)
        expected = {
            f"{key}/{name}": (key, parameter)
            for key in keys
            for name, parameter in trained_parameters(self.policy.model).items()
        }
        for path, (key, parameter) in expected.items():
            like = torch.zeros(()) if key == "step" else parameter
            check_tensor(path, state.tensors.get(path), like)
        if unknown := sorted(state.tensors.keys() - expected.keys()):
            raise ModelError(f"The tensor {unknown[0]} belongs to no parameter of the model.")
        self.optimizer.state.clear()
        with torch.no_grad():
            for path, (key, parameter) in expected.items():
                value = state.tensors[path]
                if key == ADAPTER_KEY:
                    parameter.copy_(value)
                else:  # AdamW keeps its step count on the CPU
                    device = "cpu" if key == "step" else parameter.device
                    self.optimizer.state[parameter][key] = value.to(device, copy=True)
        self.version = state.version

    def whole_tensors(self) -> Iterator[Tensor]:
        """The trained tensors, in the model's order."""
        return iter(self.parameters)

    # ── an update, from top to bottom ────────────────────────────────────────────────────────────

    def update(self, samples: Sequence[TrainingSample]) -> dict[str, float]:
        """Trains `config.epochs_per_batch` epochs on the samples of a step; returns metrics."""
        with use_one_torch_thread() if self.kernel else nullcontext():
            return self._update(samples)

    def _update(self, samples: Sequence[TrainingSample]) -> dict[str, float]:
        size = StepSize(len(samples), sum(len(s.tokens) for s in samples))
        skip = self.config.skip_zero_advantage and can_skip_zero_advantage(self.settings)
        trained = [s for s in samples if s.tokens and (s.advantage != 0 or not skip)]
        metrics: dict[str, float] = {"learned_rows": len(trained)}
        step = self.version + 1
        if self.kl_every and (step in (1, self.steps) or step % self.kl_every == 0):
            metrics["kl"] = self._estimate_kl(samples)
        factor = self.config.rate_factor(self.version, self.steps)
        learning_rate = self.config.learning_rate * factor
        for _ in range(self.config.epochs_per_batch):
            self.optimizer.zero_grad()  # frees the gradients of the step before
            gradients = self.compute_gradients(trained, size)
            norm = self.apply_gradients(gradients.values, learning_rate)
            metrics |= {"loss": gradients.loss, "grad_norm": norm, **gradients.metrics()}
        metrics["learning_rate"] = learning_rate
        self.version += 1
        return metrics

    def compute_gradients(self, samples: list[TrainingSample], size: StepSize) -> Gradients:
        """The gradients of a step: those of its blocks, added up in fixed order."""
        total = Gradients([None] * len(self.gradient_shapes))
        if self.kernel:
            self.kernel.load()
        for gradients in self.differentiate_blocks(self.plan_blocks(samples), size):
            total.add(gradients)
        if self.kernel:
            total.round()
            total.values = self.kernel.split(total.values[0], self.parameters)
        return total

    def apply_gradients(self, gradients: Sequence[Tensor | None], learning_rate: float) -> float:
        """Clips the gradients and takes one step of AdamW; returns their norm before clipping."""
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            # AdamW's momentum moves parameters without gradient, too
            parameter.grad = torch.zeros_like(parameter) if gradient is None else gradient
        norm = self._clip_gradients(self.config.max_grad_norm or math.inf)
        if not math.isfinite(norm):
            raise RunError(
                f"The gradient norm is {norm} in step {self.version + 1}; the update was not applied. "
                f"Lower learn.learning_rate (now {self.config.learning_rate}) or generate.max_tokens."
            )
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        return norm

    def _clip_gradients(self, limit: float) -> float:
        """Scales the gradients down to this norm; returns their norm before."""
        if self.kernel:
            return clip_gradients(self.kernel.library, self.parameters, limit)
        return torch.nn.utils.clip_grad_norm_(self.parameters, limit).item()

    def plan_blocks(self, samples: list[TrainingSample]) -> list[GradientBlock]:
        """Blocks in fixed order: if samples share prompts, several microbatches whose prompts are
        computed once, else one microbatch each."""
        if self.kernel:
            groups: dict[tuple[int, ...], list[TrainingSample]] = {}
            for sample in samples:
                groups.setdefault(sample.prompt, []).append(sample)
            return [GradientBlock(True, [group]) for group in groups.values()]
        prompts = {s.prompt for s in samples}
        shares_prompts = (
            len(prompts) < len(samples)
            and not self.settings.entropy_coef
            and not self.transformers_forward
            and llama.is_supported(self.policy.model)
        )
        if not shares_prompts:
            parts = pack_microbatches(samples, self.config.microbatch_tokens)
            return [GradientBlock(False, [part]) for part in parts]
        limit, multiple = self.config.microbatch_tokens, self.config.gradient_blocks
        common = count_common_tokens([*prompts])
        return [
            GradientBlock(True, pack_microbatches(block, limit, count_prompts=False))
            for block in split_into_blocks(samples, limit, multiple, common)
        ]

    def differentiate_blocks(
        self, blocks: Sequence[GradientBlock], size: StepSize
    ) -> Iterator[Gradients]:
        """The gradients of each block, in order."""
        if not self.kernel:
            for block in blocks:
                yield self.differentiate_block(block, size)
            return
        groups = [group for block in blocks for group in block.microbatches]
        rows = np.cumsum([len(g[0].prompt) + sum(len(s.tokens) for s in g) for g in groups])
        parts = (rows - rows[:1]) // KERNEL_ROWS if len(rows) else rows
        for part in np.unique(parts):
            chosen = [groups[n] for n in np.flatnonzero(parts == part)]
            yield from self._differentiate_groups(self.kernel, chosen, size)

    def _differentiate_groups(
        self, kernel: SmallLlama, groups: Sequence[list[TrainingSample]], size: StepSize
    ) -> Iterator[Gradients]:
        """The gradients of each group by the kernel; loss and metrics of all are in the first."""
        packed = [(group[0].prompt, [s.tokens for s in group]) for group in groups]
        samples = [sample for group in groups for sample in group]
        lengths = torch.tensor([len(s.tokens) for s in samples])
        mask = torch.arange(int(lengths.max())) < lengths[:, None]  # (R, T)
        tape = kernel.logprobs(packed, self.temperature or 1.0)
        logprobs = pad_numbers(mask, tape.logprobs, torch.float64).requires_grad_()
        reference = None
        if self.settings.kl_coef:
            reference = pad_numbers(mask, [self._kernel_reference(packed)], torch.float64)
        inputs = self._complete_inputs(samples, size, mask, logprobs, reference)
        loss, sums = self.algorithm.loss(inputs)
        self._check_loss(loss.item())
        [grad] = torch.autograd.grad(loss, logprobs)
        by_group = grad[mask].float().split([len(numbers) for numbers in tape.logprobs])
        for n, flat in enumerate(kernel.gradients(tape, [part.numpy() for part in by_group])):
            result = Gradients([torch.from_numpy(flat)])
            if n == 0:
                result.count_loss(loss, sums, inputs)
            yield result

    def _kernel_reference(self, groups: Sequence[tuple[Any, Any]]) -> np.ndarray:
        """Log-probabilities of all tokens of these groups under the starting policy."""
        assert self.reference_kernel is not None
        tape = self.reference_kernel.logprobs(groups, self.temperature or 1.0)
        return np.concatenate(tape.logprobs)

    def differentiate_block(self, block: GradientBlock, size: StepSize) -> Gradients:
        """Loss and gradients of a block: completions first, then the prompts that they share."""
        prefixes = reference_prefixes = None
        if block.shares_prompts:
            prompts = [s.prompt for microbatch in block.microbatches for s in microbatch]
            recompute = self.config.activation_checkpointing
            model, dtype = self.policy.model, self.policy.dtype
            prefixes = SharedPrefixes(model, prompts, dtype=dtype, recompute=recompute)
            if self.settings.kl_coef:
                reference_prefixes = self._share_reference_prompts(prompts)
        result = Gradients([])
        for microbatch in block.microbatches:
            inputs = self.build_loss_inputs(microbatch, size, prefixes, reference_prefixes)
            loss, sums = self.algorithm.loss(inputs)
            self._check_loss(loss.item())
            if prefixes:
                prefixes.backward(loss)
            else:  # the only microbatch
                found = torch.autograd.grad(loss, self.parameters, allow_unused=True)
                result.values = list(found)
            result.count_loss(loss, sums, inputs)
        if prefixes:
            result.values = prefixes.parameter_gradients()
        return result

    def build_loss_inputs(
        self,
        microbatch: list[TrainingSample],
        size: StepSize,
        prefixes: SharedPrefixes | None = None,
        reference_prefixes: SharedPrefixes | None = None,
    ) -> LossInputs:
        """What the loss of a microbatch needs; `prefixes` are its prompts if they are shared."""
        pairs = [(s.prompt, s.tokens) for s in microbatch]
        batch = CompletionBatch.from_pairs(pairs, self.device)
        entropy = None
        if prefixes:
            logprobs = prefixes.completion_logprobs(pairs, self.temperature)
        else:
            logprobs, entropy = self._compute_logprobs(
                self.policy.model,
                batch,
                entropy=self.settings.entropy_coef != 0,
                recompute=self.config.activation_checkpointing,
            )
        reference = None
        if self.settings.kl_coef:
            reference = self._reference_logprobs(pairs, batch, reference_prefixes)
        return self._complete_inputs(microbatch, size, batch.mask, logprobs, reference, entropy)

    def _complete_inputs(
        self,
        samples: Sequence[TrainingSample],
        size: StepSize,
        mask: Tensor,
        logprobs: Tensor,
        reference: Tensor | None,
        entropy: Tensor | None = None,
    ) -> LossInputs:
        """The inputs of a loss, in the dtype of the log-probabilities `(R, T)`."""
        dtype, device = logprobs.dtype, mask.device
        if reference is not None and self.config.kl_tokens == "cot":
            # equal outside the CoT: no divergence, no gradient
            in_cot = cot_mask(self.policy, [s.tokens for s in samples]).to(device)
            reference = torch.where(in_cot, reference, logprobs.detach())
        return LossInputs(
            logprobs=logprobs,
            sampler_logprobs=pad_numbers(mask, [s.sampler_logprobs for s in samples], dtype),
            mask=mask,
            advantages=torch.tensor([s.advantage for s in samples], dtype=dtype).to(device),
            reference_logprobs=reference,
            entropy=entropy,
            rows=size.rows,
            tokens=size.tokens,
            max_tokens=self.max_tokens,
            settings=self.settings,
            extra=pad_extra(mask, samples, self.algorithm.inputs),
        )

    def _compute_logprobs(
        self, model: Any, batch: CompletionBatch, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        """(R, T) log-probabilities, and entropies if asked for, each row with its own prompt."""
        options |= {"dtype": self.policy.dtype, "transformers_forward": self.transformers_forward}
        return compute_logprobs(model, batch, self.temperature, **options)

    def _check_loss(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise RunError(
                f"The loss is {loss} in step {self.version + 1}; the update was not "
                "applied. The likeliest causes are a learning rate that is too high "
                f"(learn.learning_rate is {self.config.learning_rate}) and no gradient clipping "
                f"(learn.max_grad_norm is {self.config.max_grad_norm})."
            )

    # ── the starting policy ──────────────────────────────────────────────────────────────────────

    def _make_reference(self) -> Any:
        """The starting policy: a copy that is never updated, or the model itself, whose adapters are switched off."""
        model = self.policy.model
        if hasattr(model, "peft_config"):
            return model
        return copy.deepcopy(model).requires_grad_(False).to(self.policy.dtype)

    @torch.no_grad()
    def _share_reference_prompts(self, prompts: Sequence[tuple[int, ...]]) -> SharedPrefixes | None:
        """The prompts under the starting policy, for `_reference_logprobs`. By transformers each row computes its
        prompt: None."""
        if self.transformers_forward or not llama.is_supported(self.reference):
            return None
        with without_adapters(self.reference):
            return SharedPrefixes(self.reference, prompts, dtype=self.policy.dtype)

    @torch.no_grad()
    def _reference_logprobs(
        self,
        pairs: Sequence[tuple[tuple[int, ...], Sequence[int]]],
        batch: CompletionBatch,
        prefixes: SharedPrefixes | None,
    ) -> Tensor:
        """(R, T) log-probabilities under the starting policy."""
        with without_adapters(self.reference):
            if prefixes:
                return prefixes.completion_logprobs(pairs, self.temperature)
            return self._compute_logprobs(self.reference, batch)[0]

    @torch.no_grad()
    def _estimate_kl(self, samples: Sequence[TrainingSample]) -> float:
        """KL of the sampler to the starting policy, estimated (k3) on evenly spaced rows."""
        rows = [s for s in samples if s.tokens]
        rows = rows[:: max(1, math.ceil(len(rows) / KL_ROWS))]
        if not rows:
            return 0.0
        if self.kernel:
            reference = self._kernel_reference([(s.prompt, [s.tokens]) for s in rows])
            sampler = np.array([x for s in rows for x in s.sampler_logprobs])
            log_ratio = reference - sampler
            return float(np.float32(np.mean(np.exp(log_ratio) - log_ratio - 1)))
        total = 0.0
        prefixes = self._share_reference_prompts([s.prompt for s in rows])
        limit, count_prompts = self.config.microbatch_tokens, prefixes is None
        for microbatch in pack_microbatches(rows, limit, count_prompts=count_prompts):
            pairs = [(s.prompt, s.tokens) for s in microbatch]
            batch = CompletionBatch.from_pairs(pairs, self.device)
            logprobs = self._reference_logprobs(pairs, batch, prefixes)
            # log(reference / sampler): 0 on padding, where its k3 is 0 too
            log_ratio = logprobs - pad_numbers(batch.mask, [s.sampler_logprobs for s in microbatch])
            total += (log_ratio.exp() - log_ratio - 1).sum().item()
        return total / max(1, sum(len(s.tokens) for s in rows))


def trained_parameters(model: Any) -> dict[str, torch.nn.Parameter]:
    """The parameters that are trained, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def build_loss_settings(config: LearnConfig) -> LossSettings:
    """The defaults of the algorithm, overridden by the values set in the configuration."""
    defaults = get_algorithm(config.algorithm).settings
    overrides: dict[str, Any] = {
        name: value
        for name in ("clip_low", "clip_high", "importance_cap")
        if (value := getattr(config, name)) is not None
    }
    return replace(defaults, kl_coef=config.kl_coef, entropy_coef=config.entropy_coef, **overrides)


def summarize_differences(differences: Sequence[Tensor]) -> dict[str, float]:
    """Median, 99th percentile and maximum of the differences between sampler and learner, for the metrics."""
    ordered = torch.cat([*differences] or [torch.zeros(1)]).sort().values
    ranks = {"p50": (len(ordered) - 1) // 2, "p99": math.ceil(0.99 * len(ordered)) - 1, "max": -1}
    return {f"logprob_diff_{name}": ordered[rank].item() for name, rank in ranks.items()}
