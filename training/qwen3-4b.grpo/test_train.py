from pathlib import Path

import pytest
import torch
from tests.mock_training import ROOT
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from glasshouse.config.loading import load_config
from glasshouse.training.run import TrainingRun

HERE = Path(__file__).parent


@pytest.mark.parametrize("layout", ["one_gpu.yaml", "one_gpu_24gb.yaml", "eight_gpus.yaml"])
def test_layouts_are_valid_and_train_adapters_with_vllm(layout: str) -> None:
    config = load_config([HERE / "config.yaml", HERE / layout])
    assert config.generate.engine == "vllm"
    assert config.device.startswith("cuda")
    assert config.dtype == "bfloat16"
    assert config.learn.lora_rank
    if config.backend == "monarch":  # the learner's GPU is not one of the generators'
        assert int(config.device.partition(":")[2]) == config.monarch.generators
        assert config.data.groups_per_step >= config.monarch.generators * config.generate.chunk_size


def test_a_tiny_qwen3_takes_the_place_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)  # the mock assets are named relative to it
    tokenizer = AutoTokenizer.from_pretrained("models/mock")
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, head_dim=16, tie_word_embeddings=True,
            eos_token_id=tokenizer.eos_token_id,
        )
    )  # fmt: skip
    model.save_pretrained(tmp_path / "qwen3")
    tokenizer.save_pretrained(tmp_path / "qwen3")
    files = [HERE / "config.yaml", HERE / "one_gpu.yaml", "tests/test_config.yaml"]
    on_this_machine = ["device=cpu", "generate.engine=torch", "chat.template_options={}"]
    config = load_config(
        files,
        [*on_this_machine, f"model={tmp_path / 'qwen3'}", "steps=1", "evaluate.problems=0",
         f"out={tmp_path / 'run'}"],
    )  # fmt: skip
    run = TrainingRun(config)
    summary = run.train()
    assert summary["steps_done"] == 1
    trained = [p for p in run.policy.model.parameters() if p.requires_grad]
    assert sum(p.numel() for p in trained) < model.num_parameters() / 2
