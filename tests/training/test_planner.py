"""`glasshouse plan`: its result, the lines to paste, and bad input."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import Qwen3Config

from glasshouse.cli.app import main
from glasshouse.config.loading import load_config
from glasshouse.config.schema import Config
from glasshouse.config.yaml_files import parse_yaml
from glasshouse.training.layout import CONTEXT_BYTES, USABLE, Devices, Layout, LayoutSearch
from glasshouse.training.memory import ProcessMemory, estimate_memory
from glasshouse.training.traced_model import TracedModel, make_prompts

ROOT = Path(__file__).parents[2]
CONFIG = str(ROOT / "training" / "example.rl" / "config.yaml")
SMALL = ["data.groups_per_step=1", "generate.group_size=2", "generate.max_tokens=8",
         "learn.microbatch_tokens=16", "evaluate.problems=0"]  # fmt: skip


@pytest.fixture(scope="module")
def bare_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's configuration without weights and tokenizer."""
    folder = tmp_path_factory.mktemp("bare")
    Qwen3Config(
        vocab_size=500, hidden_size=64, intermediate_size=96, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=32, tie_word_embeddings=True,
    ).save_pretrained(folder)  # fmt: skip
    return folder


def test_plan_without_weights_suggests_lines_that_validate(
    bare_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"model={bare_folder}", *SMALL, "--prompt-tokens", "12"]
    assert main(["plan", CONFIG, *arguments, "--gpu", "2xA100", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["parameters"] == TracedModel(Qwen3Config.from_pretrained(bare_folder)).parameters
    assert result["fits"]
    assert result["layout"]["fits"]
    [process] = result["processes"]
    assert process["peak"] == max(sum(parts.values()) for parts in process["phases"].values())
    changes = result["layout"]["changes"]
    assert changes["backend"] == "monarch"
    assert changes["monarch.generators"] == 1
    overrides = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    assert load_config([CONFIG], overrides).learn.microbatch_tokens >= 16


def test_layout_uses_adapters_only_if_all_weights_do_not_fit(bare_folder: Path) -> None:
    model = TracedModel(Qwen3Config.from_pretrained(bare_folder))
    config = load_config([], SMALL)
    prompts = make_prompts(12)
    large = Devices.parse("1x24GB")
    layout = LayoutSearch(model, config, large, prompts).run()
    assert layout.fits
    assert layout.changes["learn.lora_rank"] == 0
    assert Config.model_validate(parse_yaml(layout.lines()))
    tiny = Devices.parse("1x1GB")  # less than the context
    assert not LayoutSearch(model, config, tiny, prompts).run().fits


def test_layout_halves_the_microbatch_until_it_fits(bare_folder: Path) -> None:
    model = TracedModel(Qwen3Config.from_pretrained(bare_folder))
    more = ["data.groups_per_step=8", "generate.group_size=8", "learn.microbatch_tokens=512"]
    config = load_config([], [*SMALL, *more])
    prompts = make_prompts(12)
    [process] = estimate_memory(model, config, prompts)
    device = Devices(name="CPU", count=1, memory=process.peak - 1, is_gpu=False)
    layout = LayoutSearch(model, config, device, prompts).run()
    assert layout.fits
    assert layout.changes["learn.microbatch_tokens"] in (256, 128, 64, 32)
    assert not layout.changes["learn.activation_checkpointing"]


def test_layout_shards_the_learner_over_as_few_gpus_as_possible() -> None:
    shape = {
        "vocab_size": 4000, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    }  # fmt: skip
    model = TracedModel(Qwen3Config(**shape))
    config = load_config([], SMALL)
    prompts = make_prompts(12)
    state = 16 * model.parameters

    def suggest(gpus: int, share: float) -> Layout:
        """On GPUs that hold this multiple of weights, gradients and optimizer state."""
        memory = (share * state + CONTEXT_BYTES) / USABLE
        device = replace(Devices.parse(f"{gpus}xA100"), memory=round(memory))
        return LayoutSearch(model, config, device, prompts).run()

    one, two, all_but_one = suggest(8, 3.0), suggest(8, 1.2), suggest(4, 0.7)
    assert one.changes["monarch.learners"] == 1
    assert "learn.sharding" not in one.changes
    for layout, learners, generators in ((two, 2, 6), (all_but_one, 3, 1)):
        assert layout.fits
        changes = layout.changes
        assert changes["learn.sharding"] == "fsdp"
        assert changes["learn.lora_rank"] == 0
        assert changes["monarch.learners"] == learners
        assert changes["monarch.generators"] == generators
        assert Config.model_validate(parse_yaml(layout.lines()))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--gpu", "four cards"], "--gpu"),
        (["--gpu", "0x24GB"], "--gpu"),
        (["--gpu", "1xH10"], "H100"),
        (["--prompt-tokens", "0"], "--prompt-tokens"),
        (["model=no/such/folder"], "no/such/folder"),
        (["learn.lora_rnk=1"], "lora_rank"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", CONFIG, *arguments]) == 2
    message = capsys.readouterr().err
    assert named in message
    assert "Traceback" not in message


def test_unreadable_config_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml" in capsys.readouterr().err


def test_gpus_by_memory_and_by_name() -> None:
    assert Devices.parse("8x80GB").count == 8
    assert Devices.parse("1 x 80 GB").memory == 80 * 10**9
    assert Devices.parse("rtx 4090").memory == 24 * 10**9
    assert not Devices.parse("").is_gpu


def test_more_processes_than_gpus_share_them() -> None:
    def processes(count: int, gigabytes: int) -> list[ProcessMemory]:
        phases = {"learn": {"weights": gigabytes * 10**9}}
        return [ProcessMemory(role="learner", count=count, phases=phases)]

    two = Devices.parse("2x80GB")
    assert two.can_hold(processes(2, 70))
    assert not two.can_hold(processes(3, 50))


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
    assert main(["plan", CONFIG, f"model={tmp_path}", *SMALL, "--gpu", "1x24GB"]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_names_are_printed_as_text(bare_folder: Path, tmp_path: Path, capsys) -> None:
    folder = shutil.copytree(bare_folder, tmp_path / "m[b]\x1b[2J\u202e")
    config = tmp_path / "[b]"
    os.mkfifo(config)
    assert main(["plan", str(config)]) == 2
    assert "not a regular file" in capsys.readouterr().err
    assert (
        main(["plan", CONFIG, f"model={folder}", *SMALL, "--gpu", "1x24GB", "--prompt-tokens", "5"])
        == 0
    )
    printed = capsys.readouterr().out.replace("\n", "")  # long names are wrapped
    assert "\x1b" not in printed
    assert "\\x1b[2J\\u202e" in printed
