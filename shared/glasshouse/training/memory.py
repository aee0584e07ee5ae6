"""Peak memory of a run, by process, phase and part, without loading the model's weights.

    learn        one update of the learner          traced: `memory_trace`
    generate     one batch of the generator         traced
    checkpoint   copies that are made for saving    computed (on a GPU they are in the host's memory)

With `backend: local` one process has all three phases; with `monarch` learners and generators are separate
processes. `glasshouse plan` prints the result, and training refuses to start if it does not fit
(`memory_check`)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from glasshouse.config.schema import Config
from glasshouse.generate.decoders import make_decoder
from glasshouse.generate.sampling import sample_tokens
from glasshouse.generate.torch_engine import TorchGenerator
from glasshouse.learn.learner import Learner
from glasshouse.learn.microbatches import TrainingSample
from glasshouse.learn.sharded import TransformersLearner
from glasshouse.models import llama
from glasshouse.models.devices import DTYPES, LARGE_MODEL_PARAMETERS
from glasshouse.models.logprobs import find_layers
from glasshouse.models.lora import add_adapters
from glasshouse.models.policy import Policy
from glasshouse.models.prompt_forward import count_common_tokens
from glasshouse.training.memory_trace import PARTS, Bytes, MemoryTrace, extrapolate
from glasshouse.types import Request

LEARN, GENERATE, CHECKPOINT = "learn", "generate", "checkpoint"
PERSISTENT = ("weights", "reference", "gradients", "optimizer")
"""Parts that the learner keeps between updates."""
TRACED_LAYERS = (2, 3)
"""Layers that are traced of a model with more, equal layers. One is not enough: in the first layer of a loop
nothing of a previous layer is alive."""
VLLM_WORK_SPACE = 1_500_000_000
"""Bytes of vLLM's activations and CUDA graphs: a listed value."""
PLACEMENT = ("backend", "device", "hosts", "monarch")
"""Sections of a configuration that do not change the traces."""
Prompts = Sequence[tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """The peak memory of one kind of process."""

    role: str
    """`learner`, `generator`, or `learner and generator`."""
    count: int
    """Processes of this kind."""
    phases: dict[str, dict[str, int]]
    """Bytes by phase and part at the peak of the phase."""

    @property
    def peak_phase(self) -> str:
        return max(self.phases, key=lambda phase: sum(self.phases[phase].values()))

    @property
    def peak(self) -> int:
        return sum(self.phases[self.peak_phase].values())

    @property
    def peaks(self) -> list[int]:
        """One peak per process."""
        return [self.peak] * self.count

    @property
    def largest_part(self) -> str:
        """The part that takes most of the peak."""
        parts = self.phases[self.peak_phase]
        return max(parts, key=lambda part: parts[part])


@dataclass(frozen=True, slots=True)
class TracedModel:
    """A model that can be built on the meta device with any number of layers. It remembers the results of traces,
    so that a search for a layout makes each once."""

    config: Any
    """transformers' configuration."""
    parameters: int
    has_equal_layers: bool
    results: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, config: Any) -> TracedModel:
        """Builds the model without memory for its weights."""
        parameters = _count_parameters(_build(config))
        layers = int(config.get_text_config().num_hidden_layers)
        if layers <= max(TRACED_LAYERS):
            return cls(config, parameters, has_equal_layers=False)
        few, more = (_count_parameters(_build(_shorten(config, n))) for n in TRACED_LAYERS)
        return cls(
            config, parameters, few + (layers - TRACED_LAYERS[0]) * (more - few) == parameters
        )

    @property
    def text_config(self) -> Any:
        return self.config.get_text_config()

    @property
    def layers(self) -> int:
        return int(self.text_config.num_hidden_layers)

    def build(self, layers: int | None = None) -> Any:
        """The model on the meta device, with this many layers."""
        return _build(self.config if layers is None else _shorten(self.config, layers))

    def trace(self, key: str, trace_layers: Callable[[int | None], MemoryTrace]) -> Bytes:
        """The peak of the whole model; `trace_layers` runs the computation with this many layers. `key` names all
        that the result depends on."""
        if key not in self.results:
            if self.has_equal_layers:
                few, more = map(trace_layers, TRACED_LAYERS)
                self.results[key] = extrapolate(few, more, self.layers - TRACED_LAYERS[0])
            else:
                self.results[key] = trace_layers(None).peak()
        peak: Bytes = self.results[key]
        return peak

    def count(self, key: str, count_layers: Callable[[int | None], int]) -> int:
        """A number that is linear in the layers, for the whole model; `key` as in `trace`."""
        if key not in self.results:
            if self.has_equal_layers:
                few, more = map(count_layers, TRACED_LAYERS)
                self.results[key] = few + (self.layers - TRACED_LAYERS[0]) * (more - few)
            else:
                self.results[key] = count_layers(None)
        return int(self.results[key])


def estimate_memory(model: TracedModel, config: Config, prompts: Prompts) -> list[ProcessMemory]:
    """The memory of each kind of process of a run, with completions of `generate.max_tokens`. `prompts` are prompts
    of the task, or of their length.

    Example: `estimate_memory(TracedModel.of(AutoConfig.from_pretrained(folder)), config, prompts)[0].peak`
    """
    learner = estimate_learner(model, config, prompts)
    uses_vllm = config.generate.engine == "vllm"
    generator = (estimate_vllm if uses_vllm else estimate_generator)(model, config, prompts)
    kept = {part: learner[LEARN][part] for part in PERSISTENT}
    kept["gradients"] = _trained_parameters(model, config) * 4
    kept["optimizer"] = 2 * kept["gradients"]
    if config.backend == "local":
        if not config.generate.device:  # the generator uses the learner's weights
            engine = generator
            generator = {part: generator[part] + kept.get(part, 0) for part in PARTS}
            generator["weights"] = kept["weights"]
            if uses_vllm and not config.generate.vllm.sleep:  # the engine keeps its memory
                learner = {
                    phase: {part: parts[part] + engine[part] for part in PARTS}
                    for phase, parts in learner.items()
                }
        phases = {**learner, GENERATE: generator}
        return [ProcessMemory(role="learner and generator", count=1, phases=phases)]
    monarch = config.monarch
    return [
        ProcessMemory(role="learner", count=config.monarch.learners, phases=learner),
        ProcessMemory(role="generator", count=monarch.generators, phases={GENERATE: generator}),
    ]


def estimate_learner(
    model: TracedModel, config: Config, prompts: Prompts
) -> dict[str, dict[str, int]]:
    """Traces an update, after a first one that creates the optimizer's state."""
    kind = TransformersLearner if config.learn.sharding == "fsdp" else Learner
    samples = choose_samples(config, prompts)

    def trace_layers(layers: int | None) -> MemoryTrace:
        policy = _trace_policy(model, config, layers)
        trace = _start_trace(model, policy)
        with trace:
            learner = kind.from_config(policy, config)
            trace.add(learner.reference.parameters(), "reference")
            learner.update(samples[:1])
            trace.add((p.grad for p in learner.parameters if p.grad is not None), "gradients")
            trace.add(
                (t for s in learner.optimizer.state.values() for t in s.values()), "optimizer"
            )
            trace.clear_points()
            learner.update(samples)
        return trace

    engine = {"chunk_size", "device", "kv_cache_mb"}
    key = _describe(config, prompts, {"generate": engine})
    peak = dict(zip(PARTS, model.trace(f"learner {key}", trace_layers), strict=True))
    if config.learn.sharding == "fsdp":
        peak = _divide_among_ranks(model, config, peak)
    phases = {LEARN: peak}
    if config.device in ("cpu", "auto"):
        phases[CHECKPOINT] = _checkpoint_memory(model, config, peak)
    return phases


def _divide_among_ranks(model: TracedModel, config: Config, peak: dict[str, int]) -> dict[str, int]:
    """The memory of one rank of a sharded learner: its part of what the learner keeps, and whole tensors and
    gradients of what is gathered at a time: those outside the blocks, and two blocks. Activations are those of a
    learner that is not divided."""
    parts = {**peak, **{part: peak[part] // config.monarch.learners for part in PERSISTENT}}
    parts["gradients"] = 4 * _trained_parameters(model, config) // config.monarch.learners
    shortest = model.build(1)
    block = _count_parameters(find_layers(shortest)[0])
    gathered = _count_parameters(shortest) + block
    parts["weight_copies"] = gathered * (
        DTYPES[config.dtype].itemsize + (0 if config.learn.lora_rank else 4)
    )
    return parts


def estimate_generator(model: TracedModel, config: Config, prompts: Prompts) -> dict[str, int]:
    """Traces the start of the largest batch: prompts, and one token in every row."""
    sampling = config.generate.sampling()
    longest = max(prompts, key=len)

    def trace_layers(layers: int | None) -> MemoryTrace:
        policy = _trace_policy(model, config, layers, adapters=False)
        batch = _largest_batch(model, config, prompts)
        trace = _start_trace(model, policy)
        with trace, torch.no_grad():
            decoder = make_decoder(policy.model, policy.dtype)
            group_size = max(len(request.keys) for request in batch)
            logits = decoder.prefill(
                [request.prompt for request in batch], group_size, sampling.max_tokens
            )
            trace.move("activations", "kv_cache")  # what is left of the prompts
            noise = torch.empty(len(logits), device="meta")
            tokens, _ = sample_tokens(logits, noise, sampling)
            logits = decoder.step(tokens)
            trace.move("activations", "kv_cache")
            sample_tokens(logits, noise, sampling)
        return trace

    key = _describe(config, prompts, {"learn": True})
    parts = dict(zip(PARTS, model.trace(f"generator {key}", trace_layers), strict=True))
    if llama.is_supported(model.build(1)):
        if _packs_weights(model, config):
            parts["weight_copies"] = 4 * model.count("linear layers", _count_linear(model))
    else:  # its cache grows with every token
        parts["kv_cache"] = round(
            parts["kv_cache"] * (len(longest) + sampling.max_tokens) / (len(longest) + 1)
        )
    return parts


def _packs_weights(model: TracedModel, config: Config) -> bool:
    """Whether the generator holds a copy of its linear layers in oneDNN's layout (`products.pack_weight`)."""
    device = config.generate.device or config.device
    is_large = model.parameters >= LARGE_MODEL_PARAMETERS
    return is_large and config.dtype == "float32" and device in ("cpu", "auto")


def _count_linear(model: TracedModel) -> Callable[[int | None], int]:
    def count(layers: int | None) -> int:
        modules = model.build(layers).modules()
        return sum(m.weight.numel() for m in modules if isinstance(m, torch.nn.Linear))

    return count


def estimate_vllm(model: TracedModel, config: Config, prompts: Prompts) -> dict[str, int]:
    """A vLLM engine: weights in the dtype of matrix products, the KV cache that it reserves, and its work
    space, which is listed, not measured."""
    shards = config.generate.vllm.tensor_parallel_size
    return {
        **dict.fromkeys(PARTS, 0),
        "weight_copies": DTYPES[config.dtype].itemsize * model.parameters // shards,
        "kv_cache": config.generate.kv_cache_mb << 20,
        "activations": VLLM_WORK_SPACE,
    }


def choose_samples(config: Config, prompts: Prompts) -> list[TrainingSample]:
    """Samples whose update needs as much memory as that of a whole step, but takes less time to trace: two
    blocks of prompts, and three microbatches or more."""
    limit, tokens = config.learn.microbatch_tokens, config.generate.max_tokens
    longest = max(map(len, prompts))
    groups = min(config.data.groups_per_step, 2 * math.ceil(limit / longest) + 1)
    wanted = min(
        3 * max(1, limit // tokens) + 1, config.data.groups_per_step * config.generate.group_size
    )
    per_group = min(config.generate.group_size, max(2, math.ceil(wanted / groups)))
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
    groups = min(generate.chunk_size, config.data.groups_per_step)
    rows = [(groups, generate.group_size)]
    if evaluate.problems:
        rows.append((min(generate.chunk_size, evaluate.problems), max(1, evaluate.samples)))
    groups, samples = max(rows, key=math.prod)
    described = SimpleNamespace(config=model.config)  # all that the split into batches needs
    policy = Policy(config.model, described, None, {}, dtype=DTYPES[config.dtype])
    longest, common = max(prompts, key=len), count_common_tokens([*set(prompts)])
    requests = [
        Request(prompt=(*longest[:common], n, *longest[common + 1 :]), keys=tuple(range(samples)))
        for n in range(groups)
    ]
    generator = TorchGenerator(policy, generate.kv_cache_mb)
    batches = generator._batches(requests, generate.sampling())
    largest = max(batches, key=lambda batch: sum(len(r.keys) for _, r in batch))
    return [request for _, request in largest]


def _checkpoint_memory(
    model: TracedModel, config: Config, learning: dict[str, int]
) -> dict[str, int]:
    """Saving reads every tensor back, one at a time, and compares it; adapters are merged into a copy of the model
    first. The ranks of a sharded learner write their parts of its state, without reading them back."""
    trained = 4 * _trained_parameters(model, config)
    if config.learn.sharding == "fsdp":
        trained //= config.monarch.learners
        copies = 0
    elif config.learn.lora_rank:
        copies = 4 * model.parameters
    else:
        copies = 4 * max(parameter.numel() for parameter in model.build(1).parameters())
    return {
        **dict.fromkeys(PARTS, 0), "weights": learning["weights"], "reference": learning["reference"],
        "gradients": trained, "optimizer": 2 * trained, "weight_copies": copies,
    }  # fmt: skip


def _trained_parameters(model: TracedModel, config: Config) -> int:
    def count_layers(layers: int | None) -> int:
        policy = _trace_policy(model, config, layers)
        return sum(p.numel() for p in policy.model.parameters() if p.requires_grad)

    learn = config.learn
    return model.count(f"trained {learn.lora_rank} {learn.lora_targets}", count_layers)


def _describe(config: Config, prompts: Prompts, exclude: dict[str, Any]) -> str:
    """What a trace depends on: the configuration without its placement and `exclude`, and the prompts' lengths."""
    text = config.model_dump_json(exclude={**dict.fromkeys(PLACEMENT, True), **exclude})
    return f"{[len(prompt) for prompt in prompts]} {text}"


def _trace_policy(
    model: TracedModel, config: Config, layers: int | None, *, adapters: bool = True
) -> Policy:
    policy = Policy(config.model, model.build(layers), None, {}, dtype=DTYPES[config.dtype])
    if adapters and config.learn.lora_rank:
        with torch.device("meta"):
            policy = add_adapters(
                policy, config.learn.lora_rank, config.seed, config.learn.lora_targets
            )
    return policy


def _start_trace(model: TracedModel, policy: Policy) -> MemoryTrace:
    rounds = policy.dtype != torch.float32 and not llama.is_supported(policy.model)
    trace = MemoryTrace(model.text_config.vocab_size, policy.dtype if rounds else None)
    trace.add([*policy.model.parameters(), *policy.model.buffers()], "weights")
    return trace


def _build(config: Any) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config).eval()


def _count_parameters(model: Any) -> int:
    return sum(p.numel() for p in model.parameters())


def _shorten(config: Any, layers: int) -> Any:
    config = copy.deepcopy(config)
    text = config.get_text_config()
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:layers]
    text.num_hidden_layers = layers
    return config
