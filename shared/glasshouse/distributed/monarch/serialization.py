"""What is sent between processes: flat arrays instead of thousands of small objects.

`unpack_completions` validates a reply before anything uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from glasshouse import errors
from glasshouse.errors import GlasshouseError
from glasshouse.learn.microbatches import TrainingSample
from glasshouse.types import Completion, FinishReason, Request, SamplingParams

FINISH_REASONS = list(FinishReason)


class InvalidReply(RuntimeError):
    """A reply that a working generator cannot have sent."""


class UnexpectedWeights(InvalidReply):
    """A reply that was generated with weights other than the learner's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkReply:
    """The completions of one chunk."""

    version: int
    lengths: bytes
    """int32, one per completion, in the order of the requests and their samples."""
    tokens: bytes
    """int32, the tokens of all completions, concatenated."""
    logprobs: bytes
    """float32, one per token."""
    stops: bytes
    """One byte per completion: the index of its finish reason in `FinishReason`."""
    checksum: bytes = b""
    """Checksum of the weights that were used, if the call asked for it."""
    load_seconds: float = 0.0
    """Seconds needed to load the weights; 0 if they were loaded already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteUserError:
    """A `GlasshouseError` from another process, to be raised again in the controller."""

    kind: str
    text: str

    @classmethod
    def from_error(cls, error: GlasshouseError) -> RemoteUserError:
        return cls(kind=type(error).__name__, text=str(error))

    def to_error(self) -> GlasshouseError:
        error: GlasshouseError = getattr(errors, self.kind, errors.RunError)(self.text)
        return error


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSamples:
    """The samples of one step; a prompt that several samples share is sent once."""

    prompts: list[tuple[int, ...]]
    prompt_indices: bytes
    """int32, one per sample."""
    lengths: bytes
    tokens: bytes
    logprobs: bytes
    """float32, the precision in which the loss uses them."""
    advantages: bytes
    """float64."""
    extra: dict[str, bytes]
    """float32, one per token, by name."""


def pack_completions(groups: Sequence[Sequence[Completion]], version: int) -> ChunkReply:
    completions = [completion for group in groups for completion in group]
    return ChunkReply(
        version=version,
        lengths=_to_bytes([c.length for c in completions], np.int32),
        tokens=_to_bytes([t for c in completions for t in c.tokens], np.int32),
        logprobs=_to_bytes([x for c in completions for x in c.logprobs], np.float32),
        stops=bytes(FINISH_REASONS.index(c.finish_reason) for c in completions),
    )


def unpack_completions(
    reply: ChunkReply,
    chunk: Sequence[Request],
    sampling: SamplingParams,
    version: int,
    vocab_size: int,
) -> list[list[Completion]]:
    """Return the completions per request; raise `InvalidReply` if the reply cannot be right."""
    if not isinstance(reply, ChunkReply):
        raise InvalidReply(f"it sent {type(reply).__name__} instead of completions")
    if reply.version != version:
        raise InvalidReply(f"it used version {reply.version} of the weights instead of {version}")
    lengths, tokens = _to_array(reply.lengths, np.int32), _to_array(reply.tokens, np.int32)
    logprobs = _to_array(reply.logprobs, np.float32)
    expected = sum(len(request.noise_keys) for request in chunk)
    if len(lengths) != expected or len(reply.stops) != expected:
        raise InvalidReply(f"it sent {len(lengths)} completions instead of {expected}")
    if expected and not 1 <= lengths.min() <= lengths.max() <= sampling.max_tokens:
        raise InvalidReply("a completion is empty or longer than max_tokens")
    if len(tokens) != lengths.sum() or len(logprobs) != len(tokens):
        raise InvalidReply("the number of tokens or log-probabilities does not match the lengths")
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < vocab_size:
        raise InvalidReply("a token is not in the vocabulary")
    if not np.isfinite(logprobs).all() or max(reply.stops, default=0) >= len(FINISH_REASONS):
        raise InvalidReply("a log-probability is not finite, or a finish reason is unknown")
    return _split_by_request(reply, lengths, tokens.tolist(), logprobs.tolist(), chunk)


def _split_by_request(
    reply: ChunkReply,
    lengths: np.ndarray,
    tokens: list[int],
    logprobs: list[float],
    chunk: Sequence[Request],
) -> list[list[Completion]]:
    ends = np.cumsum(lengths).tolist()
    completions = iter(
        [
            Completion(
                tokens=tuple(tokens[start:end]),
                logprobs=tuple(logprobs[start:end]),
                length=end - start,
                finish_reason=FINISH_REASONS[stop],
                policy_version=reply.version,
            )
            for start, end, stop in zip([0, *ends], ends, reply.stops, strict=False)
        ]
    )
    return [[next(completions) for _ in request.noise_keys] for request in chunk]


def pack_samples(samples: Sequence[TrainingSample]) -> PackedSamples:
    indices = {prompt: n for n, prompt in enumerate(dict.fromkeys(s.prompt for s in samples))}
    return PackedSamples(
        prompts=list(indices),
        prompt_indices=_to_bytes([indices[s.prompt] for s in samples], np.int32),
        lengths=_to_bytes([len(s.tokens) for s in samples], np.int32),
        tokens=_to_bytes([t for s in samples for t in s.tokens], np.int32),
        logprobs=_to_bytes([x for s in samples for x in s.sampler_logprobs], np.float32),
        advantages=_to_bytes([s.advantage for s in samples], np.float64),
        extra={
            name: _to_bytes([x for s in samples for x in s.extra[name]], np.float32)
            for name in (samples[0].extra if samples else ())
            if all(name in s.extra for s in samples)
        },
    )


def unpack_samples(packed: PackedSamples) -> list[TrainingSample]:
    tokens = _to_array(packed.tokens, np.int32).tolist()
    logprobs = _to_array(packed.logprobs, np.float32).tolist()
    extra = {name: _to_array(raw, np.float32).tolist() for name, raw in packed.extra.items()}
    samples, start = [], 0
    for prompt_index, length, advantage in zip(
        _to_array(packed.prompt_indices, np.int32).tolist(),
        _to_array(packed.lengths, np.int32).tolist(),
        _to_array(packed.advantages, np.float64).tolist(),
        strict=True,
    ):
        end = start + length
        samples.append(
            TrainingSample(
                prompt=packed.prompts[prompt_index],
                tokens=tuple(tokens[start:end]),
                sampler_logprobs=tuple(logprobs[start:end]),
                advantage=advantage,
                extra={name: tuple(numbers[start:end]) for name, numbers in extra.items()},
            )
        )
        start = end
    return samples


def _to_bytes(values: Sequence[int] | Sequence[float], dtype: type[np.generic]) -> bytes:
    return np.array(values, dtype=dtype).tobytes()


def _to_array(raw: bytes, dtype: type[np.generic]) -> np.ndarray:
    if not isinstance(raw, bytes) or len(raw) % np.dtype(dtype).itemsize:
        raise InvalidReply("an array is truncated")
    return np.frombuffer(raw, dtype=dtype)
