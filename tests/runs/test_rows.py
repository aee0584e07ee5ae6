"""Converting a rollout to a row and back is exact."""

from __future__ import annotations

import math
import re
import struct
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runs.example_rollouts import make_rollout

from glasshouse.runs.rows import decode_rows, encode_rows, from_row, to_row
from glasshouse.types import (
    AnswerKind,
    Completion,
    Extracted,
    ExtractionRule,
    FinishReason,
    Grade,
    Problem,
    Rollout,
)

SOURCES = Path(__file__).resolve().parents[2] / "shared" / "view_frontend" / "src"


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
    Problem, task=texts, key=texts, question=texts, gold_answer=texts,
    answer_kind=st.sampled_from(AnswerKind),
    decimals=numbers, level=texts, meta=st.dictionaries(texts, json_values, max_size=2),
)  # fmt: skip
extracted = st.builds(
    Extracted, model_answer=st.none() | texts, rule=st.sampled_from(ExtractionRule),
    span=st.none() | st.tuples(numbers, numbers), ambiguous=st.booleans(), reason=texts,
)  # fmt: skip
grades = st.builds(
    Grade, reward=reals, terms=st.dictionaries(texts, reals, max_size=2), correct=st.booleans(),
    lenient=st.booleans(), strict=st.booleans(), has_answer_tag=st.booleans(), extracted=extracted,
)  # fmt: skip
messages = st.lists(st.fixed_dictionaries({"role": texts, "content": texts}), max_size=2)
completions = st.builds(
    Completion, tokens=st.none() | tokens, logprobs=st.none() | singles, length=st.none() | numbers,
    finish_reason=st.sampled_from(FinishReason), policy_version=st.none() | numbers,
)  # fmt: skip
any_rollout = st.builds(
    Rollout, step=numbers, split=texts, arm=texts, group=numbers, sample=numbers, seed=numbers,
    checkpoint=texts, problem=problems, messages=messages, prompt=texts, prompt_tokens=tokens, text=texts,
    cot=st.none() | texts, completion=completions, grade=grades, behaviour=st.none() | st.booleans(),
    advantage=st.none() | reals, activations=st.none() | singles, time=reals,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(any_rollout)
def test_every_rollout_round_trips_bit_for_bit(rollout: Rollout) -> None:
    data = encode_rows([to_row(rollout)])
    data.decode("utf-8")
    restored = from_row(decode_rows(data)[0])
    assert restored == rollout
    assert encode_rows([to_row(restored)]) == data
    assert [struct.pack("f", x) for x in restored.completion.logprobs or ()] == [
        struct.pack("f", x) for x in rollout.completion.logprobs or ()
    ]
    assert str(restored.advantage) == str(rollout.advantage)  # distinguishes -0.0


@pytest.mark.parametrize(
    "text", ["a\u2028b\u2029c\x85d\x0be\r\n", "lone \udc80 and \ud800", "\x00\x1b[2J", "🙂", "x" * 3_000_000]
)  # fmt: skip
def test_unusual_texts_round_trip(text: str) -> None:
    rollout = replace(make_rollout(1), text=text, prompt=text)
    rows = decode_rows(encode_rows([to_row(rollout), to_row(rollout)]))
    assert [from_row(row) for row in rows] == [rollout, rollout]


def test_an_unknown_reward_is_null_in_a_row() -> None:
    rollout = make_rollout(1)
    unknown = replace(rollout, grade=replace(rollout.grade, reward=math.nan))
    row = to_row(unknown)
    assert row["reward"] is None
    assert math.isnan(from_row(row).grade.reward)


def test_every_form_of_a_rollout_has_the_same_fields() -> None:
    """Object, row and the page's type; no name occurs twice."""
    parts = [Problem, Completion, Extracted, Grade, Rollout]
    names = [f.name for part in parts for f in fields(part)]
    inner = {"problem", "completion", "grade", "extracted"}
    assert sorted(set(names) - inner) == sorted(name for name in names if name not in inner)
    row = to_row(make_rollout(1))
    assert row.keys() == set(names) - inner
    page = (
        (SOURCES / "types.ts").read_text().partition("interface Rollout {")[2].partition("\n}")[0]
    )
    shown = set(re.findall(r"^  (\w+):", page, re.MULTILINE))
    assert shown - row.keys() == {
        "ref",
        "characters",
        "answer_start",
        "verdicts",
        "marks",
        "facets",
    }
