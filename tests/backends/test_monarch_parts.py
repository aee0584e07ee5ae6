"""The Monarch placement's parts that need no process: what travels, and the shared weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("monarch")

from glasshouse.backends.monarch import serialization
from glasshouse.backends.monarch.shared_weights import StaleWeights, WeightMap, checksum
from glasshouse.errors import ConfigError
from glasshouse.generate import Sampling
from glasshouse.learn import Sample
from glasshouse.types import Completion, Request, StopReason

SAMPLING = Sampling(max_tokens=8)
CHUNK = [Request(prompt=(1, 2), keys=(1, 2)), Request(prompt=(3,), keys=(4,))]
logprob = st.floats(-50, 0, width=32)
tokens = st.lists(st.tuples(st.integers(0, 299), logprob), min_size=1, max_size=8)


def completion(pairs: list[tuple[int, float]], stop: StopReason = StopReason.END) -> Completion:
    return Completion(
        tokens=tuple(t for t, _ in pairs), logprobs=tuple(x for _, x in pairs), stop=stop, version=3
    )


@given(st.tuples(tokens, tokens, tokens), st.sampled_from(StopReason))
def test_completions_arrive_as_they_were_sent(rows: Any, stop: StopReason) -> None:
    a, b, c = (completion(row, stop) for row in rows)
    sent = [[a, b], [c]]
    assert serialization.unpack(serialization.pack(sent, 3), CHUNK, SAMPLING, 3, 300) == sent


@given(st.lists(st.tuples(st.integers(0, 3), tokens, st.floats(-3, 3)), max_size=6))
def test_samples_arrive_as_they_were_sent(rows: Any) -> None:
    sent = [
        Sample(
            prompt=(prompt, 7),
            tokens=tuple(t for t, _ in pairs),
            logprobs=tuple(x for _, x in pairs),
            advantage=advantage,
        )
        for prompt, pairs, advantage in rows
    ]
    assert serialization.unpack_samples(serialization.pack_samples(sent)) == sent


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"version": 2}, "version 2"),
        ({"lengths": np.array([1, 1], np.int32).tobytes()}, "2 completions where 3"),
        ({"lengths": np.array([0, 1, 2], np.int32).tobytes()}, "empty"),
        ({"lengths": np.array([9, 1, 1], np.int32).tobytes()}, "longer"),
        ({"lengths": b"123"}, "cut off"),
        ({"tokens": np.array([1, 2, 300], np.int32).tobytes()}, "vocabulary"),
        ({"tokens": np.array([1, -2, 3], np.int32).tobytes()}, "vocabulary"),
        ({"tokens": np.array([1, 2], np.int32).tobytes()}, "as many"),
        ({"logprobs": np.array([0, np.nan, 0], np.float32).tobytes()}, "not a number"),
        ({"stops": b"\x00\x00\x09"}, "stop reason"),
    ],
)
def test_a_reply_that_cannot_be_right_is_refused(change: dict[str, Any], word: str) -> None:
    row = completion([(5, -1.0)])
    reply = serialization.pack([[row, row], [row]], 3)
    serialization.unpack(reply, CHUNK, SAMPLING, 3, 300)
    with pytest.raises(serialization.Garbage, match=word):
        serialization.unpack(replace(reply, **change), CHUNK, SAMPLING, 3, 300)


def test_something_else_than_a_reply_is_refused() -> None:
    with pytest.raises(serialization.Garbage, match="NoneType"):
        serialization.unpack(None, CHUNK, SAMPLING, 3, 300)  # type: ignore[arg-type]


def test_a_mistake_keeps_its_kind_and_its_words() -> None:
    error = serialization.Mistake.of(ConfigError("lower it")).error()
    assert isinstance(error, ConfigError)
    assert str(error) == "lower it"


def test_two_versions_are_there_and_no_third() -> None:
    written = WeightMap.create(5)
    read = WeightMap.open(written.path, 5)
    weights = {v: [torch.full((2, 2), float(v)), torch.full((1,), v + 0.5)] for v in range(3)}
    into = [torch.zeros(2, 2), torch.zeros(1)]
    for version in range(3):
        written.write(version, weights[version])
    assert read.versions() == [1, 2]
    for version in (1, 2):
        read.read(version, into)
        assert all(a.equal(b) for a, b in zip(into, weights[version], strict=True))
        assert read.digest(version) == checksum(weights[version]) == checksum(into)
    for version in (0, 3):
        with pytest.raises(StaleWeights, match=f"Version {version} "):
            read.read(version, into)


def test_a_version_sent_as_bytes_is_the_same_version() -> None:
    here, there = WeightMap.create(3), WeightMap.create(3)
    here.write(4, [torch.tensor([1.0, 2.0, 3.0])])
    there.put(4, here.digest(4), here.raw(4))
    into = [torch.zeros(3)]
    there.read(4, into)
    assert checksum(into) == there.digest(4) == here.digest(4)
