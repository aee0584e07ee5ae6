"""Ranks of a sharded learner for `test_sharded.py`, in processes that exchange tensors through gloo.

They are forked, so that they need not import torch again. Each writes its results to a file.
"""

from __future__ import annotations

import json
import multiprocessing
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from glasshouse.config.schema import LearnConfig
from glasshouse.errors import RunError
from glasshouse.learn.learner import Learner, LearnerState
from glasshouse.learn.microbatches import TrainingSample
from glasshouse.learn.sharded import ShardedLearner
from glasshouse.models.adapters import add_adapters
from glasshouse.models.policy import Policy

CASES: dict[str, dict[str, Any]] = {
    "llama": {"tied": True},
    "qwen3": {
        "learn": {
            "kl_coef": 0.1, "entropy_coef": 0.05, "max_grad_norm": 0.0, "activation_checkpointing": True,
        },
    },
    "gpt2": {"learn": {"kl_coef": 0.1, "activation_checkpointing": True}},
    "lora": {"lora_rank": 4, "learn": {"kl_coef": 0.1}},
}  # fmt: skip
DEVICE = torch.device("cpu")
STEPS = 2


def make_policy(case: str) -> Policy:
    """A model whose dimensions two and three ranks cannot divide equally."""
    options = CASES[case]
    torch.manual_seed(0)
    if case == "gpt2":
        other = GPT2Config(n_embd=36, n_layer=2, n_head=6, vocab_size=67, n_positions=64)
        return Policy(case, GPT2LMHeadModel(other).eval(), None, {})
    config_class = Qwen3Config if case == "qwen3" else LlamaConfig
    config = config_class(
        hidden_size=36, intermediate_size=50, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, head_dim=6, vocab_size=67, max_position_embeddings=64,
        tie_word_embeddings=options.get("tied", False), pad_token_id=0,
    )  # fmt: skip
    model = (Qwen3ForCausalLM if case == "qwen3" else LlamaForCausalLM)(config)
    policy = Policy(case, model.eval(), None, {})
    if rank := options.get("lora_rank"):
        policy = add_adapters(policy, rank, seed=0)
    return policy


def make_samples(groups: int = 3) -> list[TrainingSample]:
    """Groups of four completions of 1 to 8 tokens; the advantage of the first is 0."""
    draw = random.Random(0)
    samples = []
    for _ in range(groups):
        prompt = tuple(draw.randrange(1, 67) for _ in range(draw.randrange(3, 9)))
        for row in range(4):
            tokens = tuple(draw.randrange(1, 67) for _ in range(draw.randrange(1, 9)))
            sample = TrainingSample(
                prompt=prompt, tokens=tokens, advantage=draw.uniform(-1, 1) if row else 0.0,
                sampler_logprobs=tuple(-5 * draw.random() for _ in tokens),
            )  # fmt: skip
            samples.append(sample)
    return samples


def learn_config(case: str) -> LearnConfig:
    options = {"microbatch_tokens": 16, "learning_rate": 1e-3, **CASES[case].get("learn", {})}
    return LearnConfig(**options)


def make_sharded(case: str) -> ShardedLearner:
    return ShardedLearner(
        make_policy(case), learn_config(case), device=DEVICE, max_tokens=8, steps=STEPS
    )


def train_alone(case: str, folder: Path) -> None:
    """Trains without sharding and saves the weights and metrics of each step."""
    learner = Learner(make_policy(case), learn_config(case), max_tokens=8, steps=STEPS)
    metrics = []
    for step in range(STEPS):
        metrics.append(learner.update(make_samples()))
        tensors = {str(n): p.detach().clone() for n, p in enumerate(learner.parameters)}
        torch.save((metrics, tensors), folder / f"{case}-{step + 1}.pt")


def compare(
    learner: ShardedLearner, metrics: list[dict[str, float]], folder: Path
) -> dict[str, Any]:
    """The largest differences from the learner that was not sharded."""
    expected, tensors = torch.load(folder / f"{learner.policy.name}-{learner.version}.pt")
    whole = [tensor.clone() for tensor in learner.whole_tensors()]
    return {
        "weights": max((a - tensors[str(n)]).abs().max().item() for n, a in enumerate(whole)),
        "metrics": max(
            abs(new[name] - old[name])
            for old, new in zip(expected[-len(metrics) :], metrics, strict=True)
            for name in old
        ),
        "same_metrics": set(metrics[-1]) == set(expected[-1]),
        "held": sum(p.to_local().numel() for p in learner.policy.model.parameters())
        / sum(p.numel() for p in learner.policy.model.parameters()),
    }


def equality(folder: Path) -> dict[str, Any]:
    """Trains every case; saves a checkpoint after step 1."""
    results = {}
    for case in CASES:
        learner, metrics = make_sharded(case), []
        for step in range(STEPS):
            metrics.append(learner.update(make_samples()))
            if step == 0:
                save(learner, folder / f"{case}-checkpoint")
        results[case] = compare(learner, metrics, folder)
    return results


def save(learner: ShardedLearner, checkpoint: Path) -> None:
    weights = {
        name: parameter.detach().full_tensor().contiguous()
        for name, parameter in learner.policy.model.named_parameters()
    }
    if dist.get_rank() == 0:
        checkpoint.mkdir()
        save_file(weights, checkpoint / "model.safetensors")
    dist.barrier()
    learner.state().save_shards(checkpoint)


def resume(folder: Path) -> dict[str, Any]:
    """Continues from the checkpoints of two ranks."""
    results = {}
    for case in CASES if dist.get_world_size() > 1 else ("llama",):
        learner = make_sharded(case)
        learner.restore(LearnerState(1, {}, folder=folder / f"{case}-checkpoint"))
        results[case] = compare(learner, [learner.update(make_samples())], folder)
    return results


def edges(folder: Path) -> dict[str, Any]:
    """One prompt for two ranks; no sample to learn from; a loss that is not a number."""
    learner, alone = make_sharded("llama"), Learner(
        make_policy("llama"), learn_config("llama"), max_tokens=8, steps=STEPS
    )  # fmt: skip
    one, none = make_samples(1), [s for s in make_samples() if not s.advantage]
    losses = [[x.update(samples)["loss"] for samples in (one, none)] for x in (learner, alone)]
    bad = make_samples()
    bad[-1] = TrainingSample(
        prompt=bad[-1].prompt, tokens=bad[-1].tokens, sampler_logprobs=bad[-1].sampler_logprobs,
        advantage=float("nan"),
    )  # fmt: skip
    return {
        "loss": max(abs(a - b) for a, b in zip(*losses, strict=True)),
        "not a number": error_text(learner, bad),
    }


def error_text(learner: Learner, samples: list[TrainingSample]) -> str:
    try:
        learner.update(samples)
    except RunError as error:
        return str(error)
    return ""


def run_rank(
    job: Callable[[Path], dict[str, Any]], rank: int, world_size: int, folder: Path
) -> None:
    store = dist.FileStore(str(folder / f"store-{job.__name__}-{world_size}"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    results = job(folder)
    (folder / f"{job.__name__}-{world_size}-{rank}.json").write_text(json.dumps(results))
    dist.barrier()


def run_jobs(folder: Path) -> None:
    """Runs every job on its number of ranks; raises if a rank fails."""
    for case in CASES:
        train_alone(case, folder)
    fork = multiprocessing.get_context("fork")
    for job, world_size in ((equality, 2), (resume, 1), (resume, 3), (edges, 2)):
        ranks = [
            fork.Process(target=run_rank, args=(job, rank, world_size, folder))
            for rank in range(world_size)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
            assert process.exitcode == 0, f"{job.__name__} on {world_size} ranks failed"
