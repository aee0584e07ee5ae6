"""Peak memory of a run by process, phase and part, from the model's configuration: no weights are loaded.

    learn        one update: weights, reference, gradients, AdamW's averages, activations of a microbatch
    generate     the largest batch that `generate.kv_cache_mb` allows
    checkpoint   copies that are made for saving (on a GPU they are in the host's memory)

With `backend: local` one process has all three phases; with `monarch` learners and generators are separate
processes. `glasshouse plan` prints the result, and training refuses to start if it does not fit.

What is kept is counted exactly, in the format in which models are loaded (`models.devices.choose_formats`). What a step
allocates is a formula per matrix of the model; its constants were measured (docs/scale.md has the differences).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from glasshouse import randomness
from glasshouse.config.schema import Config
from glasshouse.errors import ConfigError
from glasshouse.generate.torch_engine import cache_width
from glasshouse.kernel.small_llama import count_common_tokens
from glasshouse.measurement.evaluate import fill_task_options
from glasshouse.models import llama
from glasshouse.models.adapters import check_targets
from glasshouse.models.devices import DTYPES, GB, WEIGHT_DTYPE, available_memory, choose_formats
from glasshouse.models.folders import read_card
from glasshouse.models.policy import (
    Policy,
    choose_device,
    is_bare_config,
    load_empty_model,
    load_tokenizer,
)
from glasshouse.registry import import_modules
from glasshouse.tasks.base import make_task

WEIGHT_BYTES = WEIGHT_DTYPE.itemsize
LEARN, GENERATE, CHECKPOINT = "learn", "generate", "checkpoint"
PARTS = (
    "weights",
    "reference",
    "gradients",
    "optimizer",
    "weight_copies",
    "activations",
    "logits",
    "kv_cache",
)
"""What memory is used for; `weight_copies` are packed, merged or rounded copies of the weights."""
Parts = dict[str, int]
"""Bytes by part."""

SAVED_PER_MATRIX = {"float32": 1.2, "bfloat16": 1.4}
"""Numbers that the backward pass keeps per token, relative to the inputs and outputs of all matrices."""
SAVED_BY_TRANSFORMERS = 1.6
"""The same for transformers' own forward pass."""
SAVED_WITH_FROZEN_BASE = 1.4
"""The same with adapters beside a bfloat16 model, whose matrices need no gradient."""
VLLM_WORK_SPACE = 1_500_000_000
"""Bytes of vLLM's activations and CUDA graphs: a listed value."""
SAMPLED_PROMPTS = 8
DEFAULT_PROMPT_TOKENS = 256
"""Length of a prompt if the model's tokenizer is not available."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """The peak memory of one kind of process."""

    role: str
    """`learner`, `generator`, or `learner and generator`."""
    count: int
    """Processes of this kind."""
    phases: dict[str, Parts]
    """Bytes by phase and part at the peak of the phase."""

    @property
    def peak_phase(self) -> str:
        return max(self.phases, key=lambda phase: sum(self.phases[phase].values()))

    @property
    def peak(self) -> int:
        return sum(self.phases[self.peak_phase].values())

    def describe(self, phase: str) -> str:
        """Example: `learn 1.2 (activations 0.8, weights 0.4)`, in GB"""
        parts = sorted(self.phases[phase].items(), key=lambda item: -item[1])
        sizes = [f"{name.replace('_', ' ')} {_round(part)}" for name, part in parts if part]
        return f"{phase} {_round(sum(self.phases[phase].values()))} ({', '.join(sizes)})"


def _round(size: int) -> str:
    return f"{size / GB:.3f}" if size < GB else f"{size / GB:.1f}"


@dataclass(frozen=True, slots=True)
class PromptLength:
    """Tokens of the longest prompt, and how many of them all prompts have in common."""

    tokens: int = DEFAULT_PROMPT_TOKENS
    common: int = DEFAULT_PROMPT_TOKENS * 3 // 4


class ModelShape:
    """The shapes of a model's tensors.

    Example: `ModelShape(load_empty_model("pocket")).parameters`
    """

    def __init__(self, model: Any) -> None:
        """`model` is that of transformers, without weights."""
        text = model.config.get_text_config()
        self.model, self.layers, self.vocabulary = model, text.num_hidden_layers, text.vocab_size
        self.hidden = int(text.hidden_size)
        self.is_tied = bool(text.tie_word_embeddings)
        self.parameters = sum(p.numel() for p in model.parameters())
        self.largest = max(p.numel() for p in model.parameters())
        self.cache_width = sum(map(cache_width, text.per_layer_config))
        """Numbers in the keys of one token, and as many in its values."""
        ends = (model.get_input_embeddings(), model.get_output_embeddings())
        outside = {id(layer.weight) for layer in ends if layer is not None}
        self.matrices = {
            name.removesuffix(".weight"): p.shape
            for name, p in model.named_parameters()
            if p.ndim > 1 and id(p) not in outside
        }
        experts = getattr(text, "num_experts_per_tok", None) or 1
        self.width = sum(  # a matrix of three dimensions is that of several experts
            sum(shape[-2:]) * (experts if len(shape) == 3 else 1)
            for shape in self.matrices.values()
        )
        """Inputs and outputs of all matrices: what a forward pass computes for a token."""
        if any("q_norm" in name for name, _ in model.named_parameters()):
            queries = ("q_proj", "k_proj")
            self.width += 3 * sum(s[0] for n, s in self.matrices.items() if n.endswith(queries))

    @property
    def head(self) -> int:
        """Parameters of the output layer."""
        return int(self.vocabulary * self.hidden)

    def count_trained(self, config: Config) -> int:
        """Parameters that are trained: all, or those of the adapters."""
        rank, targets = config.learn.lora_rank, config.learn.lora_targets
        if not rank:
            return self.parameters
        check_targets(self.model, targets)
        adapted = (
            shape
            for name, shape in self.matrices.items()
            if len(shape) == 2 and (not targets or name.rpartition(".")[2] in targets)
        )
        return rank * sum(map(sum, adapted))

    def is_llama(self, config: Config) -> bool:
        """Whether our own forward pass computes it, not that of transformers."""
        is_held_whole = choose_formats(config, self.parameters).weights == WEIGHT_DTYPE
        plain = not config.learn.lora_rank or is_held_whole
        return llama.is_llama_family(self.model.config) and plain


def estimate_memory(shape: ModelShape, config: Config, prompt: PromptLength) -> list[ProcessMemory]:
    """The memory of each kind of process of a run with such prompts. Completions have `generate.max_tokens` tokens."""
    learner = estimate_learner(shape, config, prompt)
    generator = estimate_generator(shape, config, prompt)
    if config.backend == "monarch":
        return [
            ProcessMemory(role="learner", count=config.monarch.learners, phases=learner),
            ProcessMemory(
                role="generator", count=config.monarch.generators, phases={GENERATE: generator}
            ),
        ]
    if not config.generate.device:  # the generator uses the learner's weights
        if config.generate.engine == "vllm" and not config.generate.vllm.sleep:  # keeps its memory
            learner = {phase: _add(parts, generator) for phase, parts in learner.items()}
        generator = _add(generator | {"weights": 0}, _kept(shape, config))
    phases = {**learner, GENERATE: generator}
    return [ProcessMemory(role="learner and generator", count=1, phases=phases)]


def _kept(shape: ModelShape, config: Config) -> Parts:
    """What the learner holds between updates: weights, the starting policy, gradients, AdamW's two averages. It is
    divided among the ranks of a sharded learner."""
    trained, ranks = shape.count_trained(config), _ranks(config)
    formats = choose_formats(config, shape.parameters)
    adapters = trained if config.learn.lora_rank else 0
    reference = formats.reference.itemsize if formats.reference else 0
    parts = {
        "weights": formats.weights.itemsize * shape.parameters + WEIGHT_BYTES * adapters,
        "reference": reference * shape.parameters,
        "gradients": WEIGHT_BYTES * trained,
        "optimizer": 2 * WEIGHT_BYTES * trained,
    }
    return dict.fromkeys(PARTS, 0) | {part: size // ranks for part, size in parts.items()}


def estimate_learner(shape: ModelShape, config: Config, prompt: PromptLength) -> dict[str, Parts]:
    """An update has two peaks: when the backward pass begins, and when all gradients are there."""
    learn, itemsize = config.learn, DTYPES[config.dtype].itemsize
    shards = learn.sharding == "fsdp"
    is_llama = shape.is_llama(config) and not shards
    # the gradients of microbatches are added up without another tensor of their size
    in_place = shards or is_llama
    kept, trained = _kept(shape, config), shape.count_trained(config)
    tokens, predicted, rows = _microbatch(shape, config, prompt, is_llama)
    saved = SAVED_PER_MATRIX[config.dtype] if is_llama else SAVED_BY_TRANSFORMERS
    if choose_formats(config, shape.parameters).weights != WEIGHT_DTYPE:
        saved = SAVED_WITH_FROZEN_BASE
    activations = round(itemsize * saved * tokens * shape.width)
    if learn.activation_checkpointing:  # the input of each layer, and one layer at a time
        activations = itemsize * shape.layers * tokens * shape.hidden + activations // shape.layers
    elif is_llama:  # completions have the keys and values of their prompts beside them
        activations += itemsize * rows * prompt.tokens * 2 * shape.cache_width
    copies = _copies(shape, config, is_llama=is_llama)
    head = 0 if learn.lora_rank else WEIGHT_BYTES * shape.head
    logits = WEIGHT_BYTES * predicted * shape.vocabulary
    begin = kept | {
        "activations": activations,
        "logits": round(logits * (1.5 if itemsize == 2 else 1)) if is_llama else 3 * logits,
        "weight_copies": copies if in_place and itemsize == 4 else 2 * copies,
    }
    if in_place and rows == config.data.groups_per_step * config.generate.group_size:
        begin["gradients"] = 0  # there is no earlier microbatch
    begin["gradients"] += head
    # further sets of gradients that are added to the sums so far
    sets = (0 if itemsize == 4 else 1) if in_place else 2
    tied = 2 * head if shape.is_tied else 0
    end = kept | {"weight_copies": copies}
    end["gradients"] += sets * WEIGHT_BYTES * trained // _ranks(config) + tied
    phases = {LEARN: max(begin, end, key=lambda parts: sum(parts.values()))}
    if config.device in ("cpu", "auto"):
        # every tensor is read back and compared, one at a time; adapters are merged into a copy of the model
        whole = shape.parameters if learn.lora_rank else shape.largest
        phases[CHECKPOINT] = kept | {"weight_copies": 0 if shards else WEIGHT_BYTES * whole}
    return phases


def _microbatch(
    shape: ModelShape, config: Config, prompt: PromptLength, is_llama: bool
) -> tuple[int, int, int]:
    """Tokens that are computed together, completion tokens among them, and rows."""
    limit, completion = config.learn.microbatch_tokens, config.generate.max_tokens
    groups = config.data.groups_per_step
    row = completion if is_llama else prompt.tokens + completion
    rows = min(max(1, limit // row), groups * config.generate.group_size)
    if not is_llama:
        return rows * row, rows * completion, rows
    common = prompt.common
    rest = prompt.tokens - common  # prompts are computed once, in blocks of about `limit` tokens
    return common + min(groups * rest, max(limit, rest)) + rows * row, rows * completion, rows


def _copies(shape: ModelShape, config: Config, *, is_llama: bool) -> int:
    """Bytes of one set of merged or rounded copies of the weights."""
    if config.learn.sharding == "fsdp":  # gathered: what is outside the layers, and two of them
        matrices = sum(map(math.prod, shape.matrices.values()))
        gathered = shape.parameters - matrices + 2 * matrices // shape.layers
        trained = 0 if config.learn.lora_rank else WEIGHT_BYTES
        return gathered * (DTYPES[config.dtype].itemsize + trained)
    if choose_formats(config, shape.parameters).weights != WEIGHT_DTYPE:
        return 0  # computed by transformers, as they are
    if config.dtype == "bfloat16":  # an output layer that is tied is copied twice
        return 2 * (shape.parameters + (shape.head if shape.is_tied else 0))
    merges = is_llama and config.learn.lora_rank
    return WEIGHT_BYTES * (shape.parameters - shape.head) if merges else 0


def estimate_generator(shape: ModelShape, config: Config, prompt: PromptLength) -> Parts:
    """The largest batch of training or evaluation, when its last tokens are sampled."""
    generate, evaluate, parts = config.generate, config.evaluate, dict.fromkeys(PARTS, 0)
    itemsize = DTYPES[config.dtype].itemsize
    held = choose_formats(config, shape.parameters).weights
    parts["weights"] = held.itemsize * shape.parameters
    if generate.engine == "vllm":  # it has weights of its own
        copy = itemsize * shape.parameters // generate.vllm.tensor_parallel_size
        cache = generate.kv_cache_mb << 20
        copies = {"weight_copies": copy, "kv_cache": cache, "activations": VLLM_WORK_SPACE}
        return parts | copies | {"weights": 0}
    is_llama = shape.is_llama(config)
    of_token = 2 * itemsize * shape.cache_width
    longest = prompt.tokens + generate.max_tokens
    budget = max(1, (generate.kv_cache_mb << 20) // of_token // longest)  # rows
    batches = [(config.data.groups_per_step, generate.group_size)]
    if evaluate.problems:
        batches.append((evaluate.problems, max(1, evaluate.samples)))
    groups, samples = max(
        ((min(n, generate.chunk_size, max(1, budget // k)), min(k, budget)) for n, k in batches),
        key=math.prod,
    )
    rows, common = groups * samples, prompt.common
    prompts = common + groups * (prompt.tokens - common)
    cached = prompts + rows * generate.max_tokens if is_llama else rows * longest
    parts["kv_cache"] = of_token * cached
    parts["logits"] = 3 * WEIGHT_BYTES * rows * shape.vocabulary
    parts["activations"] = itemsize * rows * shape.width // shape.layers
    on_cpu = (generate.device or config.device) in ("cpu", "auto")
    if config.dtype == "bfloat16" and held == WEIGHT_DTYPE:
        parts["weight_copies"] = itemsize * (shape.parameters + shape.head)
    elif is_llama and on_cpu:  # packed (`linear.pack_weight`)
        parts["weight_copies"] = WEIGHT_BYTES * shape.parameters
    return parts


def _ranks(config: Config) -> int:
    return config.monarch.learners if config.learn.sharding == "fsdp" else 1


def _add(parts: Parts, more: Parts) -> Parts:
    return {part: parts[part] + more[part] for part in PARTS}


def measure_prompts(config: Config, tokens: int | None = None) -> PromptLength:
    """The length of the task's prompts. With a number of tokens, or without a tokenizer: that length."""
    if tokens or is_bare_config(config.model):
        tokens = tokens or DEFAULT_PROMPT_TOKENS
        return PromptLength(tokens, tokens * 3 // 4)
    import_modules(config.imports)
    tokenizer, card = load_tokenizer(config.model), read_card(config.model)
    policy = Policy(config.model, None, tokenizer, card, chat=config.chat)
    task = make_task(config.task.name, fill_task_options(config, card).task.options)
    random = randomness.stream("plan", config.seed)
    problems = [task.draw(random) for _ in range(SAMPLED_PROMPTS)]
    prompts = [policy.encode_prompt(task.messages(p, config.task.style))[1] for p in problems]
    return PromptLength(max(map(len, prompts)), count_common_tokens([*set(prompts)]))


def check_training_memory(config: Config) -> None:
    """Raise if the processes of a run on this machine need more memory than is free, before anything is loaded.
    Prompts are measured only if the model is large for this machine."""
    shape = ModelShape(load_empty_model(config.model))
    device = choose_device(config, shape.parameters, "learner")
    available = available_memory(device)
    needs_all = device.type == "cpu" and not config.hosts.addresses  # processes share the memory

    def required(prompt: PromptLength) -> tuple[int, ProcessMemory]:
        learner, *others = estimate_memory(shape, config, prompt)
        total = sum(process.count * process.peak for process in (learner, *others))
        return (total if needs_all else learner.peak), learner

    if available is None or 4 * required(PromptLength())[0] <= available:
        return
    total, learner = required(measure_prompts(config))
    if total <= available:
        return
    learn = config.learn
    settings = {
        "learn.lora_rank=16": not learn.lora_rank,
        "learn.activation_checkpointing=true": not learn.activation_checkpointing,
        "dtype=bfloat16": config.dtype != "bfloat16",
        "a smaller learn.microbatch_tokens or generate.kv_cache_mb": True,
    }
    advice = ", ".join(name for name, is_left in settings.items() if is_left)
    raise ConfigError(
        f'Training "{config.model}" ({shape.parameters / 1e6:,.0f} million parameters) needs about '
        f"{total / GB:.1f} GB on {device}: {learner.describe(learner.peak_phase)}, but only {available / GB:.1f} "
        f"GB are free. Set {advice}, or choose a smaller model or a larger device, or use fewer --jobs if a study "
        "trains several runs. `glasshouse plan` shows the memory of each part and suggests a layout."
    )
