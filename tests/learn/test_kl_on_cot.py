"""KL on the chain of thought alone: nothing pulls the answer back to the start."""

from __future__ import annotations

import torch

from glasshouse.config import LearnConfig
from glasshouse.learn import Learner, Sample
from glasshouse.learn.learner import cot_mask
from glasshouse.models import Policy, load

TEXT = "1+2=3\n[ANSWER] 3"


def tokens(policy: Policy, text: str) -> list[int]:
    return [*policy.tokenizer(text)["input_ids"], policy.tokenizer.eos_token_id]


def test_the_mask_ends_where_the_parser_says_the_answer_begins() -> None:
    policy = load("models/mock")
    rows = [tokens(policy, TEXT), tokens(policy, "[ANSWER] 3")]
    mask = cot_mask(policy, rows)
    thought = [token for token, inside in zip(rows[0], mask[0].tolist(), strict=True) if inside]
    assert policy.text(thought) == "1+2=3\n"
    assert not mask[1].any()


def test_without_a_cot_there_is_nothing_to_hold() -> None:
    found = {}
    for kl_on in ("all", "cot"):
        for text in (TEXT, "[ANSWER] 3"):
            policy = load("models/mock")
            learner = Learner(
                policy, LearnConfig(kl_coef=1.0, kl_tokens=kl_on), max_tokens=32, steps=1
            )
            with torch.no_grad():  # away from the start
                next(iter(policy.model.parameters())).mul_(1.1)
            sample = Sample(
                prompt=tuple(tokens(policy, "What?")), tokens=(row := tokens(policy, text)),
                logprobs=[0.0] * len(row), advantage=0.0,
            )  # fmt: skip
            found[kl_on, text] = learner.update([sample])["grad_norm"]
    assert found["all", "[ANSWER] 3"] > 0
    assert found["cot", "[ANSWER] 3"] == 0
    assert 0 < found["cot", TEXT] != found["all", TEXT]
