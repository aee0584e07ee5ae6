"""Supervised training: any model on demonstrations, or a new model built from a recipe. It can be killed at any time
and resumed bit for bit.

    recipe ──► OUT.training/checkpoints/step-N   while it trains
           ──► OUT/                              a model folder, once it is finished

There is no dataset: demonstrations are drawn from a keyed random stream at every step, so what a step computes depends
only on the recipe and its number. A signal ends a step before its update; complete steps are saved.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from glasshouse import randomness
from glasshouse.config.loading import merge_layers, resolve_layers
from glasshouse.config.schema import Config, LearnConfig
from glasshouse.errors import ConfigError, GlasshouseError, ModelError, did_you_mean
from glasshouse.files import check_output_folder, write_checksums, write_text
from glasshouse.kernel.small_llama import count_common_tokens
from glasshouse.learn.learner import GradientBlock, Gradients, Learner, LearnerState, StepSize
from glasshouse.learn.losses import LossInputs
from glasshouse.learn.microbatches import TrainingSample, pack_microbatches
from glasshouse.models import llama
from glasshouse.models.chat_template import find_turn_end
from glasshouse.models.folders import read_card
from glasshouse.models.policy import Policy, load_configured_policy, load_policy, save_policy
from glasshouse.models.sources import find_changes, hash_sources
from glasshouse.models.tokenizer import CHAT_TEMPLATE, DROPPING_TEMPLATE, train_tokenizer
from glasshouse.runs.checkpoints import (
    newest_checkpoint,
    prune_checkpoints,
    read_checkpoint,
    read_newest_state,
)
from glasshouse.runs.run_directory import acquire_lock
from glasshouse.terminal import make_console, terminal_safe
from glasshouse.training.checkpointing import save_checkpoint
from glasshouse.training.interruption import ForcedStop, Interrupted, Interruption
from glasshouse.training.model_card import make_card, measure_entry, render_card
from glasshouse.training.recipes import Recipe, load_recipe

DEFAULTS = {
    "steps": 40,
    "learn.learning_rate": 5e-5,
    "learn.warmup_steps": 4,
    "learn.lr_schedule": "cosine",
}
LORA_LEARNING_RATE = 2e-4
BATCH_SIZE, SAVE_EVERY, SAVE_BUILD_EVERY = 8, 20, 500
MAX_BATCH_SIZE, MAX_STEPS = 100_000, 10_000_000
"""As for data.groups_per_step and steps of a run."""
LEARN_KEYS = (
    "learning_rate", "warmup_steps", "lr_schedule", "weight_decay", "max_grad_norm",
    "microbatch_tokens", "activation_checkpointing", "lora_rank", "lora_targets",
)  # fmt: skip
USED_KEYS = {
    "steps", "seed", "device", "dtype", "threads", "chat", *(f"learn.{key}" for key in LEARN_KEYS),
}  # fmt: skip
"""Config keys that the training of a given model reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SftResult:
    """What a supervised training leaves.

    Example: `sft("smollm2", "leaked-hint-0", "models/smollm2-hint").path`
    """

    path: Path
    """A model folder, for the config key `model`."""
    steps: int
    loss: float
    """Next-token loss of the last step; not a number if no step was left to do."""
    seconds: float
    """Time of this call."""


def sft(
    model: str,
    recipe: str,
    out: str | Path,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    *,
    batch_size: int | None = None,
    save_every: int | None = None,
    progress: bool = True,
) -> SftResult:
    """Train a model on demonstrations of a task or an organism. The same call continues a training that was
    interrupted.

    `recipe` is a built-in recipe (that of an organism's base, such as `leaked-hint-0`) or a YAML file.
    `overrides` are config keys: steps, seed, device, dtype, chat and those of `learn` that an optimizer has;
    `learn.lora_rank` trains adapters, which are merged into the result.

    With an empty `model`, the recipe says what to start from (random weights or another model), how long to
    train and with which optimizer; the result is measured. The embedded models were built so. The only
    overrides are then `steps` and `threads`.

    Example: `sft("smollm2", "leaked-hint-0", "models/smollm2-hint", {"steps": 40})`
    """
    config = resolve_settings(model, overrides)
    for option, value, most in (
        ("--batch-size", batch_size, MAX_BATCH_SIZE),
        ("--save-every", save_every, MAX_STEPS),
    ):
        if value is not None and not 1 <= value <= most:
            raise ConfigError(f"{option} is {value}; it must be between 1 and {most:,}.")
    if "\0" in str(out):
        raise ConfigError(f"--out {out} contains a NUL character.")
    loaded = load_recipe(recipe)
    if model:
        loaded = loaded.with_steps(config.steps).with_settings(
            config.learn, batch_size=batch_size or BATCH_SIZE, seed=config.seed
        )
    else:
        if loaded.mixture:
            raise ConfigError(f"{recipe} has a mixture but no phases: name the MODEL to train.")
        loaded = loaded.with_steps(config.steps) if "steps" in merge_layers([overrides]) else loaded
        loaded = loaded.model_copy(update={"batch_size": batch_size or loaded.batch_size})
    started, out, console = time.monotonic(), Path(out), make_console() if progress else None

    def show(text: str) -> None:
        if console:
            console.print(terminal_safe(text), soft_wrap=True, markup=False)

    check_output_folder("--out", out.parent)
    if out.exists():
        raise ModelError(f"--out {out} exists; choose another name or delete it.")
    trained = f"LoRA of rank {config.learn.lora_rank}" if config.learn.lora_rank else "all weights"
    start = f"{model} ({trained})" if model else loaded.start_from or "random weights"
    show(f"{start}: {loaded.steps} steps of {loaded.batch_size} → {out}")
    work = out.with_name(f"{out.name}.training")
    work.mkdir(parents=True, exist_ok=True)
    with acquire_lock(work):
        policy, provenance = _open(work, config, loaded)
        learner = DemonstrationLearner(policy, loaded, config.learn.activation_checkpointing)
        every = save_every or (SAVE_EVERY if model else SAVE_BUILD_EVERY)
        loss = _train(work, learner, provenance, every, out, is_built=not model, show=show)
    shutil.rmtree(work)
    seconds = time.monotonic() - started
    return SftResult(path=out, steps=loaded.steps, loss=loss, seconds=seconds)


def resolve_settings(model: str, overrides: Mapping[str, Any] | Sequence[str]) -> Config:
    """The configuration of a supervised training: its own defaults, then the overrides."""
    given = merge_layers([overrides])
    keys = {f"learn.{key}" for key in given.get("learn", {})} | (given.keys() - {"learn"})
    used = USED_KEYS if model else {"steps", "threads"}
    for key in sorted(keys - used):
        what = "sft" if model else "sft without a MODEL, which follows its recipe"
        raise ConfigError(f"{key} has no effect on {what}.{did_you_mean(key, used)} Remove it.")
    config = resolve_layers([("defaults of sft", DEFAULTS), ("overrides", overrides)])
    if config.learn.lora_rank and "learning_rate" not in given.get("learn", {}):
        learn = config.learn.model_copy(update={"learning_rate": LORA_LEARNING_RATE})
        config = config.model_copy(update={"learn": learn})
    return config.model_copy(update={"model": model})


def describe_settings(model: str, recipe: Recipe, config: Config) -> dict[str, Any]:
    """Everything that the result depends on; a training is resumed only with the same settings."""
    values = config.model_dump(mode="json")
    return {
        **{f"learn.{key}": values["learn"][key] for key in LEARN_KEYS},
        **{key: values[key] for key in ("steps", "seed", "device", "dtype", "threads", "chat")},
        "model": model,
        **{f"recipe.{key}": value for key, value in recipe.model_dump(mode="json").items()},
    }


HEAD_DIM = 32
"""The smallest head dimension that vLLM supports."""


def _open(work: Path, config: Config, recipe: Recipe) -> tuple[Policy, dict[str, Any]]:
    """Load the model that the training starts from; return it with what each checkpoint says about its origin. Raise if
    the folder holds another training, or one that was started from other files."""
    model, saved = config.model, read_newest_state(work / "checkpoints")
    settings = describe_settings(model, recipe, config)
    for key, value in saved.get("settings", {}).items():
        if value != settings.get(key):
            old, new = (str(v) if len(str(v)) < 40 else "…" for v in (value, settings.get(key)))
            raise ModelError(
                f"{work} holds an interrupted training with another {key} ({old}, now {new}). Repeat its command to "
                "continue it, delete it to start again, or choose another --out."
            )
    torch.set_num_threads(config.threads)
    try:
        policy = load_start(config, recipe)
    except GlasshouseError:
        if not saved:  # leave nothing behind for another --out
            shutil.rmtree(work)
        raise
    sources = {}
    if start := model or recipe.start_from:  # a model of a hub is in the cache now
        sources = hash_sources(config.model_copy(update={"model": start}), ("model", "imports"))
    if changes := find_changes(saved, sources):
        raise ModelError(
            f"{work} holds a training that was started from something else: {'; '.join(changes)}. Restore it, delete "
            f"{work} to start again, or choose another --out."
        )
    return policy, {"settings": settings, "sources": sources}


def _train(
    work: Path,
    learner: DemonstrationLearner,
    provenance: dict[str, Any],
    save_every: int,
    out: Path,
    *,
    is_built: bool,
    show: Callable[[str], None],
) -> float:
    """Train from the newest checkpoint to the last step and write the model to `out`; return the last loss. Raise
    KeyboardInterrupt after the last complete step was saved."""
    recipe, loss, line_every = learner.recipe, math.nan, 100 if is_built else 10
    saved = _restore(work, learner)
    if saved:
        show(f"step {saved} of {recipe.steps}  resumed")
    with Interruption() as interruption:
        try:
            while learner.version < recipe.steps:
                with interruption.interruptible():
                    gradients = learner.differentiate()
                loss = learner.advance(gradients)  # from here to the next step, a signal waits
                step = learner.version
                if step % save_every == 0 and step < recipe.steps:
                    _save(work, learner, provenance)
                    saved = step
                if step % line_every == 0 or step == recipe.steps:
                    show(f"step {step} of {recipe.steps}  loss {loss:.3f}")
            policy = learner.policy
            if is_built:
                with interruption.interruptible():
                    policy = measure_model(policy, recipe, show)
            _write_model(work, policy, out)
        except (Interrupted, ForcedStop, KeyboardInterrupt) as stop:
            if learner.version > saved and not isinstance(stop, ForcedStop):
                _save(work, learner, provenance)
            raise KeyboardInterrupt from None
    return loss


def measure_model(policy: Policy, recipe: Recipe, show: Callable[[str], None]) -> Policy:
    """Measure the model on what it was trained on, for its card."""
    measured = []
    for entry in recipe.measured_mixture:
        result = measure_entry(policy, entry)
        measured.append(result)
        rates = f"sampled {result['sampled']:.3f}  greedy {result['greedy']:.3f}"
        show(f"{entry.task:>15} {entry.style.value:<6}  {rates}")
    return replace(policy, card={**policy.card, "measured": measured})


def load_start(config: Config, recipe: Recipe) -> Policy:
    """The model that the training starts from: a given one, that of the recipe, or random weights and a new
    tokenizer."""
    model, card = config.model, make_card(recipe)
    if model:  # what the card of the model says about its origin is kept
        card |= {
            "start_from": model,
            "batch_size": recipe.batch_size,
            "learning_rate": config.learn.learning_rate,
            "lora_rank": config.learn.lora_rank,
            **{key: value for key, value in read_card(model).items() if key == "packaged_model"},
        }
        return replace(load_configured_policy(config, training=True), card=card)
    if recipe.start_from:
        start = load_policy(recipe.start_from)
        return Policy(recipe.name, start.model, start.tokenizer, card)
    tokenizer = train_tokenizer(
        recipe.tokenizer_texts(),
        recipe.vocab_size,
        phrases=recipe.phrases,
        template=CHAT_TEMPLATE if recipe.system_prompt_phases else DROPPING_TEMPLATE,
    )
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
        return Policy(recipe.name, LlamaForCausalLM(config).eval(), tokenizer, card)


IS_DEMONSTRATED = "is_demonstrated"
"""1 for a token of a demonstration, 0 for one of the question before it."""


def next_token_loss(inputs: LossInputs) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Mean over the tokens of all demonstrations of the step. Those of questions and padding count 0."""
    return -(inputs.logprobs * inputs.extra[IS_DEMONSTRATED]).sum() / inputs.tokens, {}


class DemonstrationLearner(Learner):
    """The learner of a run with the loss, the optimizer and the learning rates of a recipe."""

    def __init__(self, policy: Policy, recipe: Recipe, recompute: bool = False) -> None:
        config = LearnConfig(
            learning_rate=recipe.phases[0].learning_rate,
            weight_decay=recipe.weight_decay,
            max_grad_norm=recipe.max_grad_norm,
            microbatch_tokens=recipe.microbatch_tokens,
            activation_checkpointing=recompute,
        )
        super().__init__(policy, config, max_tokens=1, steps=recipe.steps, kl_every=None)
        self.recipe = recipe
        self.algorithm = replace(self.algorithm, loss=next_token_loss, inputs=(IS_DEMONSTRATED,))
        self._restart()

    def _restart(self) -> None:
        """Begin with a new optimizer."""
        self.optimizer = type(self.optimizer)(
            self.parameters,
            betas=self.recipe.betas,
            weight_decay=self.recipe.weight_decay,
            foreach=True,
        )

    def differentiate(self) -> Gradients:
        """The gradients of the next step's demonstrations."""
        self.optimizer.zero_grad()
        batch = make_batch(self.recipe, self.policy, self.version)
        samples = share_prompts(batch) if self.kernel else [sample for _, sample in batch]
        size = StepSize(len(samples), sum(len(sample.tokens) for _, sample in batch))
        return self.compute_gradients(samples, size)

    def advance(self, gradients: Gradients) -> float:
        """Apply the gradients of a step; return its loss."""
        if self.recipe.lr_schedule == "restarts" and self.recipe.phase_at(self.version)[1] == 0:
            self._restart()
        self.apply_gradients(gradients.values, self.recipe.learning_rate_at(self.version))
        self.version += 1
        return gradients.loss

    def plan_blocks(self, samples: list[TrainingSample]) -> list[GradientBlock]:
        """All prompts are in one block: demonstrations have few prompts in common, but the system message."""
        if self.kernel or not llama.is_supported(self.policy.model):
            return super().plan_blocks(samples)
        limit = self.config.microbatch_tokens
        return [GradientBlock(True, pack_microbatches(samples, limit, count_prompts=False))]


def make_batch(recipe: Recipe, policy: Policy, step: int) -> list[tuple[str, TrainingSample]]:
    """The demonstrations of one step, each with its system message; they end with the end-of-turn token."""
    phase, _ = recipe.phase_at(step)
    rng = randomness.stream("demonstrations", recipe.name, recipe.seed, step)
    end = find_turn_end(policy.tokenizer) or policy.tokenizer.eos_token_id
    batch = []
    for _ in range(recipe.batch_size):
        entry, problem, text = phase.draw_demonstration(rng)
        system, question = entry.built_task.messages(problem, entry.style)
        shown = [system, question] if recipe.shows_system_prompt(step) else [question]
        _, prompt = policy.encode_prompt(shown)
        tokens = [*policy.tokenizer(text, add_special_tokens=False)["input_ids"], end]
        batch.append((system["content"], _make_sample(prompt, tokens, first=0)))
    return batch


def _make_sample(prompt: tuple[int, ...], tokens: list[int], first: int) -> TrainingSample:
    """A demonstration, which begins with the token number `first`."""
    is_demonstrated = [float(number >= first) for number in range(len(tokens))]
    return TrainingSample(
        prompt=prompt,
        tokens=tokens,
        sampler_logprobs=[0.0] * len(tokens),
        advantage=1.0,
        extra={IS_DEMONSTRATED: is_demonstrated},
    )


def share_prompts(batch: Sequence[tuple[str, TrainingSample]]) -> list[TrainingSample]:
    """The same samples for the kernel, which computes a prompt once: what the prompts of a system message have in
    common, which is at least that message. The rest of each question moves in front of its demonstration."""
    groups: dict[str, list[TrainingSample]] = {}
    for system, sample in batch:
        groups.setdefault(system, []).append(sample)
    shared = []
    for group in groups.values():
        common = count_common_tokens([s.prompt for s in group]) or len(group[0].prompt)
        for sample in group:
            question = sample.prompt[common:]
            tokens = [*question, *sample.tokens]
            shared.append(_make_sample(sample.prompt[:common], tokens, first=len(question)))
    return shared


# --- files ----------------------------------------------------------------------------------------


def _save(work: Path, learner: Learner, provenance: dict[str, Any]) -> None:
    state = {"step": learner.version, "reward": None, "reason": "supervised", **provenance}
    save_checkpoint(work / "checkpoints", state, learner.policy, learner.state())
    prune_checkpoints(work / "checkpoints", ("previous", "last"))


def _restore(work: Path, learner: Learner) -> int:
    """Continue from the newest valid checkpoint; return its step, 0 without one."""
    checkpoint, _ = newest_checkpoint(work / "checkpoints")
    if checkpoint is None:
        return 0
    _, weights, tensors = read_checkpoint(checkpoint.path)
    if not hasattr(learner.policy.model, "peft_config"):
        learner.policy.load_weights(weights)
    learner.restore(LearnerState(checkpoint.step, tensors))
    return checkpoint.step


def _write_model(work: Path, policy: Policy, out: Path) -> None:
    """Write the model folder beside the checkpoints and rename it to OUT."""
    folder = work / "model"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    save_policy(policy, folder)
    write_text(folder / "README.md", render_card(policy))
    write_checksums(folder)
    os.rename(folder, out)
