"""The learner against a plain, slow one, and its guarantees."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import PeftModel
from transformers import AutoModelForCausalLM

from glasshouse.config.schema import LearnConfig
from glasshouse.errors import ConfigError, RunError
from glasshouse.generate.torch_engine import TorchGenerator
from glasshouse.learn.learner import Learner, summarize_differences
from glasshouse.learn.losses import LossInputs, algorithm, grpo
from glasshouse.learn.microbatches import TrainingSample, cot_mask, pack_microbatches
from glasshouse.models import llama
from glasshouse.models.adapters import add_adapters
from glasshouse.models.folders import POCKET_FOLDER
from glasshouse.models.logprobs import CompletionBatch, compute_logprobs
from glasshouse.models.policy import Policy, load_policy, save_policy
from glasshouse.models.sources import fingerprint_weights
from glasshouse.types import Request, SamplingParams

Tiny = Callable[..., Policy]
MAX_TOKENS = 16


def make_samples(
    policy: Policy, seed: int = 0, groups: int = 6, zero_groups: int = 2
) -> list[TrainingSample]:
    """Completions sampled by the policy, with arbitrary advantages; those of some groups are 0."""
    draw = random.Random(seed)
    policy.model.generation_config.eos_token_id = list(range(4, 20))
    prompts = [[draw.randrange(4, 200) for _ in range(draw.randint(1, 12))] for _ in range(groups)]
    requests = [
        Request(prompt=tuple(p), noise_keys=tuple(draw.getrandbits(64) for _ in range(4)))
        for p in prompts
    ]
    got = TorchGenerator(policy).generate(requests, SamplingParams(max_tokens=MAX_TOKENS))
    return [
        TrainingSample(
            prompt=request.prompt,
            tokens=c.tokens,
            # a little stale, so that ratios differ from 1 and some are clipped
            sampler_logprobs=[x + draw.gauss(0, 0.15) for x in c.logprobs],
            advantage=0.0 if number < zero_groups else draw.gauss(0, 1),
        )
        for number, (request, group) in enumerate(zip(requests, got, strict=True))
        for c in group
    ]


def make_learner(policy: Policy, **options: Any) -> Learner:
    config = LearnConfig(**{"learning_rate": 1e-4, **options})
    return Learner(policy, config, max_tokens=MAX_TOKENS, steps=10)


def clone(policy: Policy) -> Policy:
    return replace(policy, model=copy.deepcopy(policy.model))


def max_difference(a: Policy, b: Policy) -> float:
    pairs = zip(a.model.parameters(), b.model.parameters(), strict=True)
    return max((x - y).abs().max().item() for x, y in pairs)


def significant_gradients(policy: Policy, noise: float = 1e-5) -> list[torch.Tensor]:
    """Where the last gradient was more than rounding. AdamW takes a full step even where it was not
    (gpt2's key biases have gradient 0 in theory), so weights can be compared only there."""
    gradients = [p.grad for p in policy.model.parameters()]
    masks = [g.abs() > noise for g in gradients]
    assert sum(m.sum() for m in masks) > 0.9 * sum((g != 0).sum() for g in gradients)
    return masks


def max_difference_where(a: Policy, b: Policy, masks: list[torch.Tensor]) -> float:
    pairs = zip(a.model.parameters(), b.model.parameters(), masks, strict=True)
    return max(((x - y).abs() * mask).max().item() for x, y, mask in pairs)


def bitwise_equal(a: Policy, b: Policy) -> bool:
    pairs = zip(a.model.parameters(), b.model.parameters(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


# ── equal to a plain learner ─────────────────────────────────────────────────────────────────────


def plain_logprobs(model: Any, samples: Sequence[TrainingSample]) -> list[torch.Tensor]:
    """transformers' forward over all rows at once, right-padded; one tensor per row."""
    longest = max(len(s.prompt) + len(s.tokens) for s in samples)
    rows = [[*s.prompt, *s.tokens] for s in samples]
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    table = model(input_ids=ids, attention_mask=mask).logits.log_softmax(-1)
    return [
        torch.stack([table[i, len(s.prompt) + t - 1, token] for t, token in enumerate(s.tokens)])
        for i, s in enumerate(samples)
    ]


def plain_loss(name: str, model: Any, samples: Sequence[TrainingSample]) -> torch.Tensor:
    """The mean over rows of the mean over tokens, written out."""
    loss = torch.tensor(0.0)
    for s, logps in zip(samples, plain_logprobs(model, samples), strict=True):
        row = torch.tensor(0.0)
        for logp, old in zip(logps, s.sampler_logprobs, strict=True):
            ratio = (logp - old).exp()
            if name == "grpo":
                clipped = ratio.clamp(0.8, 1.2)
                row = row - torch.minimum(ratio * s.advantage, clipped * s.advantage)
            else:  # reinforce: truncated importance weights
                row = row - ratio.detach().clamp(max=2.0) * s.advantage * logp
        loss = loss + row / len(s.tokens)
    return loss / len(samples)


@pytest.mark.parametrize("architecture", ["llama grouped untied", "qwen3", "gpt2"])
@pytest.mark.parametrize("name", ["grpo", "reinforce"])
def test_updates_equal_those_of_a_plain_learner(tiny: Tiny, name: str, architecture: str) -> None:
    mine = tiny(architecture)
    theirs, start = clone(mine), clone(mine)
    batches = [make_samples(mine, seed) for seed in range(2)]
    options = {"algorithm": name, "learning_rate": 3e-4, "weight_decay": 0.1, "max_grad_norm": 0.5}
    ours = make_learner(mine, microbatch_tokens=100, **options)
    optimizer = torch.optim.AdamW(theirs.model.parameters(), lr=3e-4, weight_decay=0.1)
    masks = [torch.ones_like(p, dtype=torch.bool) for p in mine.model.parameters()]
    for batch in batches:
        reported = ours.update(batch)
        optimizer.zero_grad()
        loss = plain_loss(name, theirs.model, batch)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs.model.parameters(), 0.5)
        assert norm > 0.5  # clipping is at work
        optimizer.step()
        assert reported["loss"] == pytest.approx(loss.item(), abs=1e-5)
        assert reported["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
        gradients = zip(mine.model.parameters(), theirs.model.parameters(), strict=True)
        for got, expected in gradients:
            torch.testing.assert_close(got.grad, expected.grad, atol=1e-6, rtol=1e-4)
        masks = [a & b for a, b in zip(masks, significant_gradients(mine), strict=True)]
    assert max_difference(mine, start) > 5e-4
    assert max_difference_where(mine, theirs, masks) < 1e-6


@pytest.mark.parametrize("name", list(algorithm))
def test_update_does_not_depend_on_microbatches(tiny: Tiny, name: str) -> None:
    start = tiny("llama grouped untied")
    samples = make_samples(start)
    results = []
    for microbatch_tokens in (1, 60, 10_000):
        policy = clone(start)
        make_learner(policy, algorithm=name, microbatch_tokens=microbatch_tokens).update(samples)
        results.append(policy)
    for other in results[1:]:
        for a, b in zip(results[0].model.parameters(), other.model.parameters(), strict=True):
            assert a.grad is not None
            torch.testing.assert_close(a.grad, b.grad, atol=4e-6, rtol=1e-4)
        assert max_difference_where(results[0], other, significant_gradients(other)) < 1e-6
    assert max_difference(results[0], start) > 5e-5


@pytest.mark.parametrize("name", ["grpo", "gspo", "dapo"])  # each way to divide the sum
def test_skipping_rows_of_zero_advantage_changes_nothing(
    tiny: Tiny, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    skipping = tiny("llama")
    complete = clone(skipping)
    # one microbatch per row, so that sums have the same order and can be compared bitwise; all
    # advantages of the second step are zero
    batches = [make_samples(skipping, 0), make_samples(skipping, 1, zero_groups=6)]
    batches += [make_samples(skipping, 2)]
    fast = make_learner(skipping, algorithm=name, microbatch_tokens=1)
    rows = [fast.update(batch)["learned_rows"] for batch in batches]
    assert rows == [16, 0, 16]
    monkeypatch.setattr("glasshouse.learn.learner.can_skip_zero_advantage", lambda _: False)
    slow = make_learner(complete, algorithm=name, microbatch_tokens=1)
    assert [slow.update(batch)["learned_rows"] for batch in batches] == [24, 24, 24]
    assert bitwise_equal(skipping, complete)


@pytest.mark.parametrize("option", [{"kl_coef": 0.1}, {"entropy_coef": 0.1}])
def test_rows_of_zero_advantage_are_trained_if_a_term_needs_them(
    tiny: Tiny, option: dict[str, float]
) -> None:
    policy = tiny("llama")
    assert make_learner(policy, **option).update(make_samples(policy))["learned_rows"] == 24


def test_update_uses_the_sampling_temperature(tiny: Tiny) -> None:
    policy = tiny("llama")
    policy.model.generation_config.eos_token_id = []
    request = Request(prompt=(5, 6), noise_keys=(1, 2, 3))
    [got] = TorchGenerator(policy).generate(
        [request], SamplingParams(max_tokens=8, temperature=0.5)
    )
    samples = [
        TrainingSample(prompt=(5, 6), tokens=c.tokens, sampler_logprobs=c.logprobs, advantage=1.0)
        for c in got
    ]
    for temperature, low, high in ((0.5, 0, 1e-4), (1.0, 0.1, math.inf)):
        learner = Learner(
            clone(policy), LearnConfig(), max_tokens=8, steps=1, temperature=temperature
        )
        assert low <= learner.update(samples)["logprob_diff_max"] < high


# ── packing ──────────────────────────────────────────────────────────────────────────────────────


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), max_size=40), st.integers(1, 200)
)
def test_packing_keeps_every_sample_once_within_the_bound(
    shapes: list[tuple[int, int]], microbatch_tokens: int
) -> None:
    samples = [
        TrainingSample(
            prompt=(0,) * p, tokens=(0,) * t, sampler_logprobs=(0.0,) * t, advantage=float(i)
        )
        for i, (p, t) in enumerate(shapes)
    ]
    parts = pack_microbatches(samples, microbatch_tokens)
    assert sorted(s.advantage for part in parts for s in part) == [s.advantage for s in samples]
    lengths = [[len(s.prompt) + len(s.tokens) for s in part] for part in parts]
    for part in lengths:
        assert len(part) * max(part) <= microbatch_tokens or len(part) == 1
    joined = [length for part in lengths for length in part]
    assert joined == sorted(joined)  # rows of similar length are together
    for part, following in pairwise(lengths):  # no microbatch is smaller than necessary
        assert (len(part) + 1) * following[0] > microbatch_tokens


# ── clipping, schedules, failures ────────────────────────────────────────────────────────────────


def test_learning_rate_warms_up_and_decays() -> None:
    linear = LearnConfig(warmup_steps=4, lr_schedule="linear")
    rates = [linear.rate_factor(step, 12) for step in range(12)]
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]
    cosine = LearnConfig(lr_schedule="cosine")
    rates = [cosine.rate_factor(step, 4) for step in range(4)]
    assert rates == pytest.approx([1.0, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125)])
    assert LearnConfig(warmup_steps=4).rate_factor(11, 12) == 1.0


def test_epochs_are_updates_on_the_same_samples(tiny: Tiny) -> None:
    start = tiny("llama")
    samples = make_samples(start)
    twice, once = clone(start), clone(start)
    make_learner(twice, epochs_per_batch=2).update(samples)
    learner = make_learner(once)
    learner.update(samples)
    learner.update(samples)
    assert bitwise_equal(twice, once)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_loss_raises_and_changes_nothing(tiny: Tiny, value: float) -> None:
    policy = tiny("llama")
    start = clone(policy)
    samples = make_samples(policy)
    samples[-1] = replace(samples[-1], advantage=value)
    learner = make_learner(policy, microbatch_tokens=1)
    with pytest.raises(RunError, match=r"step 1.*learn\.learning_rate is 0\.0001"):
        learner.update(samples)
    assert bitwise_equal(policy, start)
    assert learner.version == 0
    learner.update(make_samples(policy))  # nothing of the failed update is left over
    other = clone(start)
    make_learner(other, microbatch_tokens=1).update(make_samples(start))
    assert bitwise_equal(policy, other)


def test_non_finite_gradient_raises_and_changes_nothing(tiny: Tiny) -> None:
    policy = tiny("llama")
    samples = [replace(s, advantage=1e30 * s.advantage) for s in make_samples(policy)]
    start = clone(policy)
    with pytest.raises(RunError, match=r"inf.*learn\.learning_rate"):
        make_learner(policy).update(samples)
    assert bitwise_equal(policy, start)


# ── terms ────────────────────────────────────────────────────────────────────────────────────────


def on_policy_samples(
    policy: Policy, seed: int, advantage: float = 0.0, groups: int = 6
) -> list[TrainingSample]:
    """Samples with the log-probabilities of the policy itself."""
    samples = make_samples(policy, seed, groups)
    batch = CompletionBatch.from_pairs([(s.prompt, s.tokens) for s in samples])
    with torch.no_grad():
        table, _ = compute_logprobs(policy.model, batch)
    return [
        replace(s, sampler_logprobs=table[i, : len(s.tokens)].tolist(), advantage=advantage)
        for i, s in enumerate(samples)
    ]


PROMPTS = [(5, 6, 7), (8,), (9, 10)]


def expected_next_tokens(
    policy: Policy, reference: Any
) -> tuple[list[TrainingSample], torch.Tensor]:
    """Each next token as often as the policy samples it in expectation, without noise; and the exact
    divergence from the reference that these rows estimate, with grad."""
    rows, divergence = [], torch.tensor(0.0)
    for prompt in PROMPTS:
        now = policy.model(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
        then = reference(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
        divergence = divergence + (now.exp() * (now - then)).sum() / len(PROMPTS)
        for token, logprob in enumerate(now.tolist()):
            row = TrainingSample(
                prompt=prompt, tokens=(token,), sampler_logprobs=(logprob,), advantage=0.0
            )
            rows += [row] * round(math.exp(logprob) * 800)
    return rows, divergence


@pytest.mark.parametrize("name", ["grpo", "reinforce"])
def test_kl_term_follows_the_gradient_of_the_exact_divergence(tiny: Tiny, name: str) -> None:
    policy = tiny("llama", vocab_size=12)
    learner = make_learner(policy, algorithm=name, kl_coef=1.0, max_grad_norm=0, learning_rate=5e-4)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    seen = []
    for _ in range(8):
        samples, divergence = expected_next_tokens(policy, learner.reference)
        expected = torch.autograd.grad(divergence, learner.parameters)
        seen.append(divergence.item())
        learner.update(samples)
        if len(seen) == 1:
            pairs = [(g, p.grad) for g, p in zip(expected, learner.parameters, strict=True)]
            exact, got = (
                torch.cat([x.flatten() for x in side]) for side in zip(*pairs, strict=True)
            )
            assert (exact - got).norm() < 0.03 * exact.norm()
    assert seen[0] > 0.05
    assert seen[-1] < 0.5 * seen[0]


def test_kl_is_reported_without_its_term_and_is_zero_at_the_start(tiny: Tiny) -> None:
    policy = tiny("llama")
    learner = make_learner(policy, learning_rate=3e-3, microbatch_tokens=50)
    assert learner.update(on_policy_samples(policy, 0, advantage=1.0))["kl"] == 0
    learner.update(on_policy_samples(policy, 1, advantage=1.0))
    seen = on_policy_samples(policy, 2)
    measured = seen[::2]  # 24 rows, at most 16 are measured
    now = plain_logprobs(policy.model, measured)
    then = plain_logprobs(learner.reference, measured)
    distance = torch.cat(then) - torch.cat(now)
    expected = (distance.exp() - distance - 1).mean().item()
    assert expected > 1e-3
    assert learner.update(seen)["kl"] == pytest.approx(expected, rel=1e-3)


# ── `kl_tokens: cot` ─────────────────────────────────────────────────────────────────────────────

TEXT = "1+2=3\n[ANSWER] 3"


def encode(policy: Policy, text: str) -> list[int]:
    return [*policy.tokenizer(text)["input_ids"], policy.tokenizer.eos_token_id]


def test_cot_mask_ends_where_the_answer_begins() -> None:
    policy = load_policy("models/mock")
    rows = [encode(policy, TEXT), encode(policy, "[ANSWER] 3")]
    mask = cot_mask(policy, rows)
    cot_tokens = [token for token, inside in zip(rows[0], mask[0].tolist(), strict=True) if inside]
    assert policy.decode(cot_tokens) == "1+2=3\n"
    assert not mask[1].any()


def test_completion_without_cot_gets_no_kl_gradient() -> None:
    grad_norms = {}
    for kl_tokens in ("all", "cot"):
        for text in (TEXT, "[ANSWER] 3"):
            policy = load_policy("models/mock")
            learner = Learner(
                policy, LearnConfig(kl_coef=1.0, kl_tokens=kl_tokens), max_tokens=32, steps=1
            )
            with torch.no_grad():  # away from the starting policy
                next(iter(policy.model.parameters())).mul_(1.1)
            sample = TrainingSample(
                prompt=tuple(encode(policy, "What?")), tokens=(row := encode(policy, text)),
                sampler_logprobs=[0.0] * len(row), advantage=0.0,
            )  # fmt: skip
            grad_norms[kl_tokens, text] = learner.update([sample])["grad_norm"]
    assert grad_norms["all", "[ANSWER] 3"] > 0
    assert grad_norms["cot", "[ANSWER] 3"] == 0
    assert 0 < grad_norms["cot", TEXT] != grad_norms["all", TEXT]


def test_differences_of_sampler_and_learner_are_summarized() -> None:
    values = torch.arange(1.0, 101.0)
    expected = {"logprob_diff_p50": 50.0, "logprob_diff_p99": 99.0, "logprob_diff_max": 100.0}
    assert summarize_differences([values[60:], values[:60]]) == expected
    assert set(summarize_differences([]).values()) == {0.0}


# ── adapters, determinism ────────────────────────────────────────────────────────────────────────


def test_only_adapters_are_trained_and_a_merged_checkpoint_generates_the_same(
    pocket: Policy, tmp_path: Path
) -> None:
    start = clone(pocket)
    policy = add_adapters(pocket, rank=4, seed=0)
    assert llama.find_kernel_obstacle(policy.model, policy.dtype)
    trainable = {n for n, p in policy.model.named_parameters() if p.requires_grad}
    assert trainable
    assert all("lora_" in name for name in trainable)
    prompts = [
        policy.encode_prompt([{"role": "user", "content": f"{n} + 7?"}])[1] for n in range(40, 48)
    ]
    requests = [Request(prompt=p, noise_keys=(1, 2)) for p in prompts]
    generator = TorchGenerator(policy)
    greedy = SamplingParams(max_tokens=30, temperature=0)
    at_start = generator.generate(requests, greedy)
    base = [[c.tokens for c in g] for g in TorchGenerator(start).generate(requests, greedy)]
    assert [[c.tokens for c in g] for g in at_start] == base  # adapters start as zero

    frozen = {n: p.clone() for n, p in policy.model.named_parameters() if n not in trainable}
    learner = make_learner(policy, learning_rate=2e-2)
    for _ in range(3):
        got = generator.generate(requests, SamplingParams(max_tokens=30))
        samples = [
            TrainingSample(
                prompt=r.prompt, tokens=c.tokens, sampler_logprobs=c.logprobs, advantage=(-1.0) ** i
            )
            for r, group in zip(requests, got, strict=True)
            for i, c in enumerate(group)
        ]
        assert learner.update(samples)["logprob_diff_max"] < 1e-4
        generator.load_weights(policy.weights(), learner.version)
    after = dict(policy.model.named_parameters())
    assert all(torch.equal(after[name], value) for name, value in frozen.items())

    trained = generator.generate(requests, greedy)
    assert [[c.tokens for c in g] for g in trained] != base
    save_policy(policy, tmp_path)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert {n for n, _ in merged.named_parameters()} == {
        n for n, _ in start.model.named_parameters()
    }
    for request, group in zip(requests, trained, strict=True):
        ids = torch.tensor([request.prompt])
        out = merged.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=30, do_sample=False,
            pad_token_id=0,
        )  # fmt: skip
        assert tuple(out[0, len(request.prompt) :].tolist()) == group[0].tokens
    assert hasattr(policy.model, "peft_config")  # saving did not merge the policy being trained

    save_policy(policy, tmp_path / "small", merge_adapters=False)
    assert not list((tmp_path / "small").glob("*.safetensors"))
    base, ids = AutoModelForCausalLM.from_pretrained(POCKET_FOLDER), torch.tensor([prompts[0]])
    for folder in (tmp_path, tmp_path / "small"):
        assert {f.name for f in (folder / "adapter").iterdir()} == {
            "adapter_config.json",
            "adapter_model.safetensors",
        }
        by_peft = PeftModel.from_pretrained(copy.deepcopy(base), folder / "adapter").eval()
        assert torch.allclose(by_peft(ids).logits, merged(ids).logits, atol=2e-5)
    by_transformers = AutoModelForCausalLM.from_pretrained(tmp_path / "small" / "adapter")
    assert torch.allclose(by_transformers(ids).logits, merged(ids).logits, atol=2e-5)


def test_adapters_of_a_bfloat16_model_learn_without_copies_of_it(tmp_path: Path) -> None:
    """As on a GPU: the frozen model stays in bfloat16, and transformers and peft compute it."""
    policy = add_adapters(load_policy("pocket", dtype=torch.bfloat16), rank=4, seed=0)
    policy = replace(policy, dtype=torch.bfloat16)
    assert {p.dtype for p in policy.model.parameters() if p.requires_grad} == {torch.float32}
    frozen = {n: p for n, p in policy.weights().items() if "lora_" not in n}
    assert {p.dtype for p in frozen.values()} == {torch.bfloat16}
    before, fingerprint = {n: p.clone() for n, p in frozen.items()}, fingerprint_weights(policy)
    learner = make_learner(policy, learning_rate=2e-2)
    assert learner.reference is policy.model
    prompt = policy.encode_prompt([{"role": "user", "content": "40 + 7?"}])[1]
    sampling, generator = SamplingParams(max_tokens=12), TorchGenerator(policy)
    for _ in range(2):
        [group] = generator.generate([Request(prompt=prompt, noise_keys=(1, 2))], sampling)
        samples = [
            TrainingSample(
                prompt=prompt, tokens=c.tokens, sampler_logprobs=c.logprobs, advantage=(-1.0) ** i
            )
            for i, c in enumerate(group)
        ]
        assert learner.update(samples)["logprob_diff_p50"] < 0.05
    assert all(torch.equal(frozen[name], value) for name, value in before.items())
    assert fingerprint_weights(policy) != fingerprint
    save_policy(policy, tmp_path)
    saved = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert saved.dtype == torch.bfloat16
    ids = torch.tensor([prompt])
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.allclose(saved(ids).logits, policy.model(ids).logits, atol=0.5)


def test_a_learner_without_divergence_holds_no_reference(tiny: Tiny) -> None:
    config, options = LearnConfig(), {"max_tokens": MAX_TOKENS, "steps": 10}
    with_metric, without = (
        Learner(tiny("llama"), config, kl_every=n, **options) for n in (0, None)
    )
    samples = make_samples(with_metric.policy, 0)
    assert "kl" in with_metric.update(samples)
    assert without.reference is None
    assert "kl" not in without.update(samples)
    assert bitwise_equal(with_metric.policy, without.policy)


def test_update_without_samples_changes_nothing(tiny: Tiny) -> None:
    policy = tiny("llama")
    start = clone(policy)
    report = make_learner(policy).update([])
    assert (report["loss"], report["grad_norm"], report["learned_rows"]) == (0, 0, 0)
    empty = TrainingSample(prompt=(5,), tokens=(), sampler_logprobs=(), advantage=1.0)
    assert make_learner(policy).update([empty])["learned_rows"] == 0
    assert bitwise_equal(policy, start)


def test_a_loss_reads_its_own_inputs_from_the_samples(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tiny("llama")
    samples = make_samples(policy)
    seen: dict[float, tuple[int, float]] = {}

    def loss(inputs: LossInputs) -> Any:
        for row, number in zip(inputs.extra["weight"], inputs.advantages.tolist(), strict=True):
            seen[number] = (int((row != 0).sum()), row.sum().item())
        return grpo(inputs)

    monkeypatch.setitem(algorithm.parts, "weighted", loss)
    facts = {**algorithm.facts["grpo"], "inputs": ("weight",)}
    monkeypatch.setitem(algorithm.facts, "weighted", facts)
    weighted = [
        replace(s, advantage=float(n), extra={"weight": [0.5] * len(s.tokens)})
        for n, s in enumerate(samples, start=1)
    ]
    make_learner(policy, algorithm="weighted").update(weighted)
    assert seen == {s.advantage: (len(s.tokens), len(s.tokens) / 2) for s in weighted}
    with pytest.raises(ConfigError, match="weight"):
        make_learner(policy, algorithm="weighted").update(samples)
