"""Tiny random models of many families: they generate, learn, save and load, or are refused clearly.

The chat templates are short versions of the families' own that keep what differs between them: `<bos>`,
the name of the turns, system messages that are rejected or merged, dates, and thinking.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from glasshouse.config.schema import ChatConfig, LearnConfig
from glasshouse.errors import ConfigError, ModelError
from glasshouse.generate.torch_engine import TorchGenerator
from glasshouse.learn.learner import Learner
from glasshouse.learn.microbatches import TrainingSample
from glasshouse.models.adapters import add_adapters
from glasshouse.models.chat_template import (
    check_template_options,
    drops_system_messages,
    find_turn_end,
)
from glasshouse.models.logprobs import CompletionBatch, compute_logprobs
from glasshouse.models.policy import Policy, load_policy, save_policy
from glasshouse.types import Message, Request, SamplingParams

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
TURNS = {
    "gemma": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{% set prefix = messages[0]['content'] + '\n\n' %}{% set rest = messages[1:] %}"
    "{% else %}{% set prefix = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
    "{{ prefix if loop.first }}{{ m['content'] }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
    "llama": "{{ bos_token }}{% for m in messages %}<|header|>{{ m['role'] }}<|/header|>\n\n"
    "{% if m['role'] == 'system' %}Today Date: {{ strftime_now('%d %b %Y') }}\n\n{% endif %}"
    "{{ m['content'] }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|header|>assistant<|/header|>\n\n{% endif %}",
    "olmo": "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    "mistral": "{{ bos_token }}{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
    "{% else %} {{ m['content'] }}{{ eos_token }}{% endif %}{% endfor %}",
    "phi": "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}",
}
FAMILIES: dict[str, tuple[str, str | None, str, str, str]] = {
    # template, bos, eos, end of turn, end of the prompt
    "qwen3": (CHATML, None, "<|endoftext|>", "<|im_end|>", "<|im_start|>assistant\n"),
    "smollm3": (CHATML, None, "<|im_end|>", "<|im_end|>", "<|im_start|>assistant\n"),
    "gemma3_text": (
        TURNS["gemma"], "<bos>", "<eos>", "<end_of_turn>", "<start_of_turn>model\n",
    ),
    "llama": (TURNS["llama"], "<bos>", "<eos>", "<|eot|>", "<|header|>assistant<|/header|>\n\n"),
    "olmo2": (TURNS["olmo"], "<|endoftext|>", "<|endoftext|>", "<|endoftext|>", "<|assistant|>\n"),
    "mistral": (TURNS["mistral"], "<s>", "</s>", "</s>", "[/INST]"),
    "phi3": (TURNS["phi"], "<s>", "<|endoftext|>", "<|end|>", "<|assistant|>\n"),
}  # fmt: skip
SPECIAL = [
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>",
    "<|header|>", "<|/header|>", "<|eot|>", "<s>", "</s>", "<|end|>",
]  # fmt: skip
CHAT: list[Message] = [
    {"role": "system", "content": "You add."},
    {"role": "user", "content": "What is 12 + 34?"},
]
SHAPE = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "bos_token_id": None, "eos_token_id": 1,
    "pad_token_id": 0,
}  # fmt: skip
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 16},
    "smollm3": {"no_rope_layers": [1, 0]},
    "gemma3_text": {
        "head_dim": 16, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"],
    },
    "llama": {},
    "olmo2": {},
    "mistral": {"sliding_window": 8},
    "phi3": {"sliding_window": 8},
    "qwen3_moe": {
        "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    },
    "gpt_neox": {},
    "lfm2": {"block_auto_adjust_ff_dim": False, "layer_types": ["conv", "full_attention"]},
    "falcon_h1": {
        "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1,
    },
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention"], "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8,
        "num_local_experts": 0, "shared_intermediate_size": 48, "position_embedding_type": "rope",
    },
}  # fmt: skip
WITHOUT_LORA = {"falcon_h1"}
"""peft refuses the output projections of their state-space layers; other layers can be named."""


@pytest.fixture(scope="module")
def family_tokenizer(small_tokenizer: Any) -> Callable[[str], Any]:
    """`family_tokenizer("qwen3")`: the small tokenizer with that family's template and special tokens."""
    extended = copy.deepcopy(small_tokenizer)
    extended.add_special_tokens({"additional_special_tokens": SPECIAL})
    extended.add_tokens(["<think>", "</think>"])

    def make(name: str) -> Any:
        tokenizer = copy.deepcopy(extended)
        template, bos, eos, _, _ = FAMILIES.get(name, FAMILIES["qwen3"])
        tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token = template, bos, eos
        return tokenizer

    return make


def make_policy(name: str, tokenizer: Any) -> Policy:
    """A random model whose next-token distributions differ clearly from each other."""
    options = {**SHAPE, "vocab_size": len(tokenizer), **ARCHITECTURES[name]}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8)
    return Policy(name, model, tokenizer, {})


def generate(policy: Policy) -> list[TrainingSample]:
    """Completions of two prompts of different lengths; some end early, so that rows are dropped."""
    policy.model.generation_config.eos_token_id = list(range(20, 60))
    requests = [
        Request(prompt=tuple(range(60, 60 + length)), noise_keys=(1, 2, 3, 4)) for length in (3, 12)
    ]
    groups = TorchGenerator(policy).generate(requests, SamplingParams(max_tokens=16))
    assert len({len(c.tokens) for group in groups for c in group}) > 1
    return [
        TrainingSample(
            prompt=request.prompt, tokens=c.tokens, sampler_logprobs=c.logprobs,
            advantage=1.0 if index % 2 else -1.0,
        )
        for request, group in zip(requests, groups, strict=True)
        for index, c in enumerate(group)
    ]  # fmt: skip


def largest_gap(policy: Policy, samples: list[TrainingSample]) -> float:
    batch = CompletionBatch.from_pairs([(s.prompt, s.tokens) for s in samples])
    with torch.no_grad():
        logprobs, _ = compute_logprobs(policy.model, batch)
    return max(
        (logprobs[row, : len(s.tokens)] - torch.tensor(s.sampler_logprobs)).abs().max().item()
        for row, s in enumerate(samples)
    )


def train_one_step(policy: Policy, samples: list[TrainingSample]) -> None:
    learner = Learner(policy, LearnConfig(learning_rate=1e-3), max_tokens=16, steps=1)
    metrics = learner.update(samples)
    assert 0 < metrics["grad_norm"] < float("inf")


def assert_equal_weights(one: Policy, other: Policy) -> None:
    assert one.weights().keys() == other.weights().keys()
    for name, tensor in one.weights().items():
        assert torch.equal(tensor, other.weights()[name]), name


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architecture_generates_learns_saves_and_loads(
    name: str, family_tokenizer: Callable[[str], Any], tmp_path: Path
) -> None:
    policy = make_policy(name, family_tokenizer(name))
    samples = generate(policy)
    assert largest_gap(policy, samples) < 2e-4
    before = {n: w.clone() for n, w in policy.weights().items()}
    train_one_step(policy, samples)
    moved = [n for n, w in policy.weights().items() if not torch.equal(w, before[n])]
    assert len(moved) > len(before) / 2

    save_policy(policy, tmp_path)
    loaded = load_policy(str(tmp_path))
    assert_equal_weights(loaded, policy)

    if name in WITHOUT_LORA:
        with pytest.raises(ConfigError, match="lora"):
            add_adapters(loaded, 2, seed=0)
        return
    adapted = add_adapters(replace(loaded, model=copy.deepcopy(loaded.model)), 2, seed=0)
    assert largest_gap(adapted, samples) == pytest.approx(largest_gap(loaded, samples), abs=2e-4)
    train_one_step(adapted, samples)
    save_policy(adapted, tmp_path / "merged")
    merged = load_policy(str(tmp_path / "merged"))
    assert largest_gap(merged, generate(merged)) < 2e-4
    changed = sum(not torch.equal(w, loaded.weights()[n]) for n, w in merged.weights().items())
    assert 0 < changed < len(before)


@pytest.mark.parametrize("name", FAMILIES)
def test_prompt_has_each_part_once_and_ends_where_the_model_continues(
    name: str, family_tokenizer: Callable[[str], Any], tmp_path: Path
) -> None:
    tokenizer, (_, bos, _, turn_end, prompt_end) = family_tokenizer(name), FAMILIES[name]
    policy = Policy(name, None, tokenizer, {})
    text, tokens = policy.encode_prompt(CHAT)
    assert text.count("You add.") == 1
    assert text.count("What is 12 + 34?") == 1
    assert text.endswith(prompt_end)
    if bos and "bos_token" in tokenizer.chat_template:
        assert tokens.count(tokenizer.bos_token_id) == 1
        assert tokens[0] == tokenizer.bos_token_id
    assert not drops_system_messages(tokenizer)
    assert find_turn_end(tokenizer) == tokenizer.convert_tokens_to_ids(turn_end)
    if "Date" in text:
        assert "26 Jul 2024" in text  # not today: a resumed run gets the same prompt
    merged, _ = replace(policy, chat=ChatConfig(system_role="merge")).encode_prompt(CHAT)
    assert "You add.\n\nWhat is 12 + 34?" in merged


def test_thinking_can_be_turned_off_and_think_markers_stay_in_the_text(
    family_tokenizer: Callable[[str], Any],
) -> None:
    tokenizer = family_tokenizer("qwen3")
    policy = Policy(
        "qwen3", None, tokenizer, {}, chat=ChatConfig(template_options={"enable_thinking": False})
    )
    assert policy.encode_prompt(CHAT)[0].endswith("<think>\n\n</think>\n\n")
    assert not replace(policy, chat=ChatConfig()).encode_prompt(CHAT)[0].endswith("</think>\n\n")
    ids = tokenizer("<think>It is 46</think>46<|im_end|>", add_special_tokens=False)["input_ids"]
    assert policy.decode(ids) == "<think>It is 46</think>46"


@pytest.mark.parametrize("template", [CHATML, None])
def test_template_option_that_has_no_effect_is_an_error(
    family_tokenizer: Callable[[str], Any], template: str | None
) -> None:
    tokenizer = family_tokenizer("qwen3")
    tokenizer.chat_template = template
    check_template_options(tokenizer, "model", ChatConfig())
    with pytest.raises(ConfigError, match="enable_thinkin"):
        check_template_options(
            tokenizer, "model", ChatConfig(template_options={"enable_thinkin_g": False})
        )


def test_base_model_without_a_template_gets_bos_unless_it_is_the_end_token(
    family_tokenizer: Callable[[str], Any],
) -> None:
    for name, expected in (("gemma3_text", "<bos>"), ("olmo2", ""), ("qwen3", "")):
        tokenizer = family_tokenizer(name)
        tokenizer.chat_template = None
        text, tokens = Policy(name, None, tokenizer, {}).encode_prompt(CHAT)
        assert text == f"{expected}You add.\n\nWhat is 12 + 34?\n\n"
        assert (tokens[0] == tokenizer.bos_token_id) == bool(expected)


@pytest.mark.parametrize(("configured", "template"), [(1, True), (None, True), ([1, 3], False)])
def test_turns_end_with_the_tokens_of_config_tokenizer_and_template(
    family_tokenizer: Callable[[str], Any], tmp_path: Path, configured: Any, template: bool
) -> None:
    tokenizer = family_tokenizer("gemma3_text")
    policy = make_policy("llama", tokenizer)
    policy.model.generation_config.eos_token_id = configured
    if not template:
        tokenizer.chat_template = None
    save_policy(policy, tmp_path)
    expected = set(configured if isinstance(configured, list) else [configured]) - {None}
    expected |= {tokenizer.eos_token_id}
    if template:
        expected |= {tokenizer.convert_tokens_to_ids("<end_of_turn>")}
    assert load_policy(str(tmp_path)).end_tokens == expected


def test_model_without_an_end_token_is_an_error(
    family_tokenizer: Callable[[str], Any], tmp_path: Path
) -> None:
    tokenizer = family_tokenizer("qwen3")
    tokenizer.eos_token = tokenizer.chat_template = None
    policy = make_policy("llama", tokenizer)
    policy.model.generation_config.eos_token_id = policy.model.config.eos_token_id = None
    save_policy(policy, tmp_path)
    with pytest.raises(ModelError, match="eos_token"):
        load_policy(str(tmp_path))


def test_architecture_without_a_cache_is_an_error(
    family_tokenizer: Callable[[str], Any], tmp_path: Path
) -> None:
    tokenizer = family_tokenizer("qwen3")
    config = AutoConfig.for_model(
        "mamba", hidden_size=16, num_hidden_layers=1, state_size=4, vocab_size=len(tokenizer)
    )
    save_policy(Policy("mamba", AutoModelForCausalLM.from_config(config), tokenizer, {}), tmp_path)
    with pytest.raises(ModelError, match="mamba"):
        load_policy(str(tmp_path))


def test_lora_target_that_does_not_exist_is_an_error_with_the_nearest(
    family_tokenizer: Callable[[str], Any],
) -> None:
    policy = make_policy("llama", family_tokenizer("llama"))
    with pytest.raises(ConfigError, match=r'lora_targets.*"q_projj".*"q_proj"'):
        add_adapters(policy, 2, 0, ["v_proj", "q_projj"])
    adapted = add_adapters(policy, 2, 0, ["q_proj"])
    trained = {n for n, p in adapted.model.named_parameters() if p.requires_grad}
    assert trained
    assert all("q_proj" in n for n in trained)
