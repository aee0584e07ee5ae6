"""What travels between processes: flat arrays instead of thousands of small objects.

A reply is looked at before it is believed: `unpack` refuses what a sound generator cannot have sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from glasshouse import errors
from glasshouse.errors import GlasshouseError
from glasshouse.generate import Sampling
from glasshouse.learn import Sample
from glasshouse.types import Completion, Request, StopReason

STOPS = list(StopReason)


class Garbage(RuntimeError):
    """A reply that no sound generator sends."""


class WrongWeights(Garbage):
    """A reply made with weights that are not the learner's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A generated chunk."""

    version: int
    lengths: bytes
    """int32, one a completion, in the order of the requests and their samples."""
    tokens: bytes
    """int32, all completions' one after another."""
    logprobs: bytes
    """float32, likewise."""
    stops: bytes
    """One a completion: its place in `StopReason`."""
    digest: bytes = b""
    """The checksum of the weights it was made with, if that was asked for."""
    load_seconds: float = 0.0
    """What taking over the weights took; 0 if it had them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """A user's mistake that showed in another process: its sentence, to be raised here."""

    kind: str
    text: str

    @classmethod
    def of(cls, error: GlasshouseError) -> Mistake:
        return cls(kind=type(error).__name__, text=str(error))

    def error(self) -> GlasshouseError:
        kind = getattr(errors, self.kind, errors.RunError)
        found: GlasshouseError = kind(self.text)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """A step's samples for the learner; a prompt that several share is sent once."""

    prompts: list[tuple[int, ...]]
    owners: bytes
    """int32: the prompt of each sample."""
    lengths: bytes
    tokens: bytes
    logprobs: bytes
    """float32, as the loss takes them."""
    advantages: bytes
    """float64."""


def pack(groups: Sequence[Sequence[Completion]], version: int) -> Reply:
    rows = [completion for group in groups for completion in group]
    return Reply(
        version=version,
        lengths=_bytes([len(c.tokens) for c in rows], np.int32),
        tokens=_bytes([t for c in rows for t in c.tokens], np.int32),
        logprobs=_bytes([x for c in rows for x in c.logprobs], np.float32),
        stops=bytes(STOPS.index(c.stop) for c in rows),
    )


def unpack(
    reply: Reply, chunk: Sequence[Request], sampling: Sampling, version: int, vocabulary: int
) -> list[list[Completion]]:
    """The completions of a chunk, or `Garbage` with what is wrong with them."""
    if not isinstance(reply, Reply):
        raise Garbage(f"it sent {type(reply).__name__} instead of completions")
    if reply.version != version:
        raise Garbage(f"it used version {reply.version} of the weights instead of {version}")
    lengths, tokens = _array(reply.lengths, np.int32), _array(reply.tokens, np.int32)
    logprobs = _array(reply.logprobs, np.float32)
    wanted = sum(len(r.keys) for r in chunk)
    if len(lengths) != wanted or len(reply.stops) != wanted:
        raise Garbage(f"it sent {len(lengths)} completions where {wanted} were due")
    if wanted and not 1 <= lengths.min() <= lengths.max() <= sampling.max_tokens:
        raise Garbage("a completion is empty or longer than asked for")
    if len(tokens) != lengths.sum() or len(logprobs) != len(tokens):
        raise Garbage("tokens and log-probabilities are not as many as their lengths say")
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < vocabulary:
        raise Garbage("a token is not in the vocabulary")
    if not np.isfinite(logprobs).all() or max(reply.stops, default=0) >= len(STOPS):
        raise Garbage("a log-probability is not a number, or a stop reason is unknown")
    return _completions(reply, lengths, tokens.tolist(), logprobs.tolist(), chunk)


def _completions(
    reply: Reply,
    lengths: np.ndarray,
    tokens: list[int],
    logprobs: list[float],
    chunk: Sequence[Request],
) -> list[list[Completion]]:
    ends = np.cumsum(lengths).tolist()
    starts = [0, *ends]
    rows = iter(
        [
            Completion(
                tokens=tuple(tokens[start:end]),
                logprobs=tuple(logprobs[start:end]),
                stop=STOPS[stop],
                version=reply.version,
            )
            for start, end, stop in zip(starts, ends, reply.stops, strict=False)
        ]
    )
    return [[next(rows) for _ in request.keys] for request in chunk]


def pack_samples(samples: Sequence[Sample]) -> Samples:
    numbers = {prompt: n for n, prompt in enumerate(dict.fromkeys(s.prompt for s in samples))}
    return Samples(
        prompts=list(numbers),
        owners=_bytes([numbers[s.prompt] for s in samples], np.int32),
        lengths=_bytes([len(s.tokens) for s in samples], np.int32),
        tokens=_bytes([t for s in samples for t in s.tokens], np.int32),
        logprobs=_bytes([x for s in samples for x in s.logprobs], np.float32),
        advantages=_bytes([s.advantage for s in samples], np.float64),
    )


def unpack_samples(packed: Samples) -> list[Sample]:
    tokens = _array(packed.tokens, np.int32).tolist()
    logprobs = _array(packed.logprobs, np.float32).tolist()
    samples, start = [], 0
    for owner, length, advantage in zip(
        _array(packed.owners, np.int32).tolist(),
        _array(packed.lengths, np.int32).tolist(),
        _array(packed.advantages, np.float64).tolist(),
        strict=True,
    ):
        end = start + length
        samples.append(
            Sample(
                prompt=packed.prompts[owner],
                tokens=tuple(tokens[start:end]),
                logprobs=tuple(logprobs[start:end]),
                advantage=advantage,
            )
        )
        start = end
    return samples


def _bytes(values: Sequence[int] | Sequence[float], kind: type[np.generic]) -> bytes:
    return np.array(values, dtype=kind).tobytes()


def _array(raw: bytes, kind: type[np.generic]) -> np.ndarray:
    if not isinstance(raw, bytes) or len(raw) % np.dtype(kind).itemsize:
        raise Garbage("an array is cut off")
    return np.frombuffer(raw, dtype=kind)
