"""What must hold on every device: used by `make proofs ONLY=gpu` on a GPU and by the tests on a stand-in device.

`compare_with_cpu` runs generation and one update of two tiny models on the device and on the CPU in float32.
`run_everything` trains, evaluates, checkpoints and monitors with `device` in the configuration.
`compare_resumed_run` trains with and without an interruption.
"""

from __future__ import annotations

import copy
import hashlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from glasshouse.config.loading import load_config
from glasshouse.config.schema import LearnConfig
from glasshouse.generate.torch_engine import TorchGenerator
from glasshouse.learn.learner import Learner
from glasshouse.learn.microbatches import TrainingSample
from glasshouse.measurement.evaluate import evaluate_model
from glasshouse.measurement.monitor_run import monitor_run
from glasshouse.models.logprobs import CompletionBatch, compute_logprobs
from glasshouse.models.policy import Policy, load_policy
from glasshouse.training.run import TrainingRun
from glasshouse.types import Request, SamplingParams

ROOT = Path(__file__).resolve().parent.parent
MOCK = str(ROOT / "models" / "mock")
TINY_RUN = [
    f"model={MOCK}", "steps=2", "data.groups_per_step=2", "generate.group_size=2", "generate.max_tokens=8",
    "evaluate.problems=2", "evaluate.samples=1", "reward.terms={closeness: 1}", "checkpoints.every=1",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """How far a device and dtype are from the CPU in float32."""

    sampler: float
    """Largest difference of log-probabilities between generator and learner, both on the device."""
    logprob_mean: float
    """Mean absolute difference of the learner's log-probabilities from those on the CPU."""
    logprob_max: float
    gradient: float
    """Length of the difference of the gradients, relative to the gradient on the CPU."""

    def exceeding(self, limits: Differences) -> list[str]:
        """What is larger than its limit."""
        own, allowed = asdict(self), asdict(limits)
        return [f"{k} {own[k]:.2g} > {allowed[k]:.2g}" for k in own if not own[k] <= allowed[k]]


LIMITS = {
    "float32": Differences(sampler=1e-4, logprob_mean=1e-5, logprob_max=1e-4, gradient=1e-3),
    "bfloat16": Differences(sampler=0.3, logprob_mean=0.03, logprob_max=0.3, gradient=0.1),
}
"""The stated tolerances. bfloat16 has 8 significant bits: a logit of 10 is known to within 0.03."""


def make_model(architecture: str) -> Policy:
    """A tiny model: `llama` uses the fast forward pass, `gpt2` that of transformers."""
    policy = load_policy(MOCK)
    if architecture == "llama":
        return policy
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "gpt2", n_embd=32, n_layer=2, n_head=4, n_positions=128, vocab_size=len(policy.tokenizer),
        bos_token_id=None, eos_token_id=1, pad_token_id=0, initializer_range=0.2,
    )  # fmt: skip
    return replace(policy, model=AutoModelForCausalLM.from_config(config).eval())


def place(policy: Policy, device: str, dtype: str) -> Policy:
    """A copy of the policy on the device."""
    model = copy.deepcopy(policy.model).to(device)
    return replace(policy, model=model, dtype=getattr(torch, dtype))


def generate_samples(policy: Policy) -> list[TrainingSample]:
    """Completions of three prompts of different lengths, with advantages that sum to 0."""
    requests = [
        Request(prompt=tuple(range(10, 10 + length)), noise_keys=(1, 2, 3, 4))
        for length in (3, 7, 12)
    ]
    groups = TorchGenerator(policy).generate(requests, SamplingParams(max_tokens=20))
    return [
        TrainingSample(
            prompt=request.prompt, tokens=c.tokens, sampler_logprobs=c.logprobs,
            advantage=1.0 if index % 2 else -1.0,
        )
        for request, group in zip(requests, groups, strict=True)
        for index, c in enumerate(group)
    ]  # fmt: skip


def learner_logprobs(policy: Policy, samples: list[TrainingSample]) -> torch.Tensor:
    """(R, T) on the CPU."""
    pairs = [(s.prompt, s.tokens) for s in samples]
    batch = CompletionBatch.from_pairs(pairs, policy.device)
    with torch.no_grad():
        return compute_logprobs(policy.model, batch, dtype=policy.dtype)[0].cpu()


def compute_gradient(policy: Policy, samples: list[TrainingSample], **options: Any) -> torch.Tensor:
    """The gradient of one update, flat, on the CPU."""
    config = LearnConfig(max_grad_norm=0, **options)
    Learner(policy, config, max_tokens=20, steps=1).update(samples)
    return torch.cat([p.grad.detach().cpu().flatten() for p in policy.model.parameters()])


def compare_with_cpu(architecture: str, device: str, dtype: str, **options: Any) -> Differences:
    """Generates on the device; compares log-probabilities and gradient with those on the CPU."""
    start = make_model(architecture)
    policy = place(start, device, dtype)
    samples = generate_samples(policy)
    ours, expected = learner_logprobs(policy, samples), learner_logprobs(start, samples)
    mask = torch.arange(ours.shape[1]) < torch.tensor([len(s.tokens) for s in samples])[:, None]
    sampled = torch.zeros_like(ours)
    for row, sample in enumerate(samples):
        sampled[row, : len(sample.tokens)] = torch.tensor(sample.sampler_logprobs)
    gradient = compute_gradient(policy, samples, **options)
    reference = compute_gradient(start, samples)
    return Differences(
        sampler=(ours - sampled)[mask].abs().max().item(),
        logprob_mean=(ours - expected)[mask].abs().mean().item(),
        logprob_max=(ours - expected)[mask].abs().max().item(),
        gradient=((gradient - reference).norm() / reference.norm()).item(),
    )


def run_everything(device: str, work: Path, *overrides: str) -> dict[str, Any]:
    """Trains, evaluates, saves checkpoints, monitors them, and evaluates the last one; returns results."""
    out = work / "run"
    settings = [*TINY_RUN, f"device={device}", *overrides]
    summary = TrainingRun(load_config([], [*settings, f"out={out}"])).train()
    monitored = monitor_run(out, problems=2, first_and_last=True, progress=False)
    checkpoint = newest_checkpoint(out)
    results = evaluate_model(load_config([], [*settings, f"model={checkpoint}"]))
    return {
        "summary": summary, "monitor": monitored, "evaluation": results, "checkpoint": checkpoint,
    }  # fmt: skip


def newest_checkpoint(run: Path) -> Path:
    return max((run / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))


def compare_resumed_run(device: str, work: Path, *overrides: str) -> list[str]:
    """Trains 4 steps in one go and in two; returns the checkpoint files that differ."""
    settings = [*TINY_RUN, f"device={device}", *overrides]
    whole, parts = work / "whole", work / "parts"
    TrainingRun(load_config([], [*settings, "steps=4", f"out={whole}"])).train()
    for steps in (2, 4):
        TrainingRun(load_config([], [*settings, f"steps={steps}", f"out={parts}"])).train()
    return [
        name
        for name in ("model.safetensors", "learner.safetensors")
        if len({_hash_file(newest_checkpoint(run) / name) for run in (whole, parts)}) > 1
    ]


def _hash_file(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
