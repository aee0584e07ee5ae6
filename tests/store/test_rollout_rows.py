"""A rollout goes into a row and comes back, bit for bit."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.made import rollout

from glasshouse.errors import RecordError
from glasshouse.store.rollout_rows import decode, encode, rollout_of, row
from glasshouse.types import AnswerKind, Completion, Extracted, Grade, Problem, Rollout, Rule
from glasshouse.types import StopReason as Stop


def joined(text: str) -> str:
    """Two surrogates that together mean one character are that character, as in JSON."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


texts = st.text(st.characters(), max_size=30).map(joined)  # lone surrogates too
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
    Extracted, value=st.none() | texts, rule=st.sampled_from(Rule),
    span=st.none() | st.tuples(numbers, numbers), ambiguous=st.booleans(), reason=texts,
)  # fmt: skip
grades = st.builds(
    Grade, reward=reals, parts=st.dictionaries(texts, reals, max_size=2), correct=st.booleans(),
    lenient=st.booleans(), strict=st.booleans(), tagged=st.booleans(), extracted=extracted,
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
def test_every_rollout_comes_back_as_it_was(given: Rollout) -> None:
    data = encode([row(given)])
    data.decode("utf-8")  # for anybody
    back = rollout_of(decode(data)[0])
    assert back == given
    assert encode([row(back)]) == data
    assert [struct.pack("f", x) for x in back.completion.logprobs] == [
        struct.pack("f", x) for x in given.completion.logprobs
    ]
    assert str(back.advantage) == str(given.advantage)  # -0.0 too


@pytest.mark.parametrize(
    "text", ["a\u2028b\u2029c\x85d\x0be\r\n", "lone \udc80 and \ud800", "\x00\x1b[2J", "🙂", "x" * 3_000_000]
)  # fmt: skip
def test_texts_that_break_other_formats(text: str) -> None:
    given = replace(rollout(1), text=text, prompt_text=text)
    back = decode(encode([row(given), row(given)]))
    assert [rollout_of(r) for r in back] == [given, given]


def test_without_tokens_the_texts_and_the_length_are_there() -> None:
    full, thin = row(rollout(1)), row(rollout(1), tokens=False)
    assert {name for name in full if full[name] != thin[name]} == {
        "prompt_tokens",
        "tokens",
        "logprobs",
    }
    assert thin["tokens"] is thin["logprobs"] is thin["prompt_tokens"] is None
    assert thin["length"] == 4
    with pytest.raises(RecordError, match=r"Step 1, group 0, sample 0 .*rollout_log.tokens_every"):
        rollout_of(thin)
