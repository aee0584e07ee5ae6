"""Trains a base model on demonstrations: supervised, deterministic, on one core.

    recipe ──► tokenizer ──► new demonstrations at every step ──► next-token loss ──► model folder

There is no dataset: demonstrations are drawn from a keyed random stream at every step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from glasshouse import randomness
from glasshouse.learn.microbatches import TrainingSample, pack_microbatches
from glasshouse.models import llama, tokenizer
from glasshouse.models.chat_template import find_turn_end
from glasshouse.models.devices import is_large
from glasshouse.models.logprobs import CompletionBatch, compute_logprobs
from glasshouse.models.policy import Policy, load_policy
from glasshouse.models.shared_prefix import SharedPrefixes, add_gradients
from glasshouse.training.pocket_recipe import Phase, Recipe

HEAD_DIM = 32
"""The smallest head dimension that vLLM supports."""
WARMUP_STEPS = 100
Progress = Callable[[int, float, float], None]
"""Called with (step, loss, seconds since the start of the phase)."""


def build_base_model(
    recipe: Recipe, progress: Progress = lambda step, loss, seconds: None
) -> Policy:
    """Trains a base model by a recipe. The same recipe gives bitwise the same weights."""
    torch.set_num_threads(1)
    if recipe.start_from:
        start = load_policy(recipe.start_from)
        policy = Policy(recipe.name, start.model, start.tokenizer, make_card(recipe))
    else:
        trained = tokenizer.train_tokenizer(
            recipe.tokenizer_texts(), recipe.vocab_size, phrases=recipe.phrases
        )
        policy = Policy(recipe.name, untrained_model(recipe, trained), trained, make_card(recipe))
    steps_done = 0
    for phase in recipe.phases:
        train_phase(policy, recipe, phase, steps_done, progress)
        steps_done += phase.steps
    return policy


def train_phase(
    policy: Policy, recipe: Recipe, phase: Phase, steps_done: int, progress: Progress
) -> None:
    """Trains one phase with a new optimizer, after `steps_done` steps of earlier phases."""
    model = policy.model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=phase.learning_rate,
        betas=(0.9, 0.98),
        weight_decay=0.01,
        foreach=True,
    )
    started = time.perf_counter()
    for step in range(phase.steps):
        for group in optimizer.param_groups:
            group["lr"] = phase.learning_rate * warmup_cosine_factor(step, phase.steps)
        samples = make_batch(recipe, phase, policy, steps_done + step)
        optimizer.zero_grad(set_to_none=True)
        total_loss = compute_gradients(policy, samples, recipe.microbatch_tokens)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        progress(steps_done + step + 1, total_loss, time.perf_counter() - started)
    model.eval()


def compute_gradients(
    policy: Policy,
    samples: Sequence[TrainingSample],
    microbatch_tokens: int,
    *,
    recompute: bool = False,
) -> float:
    """Adds the gradient of the next-token loss (mean over all completion tokens) to the parameters;
    returns the loss. `recompute`: activation checkpointing."""
    model, tokens = policy.model, sum(len(s.tokens) for s in samples)
    shared = None
    if llama.is_supported(model) and is_large(model):  # computes what all prompts start with once
        prompts = [s.prompt for s in samples]
        shared = SharedPrefixes(model, prompts, dtype=policy.dtype, recompute=recompute)
    total_loss = 0.0
    for microbatch in pack_microbatches(samples, microbatch_tokens, count_prompts=not shared):
        pairs = [(s.prompt, s.tokens) for s in microbatch]
        if shared:
            logprobs = shared.completion_logprobs(pairs)
        else:
            batch = CompletionBatch.from_pairs(pairs, policy.device)
            logprobs, _ = compute_logprobs(model, batch, dtype=policy.dtype, recompute=recompute)
        loss = -logprobs.sum() / tokens
        loss.backward()
        total_loss += loss.item()
    if shared:
        parameters = [p for p in model.parameters() if p.requires_grad]
        add_gradients(parameters, shared.parameter_gradients(parameters))
    return total_loss


def untrained_model(recipe: Recipe, tokenizer: Any) -> LlamaForCausalLM:
    """A Llama with random weights and the recipe's architecture."""
    heads = recipe.hidden_size // HEAD_DIM
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden_size,
        num_hidden_layers=recipe.num_layers,
        intermediate_size=recipe.intermediate_size,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=HEAD_DIM,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):  # the weights are drawn on the CPU
        torch.manual_seed(recipe.seed)
        return LlamaForCausalLM(config)


def make_batch(recipe: Recipe, phase: Phase, policy: Policy, step: int) -> list[TrainingSample]:
    """The demonstrations of one step; each ends with the end-of-turn token."""
    rng = randomness.stream("demonstrations", recipe.name, recipe.seed, step)
    end = find_turn_end(policy.tokenizer) or policy.tokenizer.eos_token_id
    samples = []
    for _ in range(recipe.batch_size):
        component, problem, text = phase.draw_demonstration(rng)
        _, prompt = policy.encode_prompt(component.task.messages(problem, component.style))
        tokens = [*policy.tokenizer(text, add_special_tokens=False)["input_ids"], end]
        samples.append(
            TrainingSample(prompt=prompt, tokens=tokens, sampler_logprobs=[], advantage=1.0)
        )
    return samples


def warmup_cosine_factor(step: int, steps: int) -> float:
    """Linear warm-up, then cosine decay to 2 %."""
    warmup = min(1.0, (step + 1) / WARMUP_STEPS)
    return warmup * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def make_card(recipe: Recipe) -> dict[str, Any]:
    """The model card (glasshouse.json); `measure` adds the accuracies."""
    task_options: dict[str, dict[str, Any]] = {}
    mixture = []
    for component in recipe.mixture:
        task = component.task
        options = task.Options.model_validate(dict(component.options)).model_dump(
            mode="json", exclude_unset=True
        )
        defaults = {n: v for n, v in options.items() if n not in task.demonstration_options}
        if defaults:  # of several components of a task and style, the first
            styles = task_options.setdefault(component.task_name, {})
            styles.setdefault(component.style.value, defaults)
        mixture.append(
            {
                "task": component.task_name,
                "style": component.style.value,
                "modes": dict(component.modes),
                "options": options,
                "weight": component.weight,
            }
        )
    return {
        "recipe": recipe.name,
        "seed": recipe.seed,
        "steps": recipe.steps,
        **({"start_from": recipe.start_from} if recipe.start_from else {}),
        "task_options": task_options,
        "mixture": mixture,
    }
