"""Supervised training: any model on demonstrations, or a new model built from a recipe. It can be killed at any time
and resumed bit for bit.

    recipe ──► OUT.training/  settings.json, checkpoints/step-N   while it trains
           ──► OUT/           a model folder, once it is finished

There is no dataset: demonstrations are drawn from a keyed random stream at every step, so what a step computes depends
only on the recipe and its number. A signal ends a step before its update; complete steps are saved.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from glasshouse import randomness
from glasshouse.config.loading import merge_layers, resolve_layers
from glasshouse.config.schema import Config
from glasshouse.errors import ConfigError, GlasshouseError, ModelError, did_you_mean
from glasshouse.files import (
    check_output_folder,
    read_regular_file,
    write_checksums,
    write_json,
    write_text,
)
from glasshouse.kernel.small_llama import KernelAdamW, SmallLlama, clip_gradients
from glasshouse.learn.learner_state import LearnerState, collect_tensors, restore_tensors
from glasshouse.learn.microbatches import TrainingSample, pack_microbatches
from glasshouse.models import llama
from glasshouse.models.chat_template import find_turn_end
from glasshouse.models.logprobs import CompletionBatch, compute_logprobs
from glasshouse.models.policy import (
    Policy,
    load_configured_policy,
    load_policy,
    read_card,
    save_policy,
)
from glasshouse.models.shared_prefix import SharedPrefixes
from glasshouse.models.tokenizer import train_tokenizer
from glasshouse.runs.checkpoints import (
    Snapshot,
    newest_checkpoint,
    prune_checkpoints,
    read_checkpoint,
    write_checkpoint,
)
from glasshouse.runs.run_directory import acquire_lock
from glasshouse.terminal import make_console, terminal_safe
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
    override is then `steps`.

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
        loaded = loaded.with_steps(config.steps) if merge_layers([overrides]) else loaded
        loaded = loaded.model_copy(update={"batch_size": batch_size or loaded.batch_size})
    card = make_card(loaded)
    if model:  # what the card of the model says about its origin is kept
        card |= {
            "start_from": model,
            "batch_size": loaded.batch_size,
            "learning_rate": config.learn.learning_rate,
            "lora_rank": config.learn.lora_rank,
            **{key: value for key, value in read_card(model).items() if key == "packaged_model"},
        }
    started, last_loss = time.monotonic(), math.nan
    console = make_console() if progress else None
    line_every = 10 if model else 100

    def show(text: str) -> None:
        if console:
            console.print(terminal_safe(text), soft_wrap=True, markup=False)

    def load() -> Policy:
        torch.set_num_threads(config.threads)
        if not model:
            return start_policy(loaded, card)
        return replace(load_configured_policy(config, training=True), card=card)

    def report(step: int, loss: float) -> None:
        nonlocal last_loss
        last_loss = loss
        if math.isnan(loss) and step:
            show(f"step {step} of {loaded.steps}  resumed")
        elif step and (step % line_every == 0 or step == loaded.steps):
            show(f"step {step} of {loaded.steps}  loss {loss:.3f}")

    def finish(policy: Policy) -> str:
        if not model:
            card["measured"] = []
            for entry in loaded.measured_mixture:
                result = measure_entry(policy, entry)
                card["measured"].append(result)
                rates = f"sampled {result['sampled']:.3f}  greedy {result['greedy']:.3f}"
                show(f"{entry.task:>15} {entry.style.value:<6}  {rates}")
        return render_card(policy)

    trained = f"LoRA of rank {config.learn.lora_rank}" if config.learn.lora_rank else "all weights"
    start = f"{model} ({trained})" if model else loaded.start_from or "random weights"
    show(f"{start}: {loaded.steps} steps of {loaded.batch_size} → {out}")
    train_on_demonstrations(
        loaded,
        load,
        Path(out),
        describe_settings(model, loaded, config),
        recompute=config.learn.activation_checkpointing,
        save_every=save_every or (SAVE_EVERY if model else SAVE_BUILD_EVERY),
        report=report,
        finish=finish,
    )
    seconds = time.monotonic() - started
    return SftResult(path=Path(out), steps=loaded.steps, loss=last_loss, seconds=seconds)


def resolve_settings(model: str, overrides: Mapping[str, Any] | Sequence[str]) -> Config:
    """The configuration of a supervised training: its own defaults, then the overrides."""
    given = merge_layers([overrides])
    keys = {f"learn.{key}" for key in given.get("learn", {})} | (given.keys() - {"learn"})
    used = USED_KEYS if model else {"steps"}
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
SETTINGS = "settings.json"
StepReport = Callable[[int, float], None]
"""Called with the number of completed steps and the loss of the last one."""


def train_on_demonstrations(
    recipe: Recipe,
    load: Callable[[], Policy],
    out: Path,
    settings: dict[str, Any],
    *,
    recompute: bool = False,
    save_every: int = 20,
    report: StepReport = lambda step, loss: None,
    finish: Callable[[Policy], str],
) -> None:
    """Train the policy that `load` returns and write it to the folder `out`, with a README of the text that
    `finish` returns. Continue a training of the same settings that was interrupted; raise
    KeyboardInterrupt after the last complete step was saved. `recompute`: activation checkpointing."""
    check_output_folder("--out", out.parent)
    if out.exists():
        raise ModelError(f"--out {out} exists; choose another name or delete it.")
    work = out.with_name(f"{out.name}.training")
    work.mkdir(parents=True, exist_ok=True)
    with acquire_lock(work):
        _check_settings(work, settings)
        try:
            policy = load()
        except GlasshouseError:
            if not (work / SETTINGS).exists():  # leave nothing behind for another --out
                shutil.rmtree(work)
            raise
        write_json(work / SETTINGS, settings)
        kernel = llama.open_kernel(policy.model, policy.dtype)
        optimizer = make_optimizer(policy, recipe, kernel)
        step = saved = _restore(work, policy, optimizer)
        report(step, math.nan)
        with Interruption(limits_time=False) as interruption:
            try:
                while step < recipe.steps:
                    if recipe.lr_schedule == "restarts" and recipe.phase_at(step)[1] == 0:
                        optimizer = make_optimizer(policy, recipe, kernel)
                    with interruption.interruptible():
                        loss = train_step(policy, kernel, optimizer, recipe, recompute, step)
                    optimizer.step()  # from here to the next step, a signal waits
                    step += 1
                    if step % save_every == 0 and step < recipe.steps:
                        _save(work, policy, optimizer, step)
                        saved = step
                    report(step, loss)
                with interruption.interruptible():
                    readme = finish(policy)
                _write_model(work, policy, readme, out)
            except (Interrupted, ForcedStop, KeyboardInterrupt) as stop:
                if step > saved and not isinstance(stop, ForcedStop):
                    _save(work, policy, optimizer, step)
                raise KeyboardInterrupt from None
    shutil.rmtree(work)


def start_policy(recipe: Recipe, card: dict[str, Any]) -> Policy:
    """The model that a recipe starts from: another model, or random weights and a new tokenizer."""
    if recipe.start_from:
        start = load_policy(recipe.start_from)
        return Policy(recipe.name, start.model, start.tokenizer, card)
    tokenizer = train_tokenizer(recipe.tokenizer_texts(), recipe.vocab_size, phrases=recipe.phrases)
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


def make_optimizer(policy: Policy, recipe: Recipe, kernel: SmallLlama | None) -> torch.optim.AdamW:
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    return (KernelAdamW if kernel else torch.optim.AdamW)(
        parameters, betas=recipe.betas, weight_decay=recipe.weight_decay, foreach=True
    )


def train_step(
    policy: Policy,
    kernel: SmallLlama | None,
    optimizer: torch.optim.Optimizer,
    recipe: Recipe,
    recompute: bool,
    step: int,
) -> float:
    """Compute the clipped gradient of one batch of demonstrations; return its loss."""
    learning_rate = recipe.learning_rate_at(step)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.zero_grad(set_to_none=True)
    samples = make_batch(recipe, policy, step)
    parameters, limit = optimizer.param_groups[0]["params"], recipe.max_grad_norm or math.inf
    if kernel:
        loss = compute_kernel_gradients(kernel, parameters, samples)
        norm = clip_gradients(kernel.library, parameters, limit)
    else:
        loss = compute_gradients(policy, samples, recipe.microbatch_tokens, recompute=recompute)
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit).item()
    if not math.isfinite(norm):
        raise ConfigError(
            f"The gradient is not finite in step {step + 1}. Lower learn.learning_rate (now "
            f"{learning_rate:g})."
        )
    return loss


def make_batch(recipe: Recipe, policy: Policy, step: int) -> list[TrainingSample]:
    """The demonstrations of one step; each ends with the end-of-turn token."""
    phase, _ = recipe.phase_at(step)
    rng = randomness.stream("demonstrations", recipe.name, recipe.seed, step)
    end = find_turn_end(policy.tokenizer) or policy.tokenizer.eos_token_id
    samples = []
    for _ in range(recipe.batch_size):
        entry, problem, text = phase.draw_demonstration(rng)
        _, prompt = policy.encode_prompt(entry.built_task.messages(problem, entry.style))
        tokens = [*policy.tokenizer(text, add_special_tokens=False)["input_ids"], end]
        samples.append(
            TrainingSample(prompt=prompt, tokens=tokens, sampler_logprobs=[], advantage=1.0)
        )
    return samples


def compute_kernel_gradients(
    kernel: SmallLlama, parameters: Sequence[Any], samples: Sequence[TrainingSample]
) -> float:
    """The same as `compute_gradients`, by the kernel for small models."""
    kernel.load()
    groups: dict[tuple[int, ...], list[Sequence[int]]] = {}
    for sample in samples:
        groups.setdefault(sample.prompt, []).append(sample.tokens)
    tape, tokens = kernel.logprobs([*groups.items()]), sum(len(s.tokens) for s in samples)
    grads = [np.full(len(numbers), -1 / tokens, np.float32) for numbers in tape.logprobs]
    for flat in kernel.gradients(tape, grads):
        values = kernel.split(flat)
        for parameter in parameters:
            value = values[id(parameter)]
            parameter.grad = value if parameter.grad is None else parameter.grad.add_(value)
    return -math.fsum(number for numbers in tape.logprobs for number in numbers.tolist()) / tokens


def compute_gradients(
    policy: Policy,
    samples: Sequence[TrainingSample],
    microbatch_tokens: int,
    *,
    recompute: bool = False,
) -> float:
    """Compute the gradient of the next-token loss (mean over all completion tokens); return the loss."""
    model, tokens = policy.model, sum(len(s.tokens) for s in samples)
    shared = None
    if llama.is_supported(model):
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
        if shared:
            shared.backward(loss)
        else:
            loss.backward()
        total_loss += loss.item()
    if shared:
        gradients = shared.parameter_gradients()
        for parameter, gradient in zip(shared.parameters, gradients, strict=True):
            parameter.grad = gradient
    return total_loss


# --- files ----------------------------------------------------------------------------------------


def _check_settings(work: Path, settings: dict[str, Any]) -> None:
    """Raise if the folder holds a training with other settings."""
    file = work / SETTINGS
    if not file.exists():
        return
    try:
        saved = json.loads(read_regular_file(file))
        if not isinstance(saved, dict):
            raise ValueError("not an object")
    except (OSError, ValueError, RecursionError):
        raise ModelError(f"{file} is damaged. Delete {work} to start again.") from None
    for key, value in settings.items():
        if saved.get(key) != value:
            old, new = (str(v) if len(str(v)) < 40 else "…" for v in (saved.get(key), value))
            raise ModelError(
                f"{work} holds an interrupted training with another {key} ({old}, now {new}). Repeat its "
                "command to continue it, delete it to start again, or choose another --out."
            )


def _save(work: Path, policy: Policy, optimizer: torch.optim.Optimizer, step: int) -> None:
    has_adapters = hasattr(policy.model, "peft_config")
    tensors = collect_tensors(policy.model, optimizer)
    snapshot = Snapshot(
        state={"step": step, "reward": None, "reason": "supervised"},
        weights={} if has_adapters else {n: w.cpu() for n, w in policy.weights().items()},
        learner={name: tensor.contiguous() for name, tensor in tensors.items()},
        save_model=lambda folder: save_policy(policy, folder),
    )
    write_checkpoint(work / "checkpoints", snapshot)
    prune_checkpoints(work / "checkpoints", ("previous", "last"))


def _restore(work: Path, policy: Policy, optimizer: torch.optim.Optimizer) -> int:
    """Continue from the newest valid checkpoint; return its step, 0 without one."""
    checkpoint, _ = newest_checkpoint(work / "checkpoints")
    if checkpoint is None:
        return 0
    _, weights, tensors = read_checkpoint(checkpoint.path)
    if not hasattr(policy.model, "peft_config"):
        policy.load_weights(weights)
    restore_tensors(policy.model, optimizer, LearnerState(checkpoint.step, tensors))
    return checkpoint.step


def _write_model(work: Path, policy: Policy, readme: str, out: Path) -> None:
    """Write the model folder beside the checkpoints and rename it to OUT."""
    folder = work / "model"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    save_policy(policy, folder)
    write_text(folder / "README.md", readme)
    write_checksums(folder)
    os.rename(folder, out)
