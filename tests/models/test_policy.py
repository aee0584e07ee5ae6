"""Loading and saving models, and the fast forward pass against transformers' own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from glasshouse.cli.app import main
from glasshouse.errors import ModelError
from glasshouse.models import llama, validation
from glasshouse.models.logprobs import CompletionBatch, compute_logprobs
from glasshouse.models.policy import Policy, load_policy, save_policy

Tiny = Callable[..., Policy]
FAST = ["llama", "llama grouped untied", "llama biased", "qwen2", "qwen3"]


@pytest.fixture
def folder(tiny: Tiny, tmp_path: Path) -> Path:
    """A saved model for tests that damage it."""
    save_policy(tiny("llama"), tmp_path / "model")
    return tmp_path / "model"


def load_error(name: str | Path) -> str:
    with pytest.raises(ModelError) as caught:
        load_policy(str(name))
    message = str(caught.value)
    assert re.match(r'^(".+"|[A-Z]).*', message)
    assert "\n" not in message
    assert "Traceback" not in message
    return message


# ── loading ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["nowhere", "./nowhere/at/all", "/no/such/folder", "~/none", ""])
def test_missing_folder_is_an_error(name: str) -> None:
    assert f'"{name}"' in load_error(name)


def test_file_or_folder_without_a_model_is_an_error(tmp_path: Path) -> None:
    assert "config.json" in load_error(tmp_path)
    (tmp_path / "file").write_text("x")
    assert str(tmp_path / "file") in load_error(tmp_path / "file")


def test_unreachable_hub_is_an_error_with_the_download_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = load_error("no-such-org/no-such-model")
    assert "hf download no-such-org/no-such-model --local-dir models/no-such-model" in message


class Tripwire:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.marker,))


@pytest.mark.parametrize(
    "file", ["config.json", "generation_config.json", "tokenizer_config.json", "glasshouse.json"]
)
@pytest.mark.parametrize("content", ["[1, 2]", "{", "[" * 100_000], ids=["list", "cut", "deep"])
def test_json_file_that_is_not_an_object_is_an_error(folder: Path, file: str, content: str) -> None:
    (folder / file).write_text(content)
    assert file in load_error(folder)


def test_adapters_alone_are_an_error(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")
    assert "adapters" in load_error(folder)


LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "  "}


def edit_json(file: Path, **values: Any) -> None:
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(content | values))


@pytest.mark.parametrize(
    ("file", "values", "named"),
    [
        (
            "tokenizer.json",
            {"normalizer": {"type": "Sequence", "normalizers": [SPACES] * 28}},
            "tokenizer",
        ),
        ("config.json", {"num_hidden_layers": 1_000_000}, "num_hidden_layers"),
        ("config.json", {"vocab_size": 40}, "only 40 tokens"),
        ("config.json", {"eos_token_id": [0, 1, "x"]}, "eos_token_id 'x'"),
        ("generation_config.json", {"eos_token_id": 1.5}, "eos_token_id 1.5"),
        (
            "model.safetensors.index.json",
            {"weight_map": {"a": "../b.safetensors"}},
            "../b.safetensors",
        ),
        ("glasshouse.json", {"task_options": [1]}, "task_options"),
        ("glasshouse.json", {"task_options": {"sum_digits": {"cot": 3}}}, "task_options"),
    ],
)
def test_folder_that_would_hang_or_fail_later_is_an_error_at_once(
    folder: Path,
    file: str,
    values: dict[str, Any],
    named: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(validation, "MAX_CPU_SECONDS", 1)
    edit_json(folder / file, **values)
    for command in (["train", "--dry-run", f"model={folder}"], ["eval", str(folder)]):
        assert main(command) == 2
        message = capsys.readouterr().err
        assert named in message
        assert str(folder) in message


def test_folder_that_passed_is_not_tried_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_policy(str(folder))
    monkeypatch.setattr(validation, "probe_model", None)
    load_policy(str(folder))
    edit_json(folder / "config.json", rope_theta=5000.0)
    with pytest.raises(TypeError):
        load_policy(str(folder))


@pytest.mark.parametrize("template", ["{{ 1 / 0 }}", "{% if %}", "{{ messages.x.y }}"])
def test_chat_template_that_fails_is_an_error(folder: Path, template: str) -> None:
    (folder / "chat_template.jinja").write_text(template)
    policy = load_policy(str(folder))
    with pytest.raises(ModelError, match="chat template"):
        policy.encode_prompt([{"role": "user", "content": "1 + 1?"}])


# ── saving ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", [*FAST, "gpt2"])
def test_saved_model_loads_with_transformers_and_is_equal(
    tiny: Tiny, tmp_path: Path, name: str
) -> None:
    policy = tiny(name)
    save_policy(policy, tmp_path)
    tokens = torch.randint(0, 250, (2, 9))
    with torch.no_grad():
        expected = policy.model(tokens).logits
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path).eval()(tokens).logits
        ours = load_policy(str(tmp_path)).model(tokens).logits
    assert torch.equal(theirs, expected)
    assert torch.equal(ours, expected)
    assert list(tmp_path.glob("*.safetensors"))
    assert not list(tmp_path.glob("*.bin"))


def test_saved_policy_keeps_tokenizer_card_and_end_tokens(pocket: Policy, tmp_path: Path) -> None:
    policy = Policy("x", pocket.model, pocket.tokenizer, {"task_options": {"t": {"cot": {"n": 3}}}})
    policy.model.generation_config.eos_token_id = [1, 3]
    save_policy(policy, tmp_path)
    reloaded = load_policy(str(tmp_path))
    assert reloaded.card == policy.card
    assert reloaded.end_tokens == {1, 3}
    assert reloaded.context_length == policy.context_length
    chat: list[Any] = [{"role": "system", "content": "s"}, {"role": "user", "content": "4 + 38?"}]
    assert reloaded.encode_prompt(chat) == policy.encode_prompt(chat)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert (
        theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        == (policy.encode_prompt(chat)[0])
    )


def test_arbitrary_tokens_decode_to_valid_unicode(pocket: Policy) -> None:
    rows = [list(range(start, start + 7)) for start in range(0, 400, 7)]
    texts = pocket.decode_batch(rows)
    assert texts == [pocket.decode(row) for row in rows]
    for text in texts:
        assert text.encode().decode() == text  # no lone surrogates
        assert "<|" not in text


# ── the fast forward pass ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "rotation",
    [
        {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 32, "rope_theta": 5e5},
    ],
)  # fmt: skip
def test_scaled_rotary_embeddings_equal_transformers(tiny: Tiny, rotation: dict[str, Any]) -> None:
    policy = tiny("llama", rope_parameters=rotation)
    assert llama.is_supported(policy.model)
    tokens = torch.randint(0, 250, (1, 100), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        weights = llama.read_weights(policy.model)
        hidden, _ = llama.forward(weights, tokens)
        expected = policy.model(tokens).logits
        plain = tiny("llama").model(tokens).logits
    assert (expected - plain).abs().max() > 1e-2  # the scaling has an effect
    torch.testing.assert_close(F.linear(hidden, weights.head), expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpt2", {}),
        ("llama", {"hidden_act": "gelu"}),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    ],
)
def test_unsupported_models_do_not_use_the_fast_forward(
    tiny: Tiny, name: str, changes: dict[str, Any]
) -> None:
    assert not llama.is_supported(tiny(name, **changes).model)


@pytest.mark.parametrize("name", [*FAST, "gpt2"])
def test_logprobs_equal_a_plain_log_softmax(tiny: Tiny, name: str) -> None:
    policy = tiny(name)
    rows = [((5, 6, 7), (8, 9)), ((10,), (11, 12, 13, 14)), ((20, 21, 22, 23, 24), (25,))]
    with torch.no_grad():
        got, entropy = compute_logprobs(
            policy.model, CompletionBatch.from_pairs(rows), 0.8, entropy=True
        )
        for row, (prompt, completion) in enumerate(rows):
            logits = policy.model(torch.tensor([[*prompt, *completion]])).logits[0].double() / 0.8
            expected = logits[len(prompt) - 1 : -1].log_softmax(-1)
            length = len(completion)
            chosen = expected[torch.arange(length), torch.tensor(completion)]
            torch.testing.assert_close(got[row, :length].double(), chosen, atol=1e-5, rtol=0)
            spread = -(expected.exp() * expected).sum(-1)
            assert entropy is not None
            torch.testing.assert_close(entropy[row, :length].double(), spread, atol=1e-5, rtol=0)
            assert (got[row, length:] == 0).all()
            assert (entropy[row, length:] == 0).all()
