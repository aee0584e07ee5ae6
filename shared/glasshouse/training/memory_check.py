"""Refuses a run that does not fit into memory, before anything is loaded."""

from __future__ import annotations

from glasshouse.config.schema import Config
from glasshouse.errors import ConfigError
from glasshouse.models.devices import GB, ModelSize, available_memory
from glasshouse.models.policy import choose_device, read_size
from glasshouse.training.memory import ProcessMemory, plan_memory


def check_training_memory(config: Config) -> None:
    """Raises if the processes of a run on this machine need more memory than is free. The estimate is that of
    `glasshouse plan`; it is skipped if a generous bound fits, as for every small model."""
    size = read_size(config.model)
    device = choose_device(config, size, "learner")
    available = available_memory(device)
    if available is None or bound_memory(size, config) <= available:
        return
    learner, *others = plan_memory(config)
    required = learner.peak
    if device.type == "cpu" and not config.hosts.addresses:  # they share the memory
        required = sum(process.count * process.peak for process in (learner, *others))
    if required <= available:
        return
    raise ConfigError(
        f'Training "{config.model}" ({size.parameters / 1e6:,.0f} million parameters) needs about '
        f"{required / GB:.1f} GB on {device} ({describe_parts(learner)}), but only "
        f"{available / GB:.1f} GB are free. {suggest_changes(config)} "
        "`glasshouse plan` shows the memory of each part and suggests a layout."
    )


def bound_memory(size: ModelSize, config: Config) -> int:
    """Bytes that a run surely does not exceed: it needs 20 to 45 bytes per parameter, and per token and layer
    about 30 hidden sizes."""
    processes = 1
    if config.backend == "monarch":
        processes = config.monarch.generators + config.monarch.learners
    per_token = 4 * (100 * size.layers * size.hidden_size + 8 * size.vocabulary)
    tokens = max(config.learn.microbatch_tokens, 2 * config.generate.max_tokens)
    rows = config.generate.chunk_size * max(config.generate.group_size, config.evaluate.samples)
    logits = 4 * 6 * rows * size.vocabulary
    cache = 2 * (config.generate.kv_cache_mb << 20)
    return processes * (64 * size.parameters + tokens * per_token + logits + cache)


def describe_parts(process: ProcessMemory) -> str:
    """The parts of a process at its peak, the largest first."""
    parts = sorted(process.phases[process.peak_phase].items(), key=lambda item: -item[1])
    listed = ", ".join(f"{name.replace('_', ' ')} {size / GB:.1f}" for name, size in parts if size)
    return f"phase {process.peak_phase}: {listed}"


def suggest_changes(config: Config) -> str:
    """What to change so that the run needs less memory."""
    options = []
    if not config.learn.lora_rank:
        options.append("learn.lora_rank=16 (trains adapters only)")
    if not config.learn.activation_checkpointing:
        options.append("learn.activation_checkpointing=true")
    if config.dtype == "float32":
        options.append("dtype=bfloat16")
    options.append("a smaller learn.microbatch_tokens or generate.kv_cache_mb")
    return f"Set {', '.join(options)}, or choose a smaller model or a larger device."
