"""`kl_tokens: cot`: the KL term applies to the chain of cot_tokens only."""

from __future__ import annotations

import torch

from glasshouse.config.schema import LearnConfig
from glasshouse.learn.learner import Learner
from glasshouse.learn.microbatches import TrainingSample, cot_mask
from glasshouse.models.policy import Policy, load_policy

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
