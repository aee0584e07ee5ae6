"""A chat client for any OpenAI-compatible endpoint, on httpx.

An endpoint may refuse, be overloaded, hang, send one byte per second, or send a truncated or
invalid reply. Every attempt ends within `timeout` seconds. Transient failures are retried with
exponential backoff; if all attempts fail, `EndpointFailed` gives the reason. Only what the user
must fix (a wrong key, a wrong URL) is a `MonitorError`.
"""

from __future__ import annotations

import asyncio
import email.utils
import hashlib
import json
import os
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from glasshouse import randomness
from glasshouse.errors import MonitorError
from glasshouse.extras import install_command
from glasshouse.types import Message

T = TypeVar("T")
MAX_REPLY_BYTES = 4 * 1024 * 1024
RETRYABLE_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})


class EndpointFailed(Exception):
    """All attempts failed; the message gives the reason."""


class RetryableError(Exception):
    """One attempt failed in a way that may be transient."""

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after
        """Seconds that the endpoint asks to wait, if any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The URL and model of an endpoint, with limits on time and retries.

    Example: `Endpoint(url="http://localhost:8000/v1", model="judge-1", key_variable="JUDGE_KEY")`
    """

    url: str
    """Up to and including `/v1`."""
    model: str
    key_variable: str = ""
    """The environment variable with the API key; empty: no key is sent."""
    timeout: float = 60.0
    """Seconds for one attempt, from connecting to the last byte."""
    max_attempts: int = 5
    backoff: float = 1.0
    """Seconds before the second attempt, doubled before each further one."""
    max_wait: float = 60.0
    """Most seconds between two attempts; a longer Retry-After ends the request."""
    concurrency: int = 4
    """Most requests in flight."""
    max_tokens: int = 400
    price_prompt: float = 0.0
    """Per million prompt tokens, in any currency."""
    price_completion: float = 0.0
    """Per million completion tokens."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise MonitorError(
                f'The endpoint "{self.url}" is not a URL; give one such as http://localhost:8000/v1.'
            )
        try:
            _ = parts.port
        except ValueError:
            raise MonitorError(f'The endpoint "{self.url}" has an invalid port.') from None
        if self.max_attempts < 1 or self.concurrency < 1 or self.timeout <= 0:
            raise MonitorError(
                "An endpoint's max_attempts, concurrency and timeout must be positive."
            )

    @property
    def chat_url(self) -> str:
        parts = urlsplit(self.url)
        return parts._replace(path=f"{parts.path.rstrip('/')}/chat/completions").geturl()


@dataclass(slots=True)
class Usage:
    """Totals of all requests; every reply counts, usable or not."""

    requests: int = 0
    retries: int = 0
    cached: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    replies_without_usage: int = 0
    """Replies that did not report their tokens: the cost is then too low."""

    def cost(self, endpoint: Endpoint) -> float:
        prompt = self.prompt_tokens * endpoint.price_prompt
        return (prompt + self.completion_tokens * endpoint.price_completion) / 1e6


@dataclass(slots=True)
class ChatClient:
    """Sends chats to one endpoint; thread-safe.

    Example: `ChatClient(endpoint).complete(chat_request(endpoint, messages, schema), json.loads)`
    """

    endpoint: Endpoint
    sleep: Callable[[float], None] = time.sleep
    usage: Usage = field(default_factory=Usage)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _tls: ssl.SSLContext = field(default_factory=ssl.create_default_context)

    def __post_init__(self) -> None:
        _import_httpx()

    def add_usage(self, **counts: int) -> None:
        """Adds to the usage, for example `add_usage(failed=1)`."""
        with self._lock:
            for name, count in counts.items():
                setattr(self.usage, name, getattr(self.usage, name) + count)

    def complete(self, body: dict[str, Any], parse: Callable[[str], T]) -> T:
        """Sends a chat and parses the reply. If `parse` raises `ValueError`, the chat is sent
        again; `EndpointFailed` carries the reason of the last attempt."""
        data = json.dumps(body).encode()  # ASCII, so that any model output can be encoded
        reason = ""
        for attempt in range(self.endpoint.max_attempts):
            self.add_usage(requests=1, retries=int(attempt > 0))
            try:
                # asyncio, because httpx's own timeouts restart with every byte received
                return parse(self._read_content(asyncio.run(self._post(data))))
            except MonitorError:  # also a ValueError, but a retry cannot fix it
                raise
            except RetryableError as error:
                reason, wait = str(error), error.retry_after
            except ValueError as error:
                reason, wait = f"the reply is unusable: {error}", None
            if wait is not None and wait > self.endpoint.max_wait:
                raise EndpointFailed(f"{reason}; the endpoint asks to wait {wait:g} s")
            if attempt + 1 < self.endpoint.max_attempts:
                self.sleep(self._backoff(attempt, data) if wait is None else wait)
        raise EndpointFailed(f"{reason} (after {self.endpoint.max_attempts} attempts)")

    def _backoff(self, attempt: int, data: bytes) -> float:
        # jitter, so that requests that failed together are not retried together
        jitter = randomness.stream("backoff", attempt, hash_bytes(data)).uniform(0.5, 1.0)
        return min(self.endpoint.max_wait, self.endpoint.backoff * 2**attempt * jitter)

    async def _post(self, data: bytes) -> bytes:
        """One attempt: redirects are not followed, and proxies from the environment not used, so
        that the key reaches no other host."""
        httpx = _import_httpx()
        endpoint, headers = self.endpoint, _make_headers(self.endpoint)
        content = bytearray()
        try:
            async with (
                asyncio.timeout(endpoint.timeout),
                httpx.AsyncClient(timeout=None, trust_env=False, verify=self._tls) as client,
                client.stream("POST", endpoint.chat_url, content=data, headers=headers) as reply,
            ):
                async for chunk in reply.aiter_raw():
                    content += chunk
                    if len(content) > MAX_REPLY_BYTES:
                        raise RetryableError(f"the reply is larger than {MAX_REPLY_BYTES} bytes")
        except TimeoutError:
            raise RetryableError(f"no complete reply within {endpoint.timeout:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            message = f"the connection failed: {type(error).__name__}: {error}"
            raise RetryableError(message[:200]) from None
        status = f"{reply.status_code} {reply.reason_phrase}"
        if reply.status_code in RETRYABLE_STATUSES:
            wait = parse_retry_after(reply.headers.get("Retry-After"), time.time())
            raise RetryableError(f"the endpoint returned {status}", wait)
        if reply.status_code != 200:
            raise MonitorError(
                f"The endpoint {endpoint.url} returned {status}: "
                f"{content[:200].decode(errors='replace')} "
                f'Check the URL, the model "{endpoint.model}" and the API key in '
                f"{endpoint.key_variable or 'key_variable (not set)'}."
            )
        return bytes(content)

    def _read_content(self, raw: bytes) -> str:
        """The text of the first choice; adds the reported tokens to the usage."""
        try:
            reply = json.loads(raw)
            content = reply["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError, RecursionError):
            raise ValueError(f"not a chat completion: {raw[:80]!r}") from None
        if not isinstance(content, str):
            raise ValueError("the chat completion has no text")
        usage = reply.get("usage")
        names = ("prompt_tokens", "completion_tokens")
        counts: list[Any] = [usage.get(n) for n in names] if isinstance(usage, dict) else []
        if counts and all(isinstance(count, int) and count >= 0 for count in counts):
            self.add_usage(prompt_tokens=counts[0], completion_tokens=counts[1])
        else:
            self.add_usage(replies_without_usage=1)
        return content


def chat_request(
    endpoint: Endpoint, messages: Sequence[Message], schema: dict[str, Any]
) -> dict[str, Any]:
    """The body of a request for a structured reply, at temperature 0."""
    return {
        "model": endpoint.model,
        "messages": list(messages),
        "temperature": 0,
        "max_tokens": endpoint.max_tokens,
        "response_format": {
            "type": "json_schema",
            # the name is part of what the model sees, and of the cache key: must not change
            "json_schema": {"name": "verdict", "strict": True, "schema": schema},
        },
    }


def parse_retry_after(value: str | None, now: float) -> float | None:
    """Seconds to wait, from a `Retry-After` header: a number of seconds or a date."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now)
    except ValueError:
        return None


def hash_bytes(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=20).hexdigest()


def _make_headers(endpoint: Endpoint) -> dict[str, str]:
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json",
        "Accept-Encoding": "identity",  # the limit on the reply's size is on what is received
    }
    if endpoint.key_variable:
        key = os.environ.get(endpoint.key_variable, "").strip()
        if not key:
            raise MonitorError(
                f"The environment variable {endpoint.key_variable} is empty; "
                "set it to the endpoint's API key."
            )
        if not (key.isascii() and key.isprintable()):  # httpx's error could quote the key
            raise MonitorError(f"The API key in {endpoint.key_variable} has invalid characters.")
        headers["Authorization"] = f"Bearer {key}"
    return headers


def _import_httpx() -> Any:
    try:
        import httpx
    except ImportError:
        raise MonitorError(f"An LLM judge needs httpx: {install_command('judge')}") from None
    return httpx
