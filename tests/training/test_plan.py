"""`glasshouse plan`: what it counts, the layout that it suggests, and bad input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import Gemma3TextConfig, LlamaConfig, Qwen2Config, Qwen3Config

from glasshouse.cli.app import main
from glasshouse.config.loading import load_config, parse_yaml
from glasshouse.config.schema import Config
from glasshouse.models.adapters import add_adapters
from glasshouse.models.policy import load_policy
from glasshouse.models.validation import build_empty_model
from glasshouse.training.layout import CONTEXT_BYTES, USABLE, Devices, Layout, find_layout, plan_run
from glasshouse.training.memory import (
    PARTS,
    ModelShape,
    ProcessMemory,
    PromptLength,
    estimate_memory,
)

CONFIG = str(Path(__file__).parents[2] / "training" / "example.rl" / "config.yaml")
SMALL = ["data.groups_per_step=1", "generate.group_size=2", "generate.max_tokens=8",
         "learn.microbatch_tokens=16", "evaluate.problems=0"]  # fmt: skip
MORE = ["data.groups_per_step=16", "generate.group_size=8", "learn.microbatch_tokens=512"]
SHAPE = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 500, "tie_word_embeddings": True,
}  # fmt: skip
PROMPT = PromptLength(20, 15)


def shape_of(kind: Any = LlamaConfig, **changes: Any) -> ModelShape:
    return ModelShape(build_empty_model(kind(**(SHAPE | changes)), "test"))


def process_of(shape: ModelShape, *overrides: str) -> ProcessMemory:
    """The first process of a run, that of the learner."""
    return estimate_memory(shape, load_config([], [*SMALL, *overrides]), PROMPT)[0]


@pytest.fixture(scope="module")
def bare_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's configuration without weights and tokenizer; its weights are said to be bfloat16."""
    folder = tmp_path_factory.mktemp("bare")
    Qwen3Config(**SHAPE, dtype="bfloat16").save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("overrides", "reference"),
    [
        ([], 1),
        (["diagnostics.kl_every=null"], 0),
        (["diagnostics.kl_every=null", "learn.kl_coef=0.1"], 1),
        (["learn.lora_rank=3"], 0),  # it is the model without its adapters
        (["learn.lora_rank=3", "learn.lora_targets=[q_proj, v_proj]"], 0),
        (["backend=monarch", "monarch.learners=2", "learn.sharding=fsdp"], 0.5),
    ],
)
def test_what_is_kept_is_exact(overrides: list[str], reference: float) -> None:
    config = load_config([], [*SMALL, *overrides])
    policy, share = load_policy("pocket"), 0.5 if config.learn.sharding == "fsdp" else 1
    loaded = sum(p.nbytes for p in policy.model.parameters())
    shape, trained = ModelShape(policy.model), loaded
    if rank := config.learn.lora_rank:
        adapted = add_adapters(load_policy("pocket"), rank, 0, config.learn.lora_targets).model
        trained = sum(p.nbytes for p in adapted.parameters() if p.requires_grad)
    parts = process_of(shape, *overrides).phases["learn"]
    assert set(parts) == set(PARTS)
    assert parts["weights"] == share * (loaded + (trained if rank else 0))
    assert (parts["reference"], parts["optimizer"]) == (reference * loaded, share * 2 * trained)


def test_devices_are_named_by_memory_and_shared_by_processes() -> None:
    sizes = {"8x80GB": (8, 80), "1 x 80 gb": (1, 80)}
    for text, (count, gigabytes) in sizes.items():
        assert (Devices.parse(text).count, Devices.parse(text).memory) == (count, gigabytes * 10**9)

    def learners(count: int, gigabytes: int) -> list[ProcessMemory]:
        phases = {"learn": {"weights": gigabytes * 10**9}}
        return [ProcessMemory(role="learner", count=count, phases=phases)]

    assert Devices.parse("2x80GB").can_hold(learners(2, 70))
    assert not Devices.parse("2x80GB").can_hold(learners(3, 50))


def test_lora_of_7b_fits_48_gb(tmp_path: Path) -> None:
    """8 prompts of 8 completions of 512 tokens; the frozen model is held once, in bfloat16."""
    Qwen2Config(
        hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28,
        num_key_value_heads=4, vocab_size=152064, tie_word_embeddings=False,
    ).save_pretrained(tmp_path)  # fmt: skip
    settings = [
        f"model={tmp_path}",
        "dtype=bfloat16",
        "learn.lora_rank=16",
        "generate.max_tokens=512",
    ]
    batch = ["data.groups_per_step=8", "generate.group_size=8", "generate.chunk_size=8"]
    plan = plan_run(load_config([], [*settings, *batch, "evaluate.problems=64"]), gpu="1x48GB")
    assert plan.fits
    for phase in plan.processes[0].phases.values():
        assert 2 * plan.parameters < phase["weights"] < 2.1 * plan.parameters
        assert phase["reference"] == phase["weight_copies"] == 0


@pytest.mark.parametrize("kind", [LlamaConfig, Qwen3Config, Gemma3TextConfig])
def test_settings_that_save_memory_save_it(kind: Any) -> None:
    shape = shape_of(kind, num_hidden_layers=4)
    full = process_of(shape, "learn.microbatch_tokens=512", "data.groups_per_step=64")
    learn = full.phases["learn"]
    for setting in (
        "learn.activation_checkpointing=true",
        "learn.microbatch_tokens=64",
        "dtype=bfloat16",
        "learn.lora_rank=2",
    ):
        less = process_of(
            shape, "learn.microbatch_tokens=512", "data.groups_per_step=64", setting
        ).phases["learn"]
        assert sum(less.values()) < sum(learn.values())
    assert learn["activations"] > learn["weights"]


def test_generation_is_bounded_by_its_cache_and_packs_weights_on_a_cpu() -> None:
    shape = shape_of()
    many = ("data.groups_per_step=64", "generate.chunk_size=64", "generate.max_tokens=500")
    generate = process_of(shape, *many, "generate.kv_cache_mb=1").phases["generate"]
    assert 0.25 * 2**20 < generate["kv_cache"] <= 2**20
    assert process_of(shape, *many).phases["generate"]["kv_cache"] > 2**20
    assert generate["weight_copies"] == 4 * shape.parameters
    assert process_of(shape, "device=cuda").phases["generate"]["weight_copies"] == 0
    vllm = process_of(shape, "generate.engine=vllm", "generate.kv_cache_mb=64").phases
    assert vllm["generate"]["kv_cache"] == 64 << 20
    assert vllm["learn"]["kv_cache"] == 64 << 20  # it keeps its memory while the learner updates


def test_plan_without_weights_suggests_lines_that_validate(
    bare_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = [f"model={bare_folder}", *SMALL]
    assert (
        main(["plan", "--config", CONFIG, *overrides, "--prompt-tokens", "12", "--gpu", "2x80GB"])
        == 0
    )
    assert "It fits" in capsys.readouterr().out
    result = plan_run(load_config([CONFIG], overrides), gpu="2x80GB", prompt_tokens=12)
    assert result.fits
    assert result.layout.fits
    [process] = result.processes
    assert process.peak == max(sum(parts.values()) for parts in process.phases.values())
    changes = result.layout.changes
    assert changes["backend"] == "monarch"
    assert changes["monarch.generators"] == 1
    overrides = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    assert load_config([CONFIG], overrides).learn.microbatch_tokens >= 16


WIDE = {
    "vocab_size": 4000, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8,
}  # fmt: skip


def test_layout_halves_the_microbatch_and_uses_adapters_only_if_nothing_else_fits() -> None:
    shape, config = shape_of(Qwen3Config, **WIDE), load_config([], [*SMALL, *MORE])

    def suggest(memory: int) -> Layout:
        device = Devices(name="CPU", count=1, memory=memory, is_gpu=False)
        return find_layout(shape, config, device, PROMPT)

    [process] = estimate_memory(shape, config, PROMPT)
    halved = suggest(process.peak - 1)
    assert halved.fits
    assert halved.changes["learn.microbatch_tokens"] in (256, 128, 64, 32)
    assert not halved.changes["learn.activation_checkpointing"]
    assert halved.changes["learn.lora_rank"] == 0
    adapters = suggest(14 * shape.parameters)  # less than weights, gradients and AdamW's state
    assert adapters.fits
    assert adapters.changes["learn.lora_rank"] == 16
    assert Config.model_validate(parse_yaml(adapters.lines()))
    assert not suggest(shape.parameters).fits


def test_layout_shards_the_learner_over_as_few_gpus_as_possible() -> None:
    shape, config = shape_of(Qwen3Config, **WIDE), load_config([], SMALL)
    state = 16 * shape.parameters

    def suggest(gpus: int, share: float) -> Layout:
        """On GPUs that hold this multiple of weights, gradients and optimizer state."""
        memory = (share * state + CONTEXT_BYTES) / USABLE
        device = replace(Devices.parse(f"{gpus}x80GB"), memory=round(memory))
        return find_layout(shape, config, device, PROMPT)

    one, two, all_but_one = suggest(8, 3.0), suggest(8, 1.2), suggest(4, 0.75)
    assert one.changes["monarch.learners"] == 1
    assert "learn.sharding" not in one.changes
    for layout, learners, generators in ((two, 2, 6), (all_but_one, 3, 1)):
        assert layout.fits
        assert layout.changes["learn.sharding"] == "fsdp"
        assert layout.changes["learn.lora_rank"] == 0
        assert layout.changes["monarch.learners"] == learners
        assert layout.changes["monarch.generators"] == generators
        assert Config.model_validate(parse_yaml(layout.lines()))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--gpu", "four cards"], "--gpu"),
        (["--gpu", "0x24GB"], "--gpu"),
        (["--prompt-tokens", "0"], "--prompt-tokens"),
        (["model=no/such/folder"], "no/such/folder"),
        (["learn.lora_rnk=1"], "lora_rank"),
        (["learn.lora_rank=1", "learn.lora_targets=[q_prj]"], "q_proj"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--config", CONFIG, *arguments]) == 2
    message = capsys.readouterr().err
    assert named in message
    assert "Traceback" not in message


@pytest.mark.parametrize(
    "content",
    [
        [], {"model_type": "llama", "hidden_size": -5}, {"model_type": "llama", "num_attention_heads": 0},
        {"model_type": "llama", "num_hidden_layers": 10**9}, {"model_type": "llama", "hidden_size": "x"},
    ],
)  # fmt: skip
def test_hostile_model_configurations_are_refused(
    content: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert main(["plan", "--config", CONFIG, f"model={tmp_path}", *SMALL, "--gpu", "1x24GB"]) == 2
    assert str(tmp_path) in capsys.readouterr().err
