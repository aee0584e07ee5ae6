"""What the Monarch backend sends between processes, and the shared weights; no process is started."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("monarch")

from glasshouse.distributed.monarch import messages
from glasshouse.distributed.monarch.shared_weights import (
    SharedWeights,
    StaleWeights,
    checksum_tensors,
)
from glasshouse.errors import ConfigError
from glasshouse.types import Completion, FinishReason, Request, SamplingParams

SAMPLING = SamplingParams(max_tokens=8)
CHUNK = [Request(prompt=(1, 2), noise_keys=(1, 2)), Request(prompt=(3,), noise_keys=(4,))]
COMPLETION = Completion(
    tokens=(5,), logprobs=(-1.0,), length=1, finish_reason=FinishReason.END, policy_version=3
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy_version": 2}, "version 2"),
        ({"tokens": (), "logprobs": (), "length": 0}, "empty"),
        ({"tokens": (1,) * 9, "logprobs": (-1.0,) * 9, "length": 9}, "longer"),
        ({"tokens": (300,)}, "vocabulary"),
        ({"tokens": (-2,)}, "vocabulary"),
        ({"logprobs": (-1.0, -1.0)}, "does not match"),
        ({"logprobs": (math.nan,)}, "not finite"),
    ],
)
def test_an_impossible_reply_is_refused(change: dict[str, Any], message: str) -> None:
    sent = [[COMPLETION, COMPLETION], [COMPLETION]]
    reply = messages.ChunkReply(completions=sent)
    assert messages.check_reply(reply, CHUNK, SAMPLING, 3, 300) == sent
    changed = [[COMPLETION, replace(COMPLETION, **change)], [COMPLETION]]
    with pytest.raises(messages.InvalidReply, match=message):
        messages.check_reply(messages.ChunkReply(completions=changed), CHUNK, SAMPLING, 3, 300)


@pytest.mark.parametrize("reply", [None, messages.ChunkReply(completions=[[COMPLETION]])])
def test_a_reply_without_the_completions_is_refused(reply: Any) -> None:
    with pytest.raises(messages.InvalidReply, match=r"NoneType|1 completions instead of 3"):
        messages.check_reply(reply, CHUNK, SAMPLING, 3, 300)


def test_a_remote_user_error_keeps_its_class_and_message() -> None:
    error = messages.RemoteUserError.from_error(ConfigError("lower it")).to_error()
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
