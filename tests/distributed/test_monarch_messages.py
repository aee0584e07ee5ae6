"""What the Monarch backend sends between processes, and the shared weights; no process is started."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("monarch")

from glasshouse.distributed.monarch import serialization
from glasshouse.distributed.monarch.shared_weights import (
    SharedWeights,
    StaleWeights,
    checksum_tensors,
)
from glasshouse.errors import ConfigError
from glasshouse.learn.microbatches import TrainingSample
from glasshouse.types import Completion, FinishReason, Request, SamplingParams

SAMPLING = SamplingParams(max_tokens=8)
CHUNK = [Request(prompt=(1, 2), noise_keys=(1, 2)), Request(prompt=(3,), noise_keys=(4,))]
logprob = st.floats(-50, 0, width=32)
tokens = st.lists(st.tuples(st.integers(0, 299), logprob), min_size=1, max_size=8)


def completion(pairs: list[tuple[int, float]], stop: FinishReason = FinishReason.END) -> Completion:
    return Completion(
        tokens=tuple(t for t, _ in pairs),
        logprobs=tuple(x for _, x in pairs),
        length=len(pairs),
        finish_reason=stop,
        policy_version=3,
    )


@given(st.tuples(tokens, tokens, tokens), st.sampled_from(FinishReason))
def test_completions_survive_packing(rows: Any, stop: FinishReason) -> None:
    a, b, c = (completion(row, stop) for row in rows)
    sent = [[a, b], [c]]
    assert (
        serialization.unpack_completions(
            serialization.pack_completions(sent, 3), CHUNK, SAMPLING, 3, 300
        )
        == sent
    )


@given(st.lists(st.tuples(st.integers(0, 3), tokens, st.floats(-3, 3)), max_size=6))
def test_samples_survive_packing(rows: Any) -> None:
    sent = [
        TrainingSample(
            prompt=(prompt, 7),
            tokens=tuple(t for t, _ in pairs),
            sampler_logprobs=tuple(x for _, x in pairs),
            advantage=advantage,
            extra={"weight": tuple(float(t) for t, _ in pairs)},
        )
        for prompt, pairs, advantage in rows
    ]
    assert serialization.unpack_samples(serialization.pack_samples(sent)) == sent


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 2"),
        ({"lengths": np.array([1, 1], np.int32).tobytes()}, "2 completions instead of 3"),
        ({"lengths": np.array([0, 1, 2], np.int32).tobytes()}, "empty"),
        ({"lengths": np.array([9, 1, 1], np.int32).tobytes()}, "longer"),
        ({"lengths": b"123"}, "truncated"),
        ({"tokens": np.array([1, 2, 300], np.int32).tobytes()}, "vocabulary"),
        ({"tokens": np.array([1, -2, 3], np.int32).tobytes()}, "vocabulary"),
        ({"tokens": np.array([1, 2], np.int32).tobytes()}, "does not match"),
        ({"logprobs": np.array([0, np.nan, 0], np.float32).tobytes()}, "not finite"),
        ({"stops": b"\x00\x00\x09"}, "finish reason"),
    ],
)
def test_an_impossible_reply_is_refused(change: dict[str, Any], message: str) -> None:
    row = completion([(5, -1.0)])
    reply = serialization.pack_completions([[row, row], [row]], 3)
    serialization.unpack_completions(reply, CHUNK, SAMPLING, 3, 300)
    with pytest.raises(serialization.InvalidReply, match=message):
        serialization.unpack_completions(replace(reply, **change), CHUNK, SAMPLING, 3, 300)


def test_an_answer_that_is_no_reply_is_refused() -> None:
    with pytest.raises(serialization.InvalidReply, match="NoneType"):
        serialization.unpack_completions(None, CHUNK, SAMPLING, 3, 300)  # type: ignore[arg-type]


def test_a_remote_user_error_keeps_its_class_and_message() -> None:
    error = serialization.RemoteUserError.from_error(ConfigError("lower it")).to_error()
    assert isinstance(error, ConfigError)
    assert str(error) == "lower it"


@pytest.mark.parametrize("slots", [2, 5])
def test_shared_weights_hold_as_many_versions_as_slots(slots: int) -> None:
    writer = SharedWeights.create(5, slots)
    reader = SharedWeights.open(writer.path, 5)
    assert reader.slots == slots
    newest = slots + 3
    weights = {
        v: [torch.full((2, 2), float(v)), torch.full((1,), v + 0.5)] for v in range(newest + 1)
    }
    tensors = [torch.zeros(2, 2), torch.zeros(1)]
    for version in range(newest + 1):
        writer.write(version, weights[version])
    assert reader.versions() == list(range(4, newest + 1))
    for version in reader.versions():
        reader.read(version, tensors)
        assert all(a.equal(b) for a, b in zip(tensors, weights[version], strict=True))
        assert (
            reader.checksum(version)
            == checksum_tensors(weights[version])
            == checksum_tensors(tensors)
        )
    for version in (3, newest + 1):
        with pytest.raises(StaleWeights, match=f"Version {version} "):
            reader.read(version, tensors)


def test_a_version_sent_as_bytes_is_bitwise_equal() -> None:
    source, target = SharedWeights.create(3), SharedWeights.create(3)
    source.write(4, [torch.tensor([1.0, 2.0, 3.0])])
    target.write_bytes(4, source.checksum(4), source.read_bytes(4))
    tensors = [torch.zeros(3)]
    target.read(4, tensors)
    assert checksum_tensors(tensors) == target.checksum(4) == source.checksum(4)
