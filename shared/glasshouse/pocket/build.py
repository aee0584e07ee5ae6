"""Building a base model from demonstrations: supervised learning, seeded, on one core.

    recipe ──► tokenizer ──► demonstrations, new ones each step ──► next-token loss ──► model folder

What was removed from the textbook: a data set. Demonstrations are drawn from a keyed stream, so
that no two steps see the same ones and nothing has to be stored.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from glasshouse import randomness
from glasshouse.learn.learner import Sample, pack
from glasshouse.models import Policy, load, tokenizer
from glasshouse.models.logprobs import Batch, logprobs
from glasshouse.pocket.recipe import Phase, Recipe

HEAD = 32
"""Head dimension; vLLM serves no smaller one."""
MICRO_TOKENS = 1024
"""What stays in a core's cache: larger passes were half as fast."""
WARMUP = 100
Progress = Callable[[int, float, float], None]
"""(step, loss, seconds since the phase began)"""


def build(recipe: Recipe, progress: Progress = lambda step, loss, seconds: None) -> Policy:
    """A base model as the recipe says; the same recipe gives the same bits."""
    torch.set_num_threads(1)
    if recipe.start:
        begun = load(recipe.start)
        policy = Policy(recipe.name, begun.model, begun.tokenizer, card(recipe))
    else:
        words = tokenizer.train(recipe.texts(), recipe.vocabulary)
        policy = Policy(recipe.name, blank(recipe, words), words, card(recipe))
    done = 0
    for phase in recipe.phases:
        train(policy, recipe, phase, done, progress)
        done += phase.steps
    return policy


def train(policy: Policy, recipe: Recipe, phase: Phase, done: int, progress: Progress) -> None:
    """One phase, with an optimizer of its own; `done` steps went before."""
    model = policy.model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=phase.lr, betas=(0.9, 0.98), weight_decay=0.01, foreach=True
    )
    started = time.perf_counter()
    for step in range(phase.steps):
        for group in optimizer.param_groups:
            group["lr"] = phase.lr * rate(step, phase.steps)
        samples = demonstrations(recipe, phase, policy, done + step)
        tokens = sum(len(s.tokens) for s in samples)
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for part in pack(samples, MICRO_TOKENS):
            batch = Batch.of([(s.prompt, s.tokens) for s in part])
            loss = -logprobs(model, batch)[0].sum() / tokens
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        progress(done + step + 1, total, time.perf_counter() - started)
    model.eval()


def blank(recipe: Recipe, words: Any) -> LlamaForCausalLM:
    """An untrained Llama of the recipe's shape."""
    heads = recipe.hidden // HEAD
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=recipe.hidden,
        num_hidden_layers=recipe.layers,
        intermediate_size=recipe.mlp,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=HEAD,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=words.pad_token_id,
        eos_token_id=words.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed)
        return LlamaForCausalLM(config)


def demonstrations(recipe: Recipe, phase: Phase, policy: Policy, step: int) -> list[Sample]:
    """One step's batch; the completion ends with the end-of-turn token."""
    rng = randomness.stream("demonstrations", recipe.name, recipe.seed, step)
    samples = []
    for _ in range(recipe.batch):
        ingredient, problem, text = phase.draw(rng)
        _, prompt = policy.prompt(ingredient.made.messages(problem, ingredient.style))
        tokens = [*policy.tokenizer(text)["input_ids"], policy.tokenizer.eos_token_id]
        samples.append(Sample(prompt=prompt, tokens=tokens, logprobs=[], advantage=1.0))
    return samples


def rate(step: int, steps: int) -> float:
    """Warm-up, then a cosine down to a fiftieth."""
    rising = min(1.0, (step + 1) / WARMUP)
    return rising * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def card(recipe: Recipe) -> dict[str, Any]:
    """What the model folder says of itself; `measure` adds the accuracies."""
    ranges: dict[str, dict[str, Any]] = {}
    shown = []
    for i in recipe.ingredients:
        options = i.made.Options.model_validate(dict(i.options)).model_dump(
            mode="json", exclude_unset=True
        )
        asked = {name: value for name, value in options.items() if name not in i.made.teaching}
        if asked:
            ranges.setdefault(i.task, {}).setdefault(i.style.value, asked)  # the first of several
        shown.append(
            {
                "task": i.task,
                "style": i.style.value,
                "modes": dict(i.modes),
                "options": options,
                "weight": i.weight,
            }
        )
    return {
        "recipe": recipe.name,
        "seed": recipe.seed,
        "steps": recipe.steps,
        **({"start": recipe.start} if recipe.start else {}),
        "ranges": ranges,
        "shown": shown,
    }
