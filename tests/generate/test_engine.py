"""The engine against transformers' `generate` and the learner's forward, and its guarantees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from glasshouse.config.schema import GenerateConfig
from glasshouse.errors import ConfigError
from glasshouse.generate.decoders import TransformersDecoder, make_decoder
from glasshouse.generate.llama_decoder import LlamaDecoder
from glasshouse.generate.torch_engine import TorchGenerator
from glasshouse.models import devices, llama
from glasshouse.models.logprobs import CompletionBatch, compute_logprobs
from glasshouse.models.policy import Policy
from glasshouse.types import Completion, FinishReason, Request, SamplingParams

Tiny = Callable[..., Policy]
NAMES = ["llama", "llama grouped untied", "llama biased", "qwen2", "qwen3", "gpt2"]
LENGTHS = [3, 11, 1, 7, 20, 5, 2, 9]
GREEDY = SamplingParams(max_tokens=24, temperature=0)
SAMPLED = SamplingParams(max_tokens=24)


def make_prompts(policy: Policy, lengths: Sequence[int] = LENGTHS) -> list[tuple[int, ...]]:
    """Prompts of these lengths with arbitrary tokens."""
    generator = torch.Generator().manual_seed(7)
    vocabulary = policy.model.config.vocab_size
    return [
        tuple(torch.randint(4, vocabulary, (n,), generator=generator).tolist()) for n in lengths
    ]


def check_step(
    decoder: Any, policy: Policy, texts: list[list[int]], generator: torch.Generator
) -> None:
    """Appends a random token to every text; the decoder's logits after it are those of a plain forward pass."""
    vocabulary = policy.model.config.vocab_size
    new = torch.randint(0, vocabulary, (len(texts),), generator=generator)
    logits = decoder.step(new)
    for text, token in zip(texts, new.tolist(), strict=True):
        text.append(token)
    expected = [policy.model(torch.tensor([text])).logits[0, -1] for text in texts]
    torch.testing.assert_close(logits, torch.stack(expected), atol=1e-4, rtol=0)


def question_prompts(policy: Policy) -> list[tuple[int, ...]]:
    """Chat prompts for the pocket model."""
    texts = [f"What is the sum of the digits of {n}?" for n in (4, 58, 1234567, 90210, 333, 17)]
    return [policy.encode_prompt([{"role": "user", "content": text}])[1] for text in texts]


def transformers_greedy(policy: Policy, prompt: Sequence[int], tokens: int) -> list[int]:
    """transformers' greedy completion, one prompt at a time, so that no padding can hide a mistake."""
    ids = torch.tensor([prompt])
    out = policy.model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False,
        pad_token_id=0,
    )  # fmt: skip
    return out[0, len(prompt) :].tolist()


def set_end_tokens(policy: Policy, tokens: list[int] | None) -> None:
    policy.model.generation_config.eos_token_id = tokens


def end_at_different_lengths(policy: Policy, prompts: Sequence[tuple[int, ...]]) -> None:
    """Makes end tokens of the second, fourth, … tokens of the completions of some prompts."""
    set_end_tokens(policy, [])
    ends = [transformers_greedy(policy, p, 24)[2 * i + 1] for i, p in enumerate(prompts[:-2])]
    set_end_tokens(policy, ends)


@pytest.fixture
def compactions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each compaction kept."""
    seen: list[int] = []
    for decoder in (LlamaDecoder, TransformersDecoder):
        original = decoder.compact

        def spy(self: Any, active: torch.Tensor, original: Any = original) -> torch.Tensor:
            rows = original(self, active)
            seen.append(len(rows))
            return rows

        monkeypatch.setattr(decoder, "compact", spy)
    return seen


def flat(groups: list[list[Completion]]) -> list[Completion]:
    return [c for group in groups for c in group]


def tokens_of(groups: list[list[Completion]]) -> list[list[tuple[int, ...]]]:
    return [[c.tokens for c in group] for group in groups]


# ── equal to transformers, equal to the learner ──────────────────────────────────────────────────


@pytest.mark.parametrize("name", NAMES)
def test_greedy_equals_transformers_generate(tiny: Tiny, name: str, compactions: list[int]) -> None:
    policy = tiny(name)
    prompts = make_prompts(policy)
    end_at_different_lengths(policy, prompts)
    assert llama.is_supported(policy.model) == (name != "gpt2")
    got = TorchGenerator(policy).generate(
        [Request(prompt=p, noise_keys=(0,)) for p in prompts], GREEDY
    )
    expected = [transformers_greedy(policy, p, GREEDY.max_tokens) for p in prompts]
    assert [list(group[0].tokens) for group in got] == expected
    lengths = {len(tokens) for tokens in expected}
    assert len(lengths) > 3  # rows end at different times
    if llama.find_kernel_obstacle(policy.model, policy.dtype):
        assert len(compactions) > 1  # and finished ones are dropped
    assert len({t for tokens in expected for t in tokens}) > 10  # not one token repeated


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("name", [*NAMES, "pocket"])
def test_sampled_logprobs_equal_those_of_the_learner(
    tiny: Tiny, pocket: Policy, name: str, temperature: float
) -> None:
    sampling = replace(SAMPLED, temperature=temperature)
    if name == "pocket":
        policy, prompts = pocket, question_prompts(pocket)
        sampling = replace(sampling, max_tokens=100)
    else:
        policy = tiny(name)
        prompts = make_prompts(policy)
        set_end_tokens(policy, list(range(4, 40)))
    assert max_logprob_diff(policy, prompts, sampling) < 1e-4


def max_logprob_diff(
    policy: Policy, prompts: list[tuple[int, ...]], sampling: SamplingParams
) -> float:
    requests = [
        Request(prompt=p, noise_keys=(4 * i, 4 * i + 1, 4 * i + 2)) for i, p in enumerate(prompts)
    ]
    got = TorchGenerator(policy).generate(requests, sampling)
    pairs = [(r.prompt, c.tokens) for r, group in zip(requests, got, strict=True) for c in group]
    assert len({len(tokens) for _, tokens in pairs}) > 3
    batch = CompletionBatch.from_pairs(pairs)
    with torch.no_grad():
        expected, _ = compute_logprobs(policy.model, batch, sampling.temperature)
    mine = torch.zeros(batch.mask.shape)
    for row, completion in enumerate(flat(got)):
        mine[row, : len(completion.logprobs)] = torch.tensor(completion.logprobs)
    assert mine.min() < -1  # the samples are not all near-certain tokens
    return (mine - expected).abs().max().item()


# ── rows: compaction ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("active", "grid_after"),
    [
        ([[1, 1, 0, 0], [0, 1, 0, 1], [0, 0, 1, 1]], (3, 2)),  # half of the cells are left out
        ([[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 1, 1]], (2, 3)),  # a prompt without samples
        ([[1, 1, 1, 1], [0, 1, 1, 0], [0, 1, 0, 0]], (3, 4)),  # no cell would be left out
        ([[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]], (1, 1)),  # the last one
    ],
)
@pytest.mark.parametrize("start", [0, 1, 5])
@pytest.mark.parametrize("name", ["llama grouped untied", "qwen3"])
def test_the_llama_family_drops_every_finished_row(
    tiny: Tiny,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    start: int,
    active: list[list[int]],
    grid_after: tuple[int, int],
) -> None:
    monkeypatch.setattr(devices, "LARGE_MODEL_PARAMETERS", 0)
    policy = tiny(name)
    decoder = make_decoder(policy.model)
    assert isinstance(decoder, LlamaDecoder)
    prompts = [
        (*range(3, 3 + start), 20 + i, *prompt)
        for i, prompt in enumerate(make_prompts(policy, [6, 2, 9]))
    ]
    texts = [list(p) for p in prompts for _ in range(4)]
    generator = torch.Generator().manual_seed(1)
    with torch.inference_mode():
        decoder.prefill(prompts, 4, 8)
        keys_of_start, _ = decoder.shared_prefix_cache[0]
        assert keys_of_start.shape[1] == start  # stored once for all prompts
        for step in range(7):
            check_step(decoder, policy, texts, generator)
            if step in (1, 3):  # first one sample of the second prompt, then those of the case
                mask = torch.ones(12, dtype=torch.bool)
                mask[4] = False
                if step == 3:
                    mask = torch.tensor(active, dtype=torch.bool).flatten()[mask]
                remaining = mask.nonzero()[:, 0].tolist()
                assert decoder.compact(mask).tolist() == remaining
                texts = [texts[i] for i in remaining]
        assert (decoder.groups, decoder.group_size) == grid_after
        again = torch.ones(len(texts), dtype=torch.bool)
        assert decoder.compact(again).tolist() == list(range(len(texts)))


# ── keyed noise ──────────────────────────────────────────────────────────────────────────────────


def test_equal_keys_give_the_same_tokens_in_any_batch_and_others_differ(tiny: Tiny) -> None:
    policy = tiny("llama grouped untied")
    generator = TorchGenerator(policy)
    prompts = make_prompts(policy)
    together = generator.generate(
        [
            Request(prompt=p, noise_keys=(10 * i, 10 * i + 1, 10 * i + 2))
            for i, p in enumerate(prompts)
        ],
        SAMPLED,
    )
    for i, prompt in enumerate(prompts):
        alone = generator.generate(
            [Request(prompt=prompt, noise_keys=(10 * i + 2, 10 * i))], SAMPLED
        )
        assert [c.tokens for c in alone[0]] == [together[i][2].tokens, together[i][0].tokens]
    request = Request(prompt=prompts[0], noise_keys=(1, 2, 3, 4, 1, 2**64 - 1))
    [got] = generator.generate([request], SAMPLED)
    assert got[0].tokens == got[4].tokens
    assert len({c.tokens for c in got}) == 5


# ── completions ─────────────────────────────────────────────────────────────────────────


def test_requests_may_have_unequal_numbers_of_samples(tiny: Tiny, compactions: list[int]) -> None:
    policy = tiny("llama grouped untied")
    generator = TorchGenerator(policy)
    prompts = make_prompts(policy)
    keys_per_request = [(1,), (2, 3, 4, 5, 6, 7, 8), (), (9, 10), (11,), (12,), (), (13,)]
    requests = [
        Request(prompt=p, noise_keys=k) for p, k in zip(prompts, keys_per_request, strict=True)
    ]
    got = generator.generate(requests, SAMPLED)
    assert compactions[0] == 13  # unused rows are dropped before the first step
    assert [len(group) for group in got] == [1, 7, 0, 2, 1, 1, 0, 1]
    assert generator.generate([], SAMPLED) == []
    for request, group in zip(requests, got, strict=True):
        assert tokens_of([group]) == tokens_of(generator.generate([request], SAMPLED))


@pytest.mark.parametrize("limit", [1, 2, 9])
def test_completion_ends_at_the_token_limit_or_with_an_end_token(tiny: Tiny, limit: int) -> None:
    policy = tiny("qwen2")
    set_end_tokens(policy, None)
    assert policy.end_tokens == {policy.tokenizer.eos_token_id}  # if the model has none
    ends = set(range(4, 60))
    set_end_tokens(policy, sorted(ends))
    requests = [Request(prompt=p, noise_keys=tuple(range(8))) for p in make_prompts(policy)]
    got = flat(TorchGenerator(policy).generate(requests, SamplingParams(max_tokens=limit)))
    for completion in got:
        assert len(completion.tokens) == len(completion.logprobs)
        assert not ends & set(completion.tokens[:-1])
        if completion.tokens[-1] in ends:
            assert completion.finish_reason == FinishReason.END
            assert 1 <= len(completion.tokens) <= limit
        else:
            assert completion.finish_reason == FinishReason.LENGTH
            assert len(completion.tokens) == limit
    assert {c.finish_reason for c in got} == {FinishReason.END, FinishReason.LENGTH}


def force_tokens(policy: Policy, tokens: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the engine sample these tokens, whatever the logits."""
    remaining = iter(tokens)

    def sample(logits: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((len(logits),), next(remaining)), torch.zeros(len(logits))

    monkeypatch.setattr("glasshouse.generate.torch_engine.sample_tokens", sample)


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("It is 46. Or 47.", "46.", "It is 46."),
        ("1 + 2 = 3\n\nNext", "\n\n", "1 + 2 = 3\n\n"),
        ("naïve 😀 yes", "😀", "naïve 😀"),  # one character, four tokens
        ("a b c d", "c d", "a b c d"),
        ("nothing of the kind", "STOP", None),
    ],
)
def test_stop_string_may_span_several_tokens(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, text: str, stop: str, expected: str | None
) -> None:
    policy = tiny("llama")
    tokens = policy.tokenizer(text)["input_ids"]
    force_tokens(policy, tokens, monkeypatch)
    sampling = SamplingParams(max_tokens=len(tokens), stop=("never", stop))
    [[got]] = TorchGenerator(policy).generate([Request(prompt=(5,), noise_keys=(1,))], sampling)
    if expected is None:
        assert got.finish_reason == FinishReason.LENGTH
        assert policy.decode(got.tokens) == text
    else:
        assert got.finish_reason == FinishReason.STOP
        assert policy.decode(got.tokens) == expected


# ── bounds, versions, weights ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_small_cache_splits_batches_and_gives_the_same_completions(
    tiny: Tiny, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tiny(name)
    decoder = LlamaDecoder if name == "llama" else TransformersDecoder
    rows: list[tuple[int, int, int]] = []
    original = decoder.prefill

    def spy(self: Any, prompts: Any, group_size: int, max_new_tokens: int) -> torch.Tensor:
        rows.append((len(prompts), group_size, max(len(p) for p in prompts) + max_new_tokens))
        return original(self, prompts, group_size, max_new_tokens)

    monkeypatch.setattr(decoder, "prefill", spy)
    requests = [
        Request(prompt=p, noise_keys=tuple(range(10 * i, 10 * i + 1 + 7 * (i % 3))))
        for i, p in enumerate(make_prompts(policy))
    ]
    requests += [
        Request(prompt=(7, 8), noise_keys=tuple(range(1000, 1120)))
    ]  # too many for one batch
    whole = TorchGenerator(policy).generate(requests, SAMPLED)
    assert len(rows) == 1
    rows.clear()
    parts = TorchGenerator(policy, GenerateConfig(kv_cache_mb=1)).generate(requests, SAMPLED)
    token_bytes = 2 * 4 * 32 * 2  # keys and values, float32, hidden size, layers
    assert len(rows) > 3
    assert max(g * k * length * token_bytes for g, k, length in rows) <= 2**20
    assert tokens_of(parts) == tokens_of(whole)


def test_prompt_that_does_not_fit_is_an_error(tiny: Tiny) -> None:
    generator = TorchGenerator(tiny("llama"))
    fits = Request(prompt=(5,) * 104, noise_keys=(1,))
    assert len(generator.generate([fits], SAMPLED)[0][0].tokens) == 24  # 128 in total
    with pytest.raises(ConfigError, match=r"105.*24.*128.*generate\.max_tokens"):
        generator.generate([Request(prompt=(5,) * 105, noise_keys=(1,))], SAMPLED)
    with pytest.raises(ConfigError, match="no tokens"):
        generator.generate([Request(prompt=(), noise_keys=(1,))], SAMPLED)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_loaded_weights_are_used_with_their_version(tiny: Tiny, name: str, in_place: bool) -> None:
    """Those of another process are copied; the policy's own, changed in place, stay where they are."""
    mine, theirs = tiny(name, seed=0), tiny(name, seed=1)
    requests = [Request(prompt=p, noise_keys=(1,)) for p in make_prompts(mine)]
    expected = TorchGenerator(theirs).generate(requests, GREEDY)
    generator = TorchGenerator(mine, version=3)
    before = generator.generate(requests, GREEDY)
    assert tokens_of(before) != tokens_of(expected)
    assert {c.policy_version for c in flat(before)} == {3}
    pointers = [p.data_ptr() for p in mine.model.parameters()]
    if in_place:
        mine.model.load_state_dict(theirs.model.state_dict())
    generator.load_weights(mine.weights() if in_place else theirs.weights(), 4)
    for value in theirs.weights().values():  # the sender may continue with its own copy
        value.zero_()
    after = generator.generate(requests, GREEDY)
    assert tokens_of(after) == tokens_of(expected)
    assert {c.policy_version for c in flat(after)} == {4}
    assert [p.data_ptr() for p in mine.model.parameters()] == pointers
