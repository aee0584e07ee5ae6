"""Converting a rollout to a row and back is exact."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runs.example_rollouts import make_rollout

from glasshouse.errors import RunDataError
from glasshouse.runs.rollout_rows import decode_rows, encode_rows, rollout_from_row, rollout_to_row
from glasshouse.types import (
    AnswerKind,
    Completion,
    Extracted,
    ExtractionRule,
    Grade,
    Problem,
    Rollout,
)
from glasshouse.types import StopReason as Stop


def join_surrogates(text: str) -> str:
    """Replace each surrogate pair by its character, as JSON does."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


texts = st.text(st.characters(), max_size=30).map(join_surrogates)  # includes lone surrogates
numbers = st.integers(0, 2**40)
reals = st.floats(allow_nan=False)
tokens = st.lists(st.integers(0, 2**20), max_size=5).map(tuple)
singles = st.lists(st.floats(width=32, allow_nan=False), max_size=5).map(tuple)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | reals | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
problems = st.builds(
    Problem, task=texts, key=texts, question=texts, answer=texts, kind=st.sampled_from(AnswerKind),
    decimals=numbers, level=texts, meta=st.dictionaries(texts, json_values, max_size=2),
)  # fmt: skip
extracted = st.builds(
    Extracted, value=st.none() | texts, rule=st.sampled_from(ExtractionRule),
    span=st.none() | st.tuples(numbers, numbers), ambiguous=st.booleans(), reason=texts,
)  # fmt: skip
grades = st.builds(
    Grade, reward=reals, terms=st.dictionaries(texts, reals, max_size=2), correct=st.booleans(),
    lenient=st.booleans(), strict=st.booleans(), has_answer_tag=st.booleans(), extracted=extracted,
)  # fmt: skip
messages = st.lists(st.fixed_dictionaries({"role": texts, "content": texts}), max_size=2)
completions = st.builds(
    Completion, tokens=tokens, logprobs=singles, stop=st.sampled_from(Stop), version=numbers
)
any_rollout = st.builds(
    Rollout, step=numbers, split=texts, group=numbers, sample=numbers, problem=problems,
    messages=messages, prompt_text=texts, prompt_tokens=tokens, text=texts, completion=completions,
    grade=grades, advantage=reals, time=reals,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(any_rollout)
def test_every_rollout_round_trips_bit_for_bit(rollout: Rollout) -> None:
    data = encode_rows([rollout_to_row(rollout)])
    data.decode("utf-8")
    restored = rollout_from_row(decode_rows(data)[0])
    assert restored == rollout
    assert encode_rows([rollout_to_row(restored)]) == data
    assert [struct.pack("f", x) for x in restored.completion.logprobs] == [
        struct.pack("f", x) for x in rollout.completion.logprobs
    ]
    assert str(restored.advantage) == str(rollout.advantage)  # distinguishes -0.0


@pytest.mark.parametrize(
    "text", ["a\u2028b\u2029c\x85d\x0be\r\n", "lone \udc80 and \ud800", "\x00\x1b[2J", "🙂", "x" * 3_000_000]
)  # fmt: skip
def test_unusual_texts_round_trip(text: str) -> None:
    rollout = replace(make_rollout(1), text=text, prompt_text=text)
    rows = decode_rows(encode_rows([rollout_to_row(rollout), rollout_to_row(rollout)]))
    assert [rollout_from_row(row) for row in rows] == [rollout, rollout]


def test_row_without_tokens_has_texts_and_length() -> None:
    full, thin = rollout_to_row(make_rollout(1)), rollout_to_row(make_rollout(1), with_tokens=False)
    assert {name for name in full if full[name] != thin[name]} == {
        "prompt_tokens",
        "tokens",
        "logprobs",
    }
    assert thin["tokens"] is thin["logprobs"] is thin["prompt_tokens"] is None
    assert thin["length"] == 4
    with pytest.raises(RunDataError, match=r"Step 1, group 0, sample 0 .*rollout_log.tokens_every"):
        rollout_from_row(thin)
