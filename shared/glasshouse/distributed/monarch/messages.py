"""What generators answer, and the validation of it before anything uses it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from glasshouse import errors
from glasshouse.errors import GlasshouseError
from glasshouse.types import Completion, Request, SamplingParams


class InvalidReply(RuntimeError):
    """A reply that a working generator cannot have sent."""


class UnexpectedWeights(InvalidReply):
    """A reply that was generated with weights other than the learner's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkReply:
    """The completions of one chunk, for each request."""

    completions: list[list[Completion]]
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


def check_reply(
    reply: ChunkReply,
    chunk: Sequence[Request],
    sampling: SamplingParams,
    version: int,
    vocab_size: int,
) -> list[list[Completion]]:
    """Return the completions per request; raise `InvalidReply` if the reply cannot be right."""
    if not isinstance(reply, ChunkReply):
        raise InvalidReply(f"it sent {type(reply).__name__} instead of completions")
    counts = [len(group) for group in reply.completions]
    expected = [len(request.noise_keys) for request in chunk]
    if counts != expected:
        raise InvalidReply(f"it sent {sum(counts)} completions instead of {sum(expected)}")
    for completion in itertools.chain.from_iterable(reply.completions):
        tokens, logprobs = completion.tokens, completion.logprobs
        if completion.policy_version != version:
            raise InvalidReply(
                f"it used version {completion.policy_version} of the weights instead of {version}"
            )
        if not 1 <= len(tokens) <= sampling.max_tokens:
            raise InvalidReply("a completion is empty or longer than max_tokens")
        if not len(tokens) == len(logprobs) == completion.length:
            raise InvalidReply("the number of log-probabilities does not match that of tokens")
        if not 0 <= min(tokens) <= max(tokens) < vocab_size:
            raise InvalidReply("a token is not in the vocabulary")
        if not all(map(math.isfinite, logprobs)):
            raise InvalidReply("a log-probability is not finite")
    return reply.completions
