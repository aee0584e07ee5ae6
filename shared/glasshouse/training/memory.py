"""Peak memory of a run, by process, phase and part, without loading the model's weights.

    learn        one update of the learner          traced: `memory_trace`
    generate     one batch of the generator         traced
    checkpoint   copies that are made for saving    computed (on a GPU they are in the host's memory)

With `backend: local` one process has all three phases; with `monarch` learners and generators are separate
processes. `glasshouse plan` prints the result, and training refuses to start if it does not fit
(`memory_check`)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

import torch

from glasshouse.config.schema import Config
from glasshouse.generate.decoders import make_decoder
from glasshouse.generate.sampling import sample_tokens
from glasshouse.generate.torch_engine import TorchGenerator
from glasshouse.learn.learner import Learner
from glasshouse.learn.microbatches import TrainingSample
from glasshouse.models import llama
from glasshouse.models.adapters import add_adapters
from glasshouse.models.devices import DTYPES
from glasshouse.models.logprobs import find_layers
from glasshouse.models.policy import Policy
from glasshouse.models.shared_prefix import count_common_tokens
from glasshouse.models.tuning import tuning_for, tuning_of
from glasshouse.training.memory_trace import PARTS, MemoryTrace, trace_memory
from glasshouse.training.traced_model import Prompts, TracedModel, count_parameters, sample_prompts
from glasshouse.types import Request

LEARN, GENERATE, CHECKPOINT = "learn", "generate", "checkpoint"
VLLM_WORK_SPACE = 1_500_000_000
"""Bytes of vLLM's activations and CUDA graphs: a listed value."""
PLACEMENT = ("backend", "device", "hosts", "monarch")
"""Sections of a configuration that do not change the traces."""
Parts = dict[str, int]
"""Bytes by part."""


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

    @property
    def largest_part(self) -> str:
        """The part that takes most of the peak."""
        parts = self.phases[self.peak_phase]
        return max(parts, key=lambda part: parts[part])

    def to_json(self) -> dict[str, Any]:
        derived = ("peak", "peak_phase", "largest_part")
        return asdict(self) | {name: getattr(self, name) for name in derived}


def plan_memory(config: Config) -> list[ProcessMemory]:
    """The memory of each kind of process of a run, without loading the model.

    Example: `plan_memory(load_config(overrides={"model": "pocket"}))[0].peak`
    """
    return estimate_memory(TracedModel.read(config.model), config, sample_prompts(config))


def estimate_memory(model: TracedModel, config: Config, prompts: Prompts) -> list[ProcessMemory]:
    """The same, with prompts of the task or of their length. Completions have `generate.max_tokens` tokens.

    Example: `estimate_memory(TracedModel.read("pocket"), config, prompts)[0].peak`
    """
    learner = estimate_learner(model, config, prompts)
    generator = estimate_generator(model, config, prompts)
    if config.backend == "monarch":
        generators = config.monarch.generators
        return [
            ProcessMemory(role="learner", count=config.monarch.learners, phases=learner),
            ProcessMemory(role="generator", count=generators, phases={GENERATE: generator}),
        ]
    if not config.generate.device:  # the generator uses the learner's weights
        if (
            config.generate.engine == "vllm" and not config.generate.vllm.sleep
        ):  # the engine keeps its memory
            learner = {phase: _add(parts, generator) for phase, parts in learner.items()}
        kept = {part: learner[LEARN][part] for part in ("weights", "reference")}
        generator = _add(generator | {"weights": 0}, kept | _trained_state(model, config))
    phases = {**learner, GENERATE: generator}
    return [ProcessMemory(role="learner and generator", count=1, phases=phases)]


def estimate_learner(model: TracedModel, config: Config, prompts: Prompts) -> dict[str, Parts]:
    """Traces an update, after a first one that creates the optimizer's state."""
    samples = choose_samples(config, prompts)

    def run(module: Any) -> MemoryTrace:
        policy = _make_policy(module, config, adapters=True)
        with _trace(policy) as trace:
            learner = Learner.from_config(
                policy, config, transformers_forward=config.learn.sharding == "fsdp"
            )
            trace.add(learner.reference.parameters(), "reference")
            learner.update(samples[:1])
            trace.add((p.grad for p in learner.parameters if p.grad is not None), "gradients")
            states = learner.optimizer.state.values()
            trace.add((tensor for state in states for tensor in state.values()), "optimizer")
            trace.clear_points()
            learner.update(samples)
        return trace

    engine = {"chunk_size", "device", "kv_cache_mb"}
    key = _describe(config, prompts, {"generate": engine})
    peak = model.trace(f"learner {key}", run)
    if config.learn.sharding == "fsdp":
        peak = _divide_among_ranks(model, config, peak)
    phases = {LEARN: peak}
    if config.device in ("cpu", "auto"):
        phases[CHECKPOINT] = _checkpoint_memory(model, config, peak)
    return phases


def estimate_generator(model: TracedModel, config: Config, prompts: Prompts) -> Parts:
    """Traces the start of the largest batch: prompts, and one token in every row. vLLM is not traced."""
    if config.generate.engine == "vllm":
        return estimate_vllm(model, config)
    sampling = config.generate.sampling()
    longest = max(map(len, prompts))

    def run(module: Any) -> MemoryTrace:
        policy = _make_policy(module, config, adapters=False)
        batch = _largest_batch(model, config, prompts)
        with _trace(policy) as trace, torch.no_grad():
            decoder = make_decoder(policy.model, policy.dtype)
            group_size = max(len(request.noise_keys) for request in batch)
            starts = [request.prompt for request in batch]
            logits = decoder.prefill(starts, group_size, sampling.max_tokens)
            trace.move("activations", "kv_cache")  # what is left of the prompts
            noise = torch.empty(len(logits), device="meta")
            by_block = tuning_of(policy.model).block_sampling
            tokens, _ = sample_tokens(logits, noise, sampling, by_block=by_block)
            logits = decoder.step(tokens)
            trace.move("activations", "kv_cache")
            sample_tokens(logits, noise, sampling, by_block=by_block)
        return trace

    parts = model.trace(f"generator {_describe(config, prompts, {'learn': True})}", run)
    if not llama.is_supported(model.whole):  # its cache grows with every token
        grown = (longest + sampling.max_tokens) / (longest + 1)
        parts["kv_cache"] = round(parts["kv_cache"] * grown)
    elif _packs_weights(model, config):
        linear = (m for m in model.whole.modules() if isinstance(m, torch.nn.Linear))
        parts["weight_copies"] = 4 * sum(module.weight.numel() for module in linear)
    return parts


def estimate_vllm(model: TracedModel, config: Config) -> Parts:
    """A vLLM engine: weights in the dtype of matrix products, the KV cache that it reserves, and its work
    space, which is listed, not measured."""
    shards = config.generate.vllm.tensor_parallel_size
    return dict.fromkeys(PARTS, 0) | {
        "weight_copies": DTYPES[config.dtype].itemsize * model.parameters // shards,
        "kv_cache": config.generate.kv_cache_mb << 20,
        "activations": VLLM_WORK_SPACE,
    }


def choose_samples(config: Config, prompts: Prompts) -> list[TrainingSample]:
    """Samples whose update needs as much memory as that of a whole step, but takes less time to trace: two
    blocks of prompts, and three microbatches or more."""
    limit, tokens = config.learn.microbatch_tokens, config.generate.max_tokens
    group_size, all_groups = config.generate.group_size, config.data.groups_per_step
    groups = min(all_groups, 2 * math.ceil(limit / max(map(len, prompts))) + 1)
    wanted = min(3 * max(1, limit // tokens) + 1, all_groups * group_size)
    per_group = min(group_size, max(2, math.ceil(wanted / groups)))
    return [
        TrainingSample(
            prompt=(*prompts[group % len(prompts)][:-1], group),
            tokens=[1] * tokens,
            sampler_logprobs=[0.0] * tokens,
            advantage=1.0,
        )
        for group in range(groups)
        for _ in range(per_group)
    ]


def _largest_batch(model: TracedModel, config: Config, prompts: Prompts) -> list[Request]:
    """The requests of one batch of training or evaluation, as `generate.kv_cache_mb` bounds them: prompts of the
    longest one's length, which start alike as the given ones do."""
    generate, evaluate = config.generate, config.evaluate
    rows = [(min(generate.chunk_size, config.data.groups_per_step), generate.group_size)]
    if evaluate.problems:
        rows.append((min(generate.chunk_size, evaluate.problems), max(1, evaluate.samples)))
    groups, samples = max(rows, key=math.prod)
    longest, common = max(prompts, key=len), count_common_tokens([*set(prompts)])
    requests = [
        Request(
            prompt=(*longest[:common], n, *longest[common + 1 :]), noise_keys=tuple(range(samples))
        )
        for n in range(groups)
    ]
    described = SimpleNamespace(config=model.config)  # all that the split into batches needs
    policy = _make_policy(described, config, adapters=False)
    generator = TorchGenerator(policy, generate)
    batches = generator._batches(requests, generate.sampling())
    largest = max(batches, key=lambda batch: sum(len(r.noise_keys) for _, r in batch))
    return [request for _, request in largest]


def _divide_among_ranks(model: TracedModel, config: Config, peak: Parts) -> Parts:
    """The memory of one rank of a sharded learner: its part of what the learner keeps, and whole tensors and
    gradients of what is gathered at a time: those outside the blocks, and two blocks. Activations are those of a
    learner that is not divided."""
    ranks, shortest = config.monarch.learners, model.build(1)
    gathered = count_parameters(shortest) + count_parameters(find_layers(shortest)[0])
    itemsize = DTYPES[config.dtype].itemsize + (0 if config.learn.lora_rank else 4)
    parts = peak | {part: peak[part] // ranks for part in ("weights", "reference", "optimizer")}
    parts["gradients"] = _trained_state(model, config, ranks)["gradients"]
    parts["weight_copies"] = gathered * itemsize
    return parts


def _packs_weights(model: TracedModel, config: Config) -> bool:
    """Whether the generator holds a copy of its linear layers in oneDNN's layout (`matmul.pack_weight`)."""
    device = config.generate.device or config.device
    return (
        tuning_for(model.parameters).onednn
        and config.dtype == "float32"
        and device in ("cpu", "auto")
    )


def _checkpoint_memory(model: TracedModel, config: Config, learning: Parts) -> Parts:
    """Saving reads every tensor back, one at a time, and compares it; adapters are merged into a copy of the model
    first. The ranks of a sharded learner write their parts of its state, without reading them back."""
    ranks, copies = 1, 4 * max(parameter.numel() for parameter in model.whole.parameters())
    if config.learn.sharding == "fsdp":
        ranks, copies = config.monarch.learners, 0
    elif config.learn.lora_rank:
        copies = 4 * model.parameters
    kept = {part: learning[part] for part in ("weights", "reference")}
    parts = dict.fromkeys(PARTS, 0) | kept | {"weight_copies": copies}
    return parts | _trained_state(model, config, ranks)


def _trained_state(model: TracedModel, config: Config, ranks: int = 1) -> Parts:
    """Gradients and AdamW's two averages, in float32, of what is trained."""

    def count() -> int:
        adapted = _make_policy(model.build(), config, adapters=True).model
        return sum(p.numel() for p in adapted.parameters() if p.requires_grad)

    learn = config.learn
    trained = model.remember(f"trained {learn.lora_rank} {learn.lora_targets}", count)
    gradients = 4 * trained // ranks
    return {"gradients": gradients, "optimizer": 2 * gradients}


def _add(parts: Parts, more: Parts) -> Parts:
    return {part: parts[part] + more.get(part, 0) for part in PARTS}


def _describe(config: Config, prompts: Prompts, exclude: dict[str, Any]) -> str:
    """What a trace depends on: the configuration without its placement and `exclude`, and the prompts' lengths."""
    text = config.model_dump_json(exclude={**dict.fromkeys(PLACEMENT, True), **exclude})
    return f"{[len(prompt) for prompt in prompts]} {text}"


def _make_policy(module: Any, config: Config, *, adapters: bool) -> Policy:
    policy = Policy(config.model, module, None, {}, dtype=DTYPES[config.dtype])
    learn = config.learn
    if adapters and learn.lora_rank:
        with torch.device("meta"):
            policy = add_adapters(policy, learn.lora_rank, config.seed, learn.lora_targets)
    return policy


@contextmanager
def _trace(policy: Policy) -> Iterator[MemoryTrace]:
    model = policy.model
    rounds = policy.dtype != torch.float32 and not llama.is_supported(model)
    vocabulary = model.config.get_text_config().vocab_size
    with trace_memory(vocabulary, policy.dtype if rounds else None) as trace:
        trace.add([*model.parameters(), *model.buffers()], "weights")
        yield trace
