"""A client for any OpenAI-compatible endpoint, on the standard library alone.

What can go wrong with a network does: an endpoint may refuse, be busy, hang, drip one byte a
second, cut a reply short or send something that is none. Each of these ends within `timeout`
seconds; what may pass is tried again, at growing intervals; what remains is a `Gone` with the
reason, which a judge turns into a failed verdict. Only what a person must mend (a wrong key, a
wrong address) is an error.
"""

from __future__ import annotations

import contextlib
import email.utils
import hashlib
import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from glasshouse import randomness
from glasshouse.errors import MonitorError
from glasshouse.types import Message

T = TypeVar("T")
LARGEST = 4 * 1024 * 1024
"""A reply of more bytes than this is not read."""
BUSY = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Statuses that may pass."""


class Gone(Exception):
    """No usable reply came, in all attempts; its text says why."""


class Passing(Exception):
    """This attempt failed in a way that may pass; `wait` seconds are asked for, if any."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a model answers, and how patient to be.

    Example: `Endpoint(url="http://localhost:8000/v1", model="judge-1", key_env="JUDGE_KEY")`
    """

    url: str
    """Up to and including `/v1`."""
    model: str
    key_env: str = ""
    """The environment variable that holds the API key; empty: none is sent."""
    timeout: float = 60.0
    """Seconds for one attempt, from connecting to the last byte."""
    attempts: int = 5
    backoff: float = 1.0
    """Seconds before the second attempt, doubled before each further one."""
    longest_wait: float = 60.0
    """Never wait longer; an endpoint that asks for more is given up."""
    concurrency: int = 4
    """Requests under way at once."""
    max_tokens: int = 400
    price_prompt: float = 0.0
    """Per million prompt tokens, in whatever currency."""
    price_completion: float = 0.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise MonitorError(
                f'The endpoint "{self.url}" is no address: give one such as http://localhost:8000/v1.'
            )
        try:
            _ = parts.port
        except ValueError:
            raise MonitorError(f'The endpoint "{self.url}" has no port that exists.') from None
        if self.attempts < 1 or self.concurrency < 1 or self.timeout <= 0:
            raise MonitorError("An endpoint needs attempts, concurrency and a timeout above zero.")


@dataclass(slots=True)
class Usage:
    """What asking has cost so far; every attempt that was answered counts, usable or not."""

    requests: int = 0
    retries: int = 0
    cached: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    uncounted: int = 0
    """Replies that did not say how many tokens they took: the cost is then too low."""

    def cost(self, endpoint: Endpoint) -> float:
        prompt = self.prompt_tokens * endpoint.price_prompt
        return (prompt + self.completion_tokens * endpoint.price_completion) / 1e6


@dataclass(slots=True)
class Client:
    """Asks one endpoint; may be used from several threads."""

    endpoint: Endpoint
    usage: Usage = field(default_factory=Usage)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, **more: int) -> None:
        """Add to the usage: `count(failed=1)`."""
        with self._lock:
            for name, number in more.items():
                setattr(self.usage, name, getattr(self.usage, name) + number)

    def ask(self, body: dict[str, Any], read: Callable[[str], T]) -> T:
        """Send a chat and read its reply. `read` raises `ValueError` on a reply it cannot use, and
        the chat is sent again; the last reason ends up in `Gone`."""
        data = json.dumps(body).encode()  # ASCII: no text that a model writes can fail to encode
        reason = ""
        for attempt in range(self.endpoint.attempts):
            self.count(requests=1, retries=int(attempt > 0))
            try:
                return read(self._content(post(self.endpoint, data)))
            except MonitorError:  # also a ValueError, but no attempt will mend it
                raise
            except Passing as passing:
                reason, wait = str(passing), passing.wait
            except ValueError as error:
                reason, wait = f"the reply cannot be used: {error}", None
            if wait is not None and wait > self.endpoint.longest_wait:
                raise Gone(f"{reason}; the endpoint asks to wait {wait:g} s")
            if attempt + 1 < self.endpoint.attempts:
                time.sleep(self._pause(attempt, data) if wait is None else wait)
        raise Gone(f"{reason} (after {self.endpoint.attempts} attempts)")

    def _pause(self, attempt: int, data: bytes) -> float:
        # spread out, so that requests that failed together do not come back together
        spread = randomness.stream("backoff", attempt, hash_of(data)).uniform(0.5, 1.0)
        return min(self.endpoint.longest_wait, self.endpoint.backoff * 2**attempt * spread)

    def _content(self, raw: bytes) -> str:
        """The first choice's text; counts the tokens that were paid for."""
        try:
            reply = json.loads(raw)
            content = reply["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError, RecursionError):
            raise ValueError(f"not a chat completion: {raw[:80]!r}") from None
        if not isinstance(content, str):
            raise ValueError("the chat completion has no text")
        used = reply.get("usage")
        prompt, completion = (used.get(k) if isinstance(used, dict) else None for k in _COUNTS)
        if isinstance(prompt, int) and isinstance(completion, int) and min(prompt, completion) >= 0:
            self.count(prompt_tokens=prompt, completion_tokens=completion)
        else:
            self.count(uncounted=1)
        return content


_COUNTS = ("prompt_tokens", "completion_tokens")


def chat(endpoint: Endpoint, messages: Sequence[Message], schema: dict[str, Any]) -> dict[str, Any]:
    """The body of a request for a structured reply, at temperature 0."""
    return {
        "model": endpoint.model,
        "messages": list(messages),
        "temperature": 0,
        "max_tokens": endpoint.max_tokens,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "verdict", "strict": True, "schema": schema},
        },
    }


def post(endpoint: Endpoint, data: bytes) -> bytes:
    """One attempt. A `Passing` may be tried again; a `MonitorError` must be mended by a person."""
    parts = urlsplit(endpoint.url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=endpoint.timeout)
    path = parts.path.rstrip("/") + "/chat/completions" + (f"?{parts.query}" if parts.query else "")
    headers = _headers(endpoint)
    expired = threading.Event()
    started = time.monotonic()
    watchdog: threading.Timer | None = None
    try:
        connection.connect()
        line = connection.sock
        left = max(0.001, endpoint.timeout - (time.monotonic() - started))
        # a socket's own timeout starts anew with every byte: one a second would last for ever
        watchdog = threading.Timer(left, _cut, (line, expired))
        watchdog.daemon = True
        watchdog.start()
        connection.request("POST", path, data, headers)
        reply = connection.getresponse()
        content = reply.read(LARGEST + 1)
    except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
        if expired.is_set() or isinstance(error, TimeoutError):
            raise Passing(f"no whole reply within {endpoint.timeout:g} s") from None
        raise Passing(f"the connection failed: {type(error).__name__}: {error}"[:200]) from None
    finally:
        if watchdog is not None:
            watchdog.cancel()
        connection.close()
    if expired.is_set():
        raise Passing(f"no whole reply within {endpoint.timeout:g} s")
    return _accept(endpoint, reply, content)


def _accept(endpoint: Endpoint, reply: http.client.HTTPResponse, content: bytes) -> bytes:
    if reply.status in BUSY:
        wait = _seconds(reply.headers.get("Retry-After"))
        raise Passing(f"the endpoint answers {reply.status} {reply.reason}", wait)
    if reply.status != 200:
        said = content[:200].decode(errors="replace")
        raise MonitorError(
            f"The endpoint {endpoint.url} refuses ({reply.status} {reply.reason}): {said} "
            f'Check its address, the model "{endpoint.model}" and the key in '
            f"{endpoint.key_env or 'key_env (none is set)'}."
        )
    if len(content) > LARGEST:
        raise Passing(f"the reply is larger than {LARGEST} bytes")
    if reply.length:  # what the endpoint promised and did not send
        raise Passing(f"the reply was cut short, {reply.length} bytes before its end")
    return content


def _cut(line: socket.socket, expired: threading.Event) -> None:
    expired.set()
    with contextlib.suppress(OSError):  # it may have been closed meanwhile
        line.shutdown(socket.SHUT_RDWR)


def _headers(endpoint: Endpoint) -> dict[str, str]:
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json",
        "Connection": "close",
    }
    if endpoint.key_env:
        key = os.environ.get(endpoint.key_env, "").strip()
        if not key:
            raise MonitorError(
                f"The environment variable {endpoint.key_env} is empty; put the endpoint's key in it."
            )
        if not (key.isascii() and key.isprintable()):  # http.client would quote it in its complaint
            raise MonitorError(f"The key in {endpoint.key_env} has characters that no key has.")
        headers["Authorization"] = f"Bearer {key}"
    return headers


def _seconds(retry_after: str | None) -> float | None:
    """`Retry-After`, which is a number of seconds or a date."""
    if retry_after is None:
        return None
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        then = email.utils.parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    return max(0.0, then.timestamp() - time.time())


def hash_of(data: bytes) -> str:
    """Names a request: the key of the cache."""
    return hashlib.blake2b(data, digest_size=20).hexdigest()
