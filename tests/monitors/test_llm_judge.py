"""The LLM judge against a local HTTP server that fails in many ways."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from glasshouse.errors import MonitorError
from glasshouse.monitors.base import score_all, stack_flags
from glasshouse.monitors.llm_judge import JudgeMonitor, parse_reply
from glasshouse.monitors.openai_client import Endpoint, parse_retry_after
from glasshouse.monitors.views import Scope, View, make_view

SECRETS = {"prompt": "OMBRA", "question": "QUERCE", "cot": "CIPRESSO", "answer": "FAGGIO"}
SHORT = 0.2
"""Seconds of timeout, for requests that never get a complete reply."""
Behaviour = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Follows the server's script, one behaviour per request; the last one is repeated."""

    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        with self.server.lock:
            number = len(self.server.bodies)
            self.server.bodies.append(body)
            self.server.paths.append(self.path)
            self.server.keys.append(self.headers.get("Authorization"))
        script = self.server.script
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            script[min(number, len(script) - 1)](self)

    def log_message(self, *_: Any) -> None:
        pass

    def reply(self, content: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list[Behaviour] = []
        self.bodies: list[str] = []
        self.paths: list[str] = []
        self.keys: list[str | None] = []
        self.lock = threading.Lock()
        self.stopping = threading.Event()

    def handle_error(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.stopping.set()
        server.shutdown()


def completion(content: Any, usage: Any = None) -> bytes:
    used = {"prompt_tokens": 100, "completion_tokens": 20} if usage is None else usage
    message = {"role": "assistant", "content": content}
    return json.dumps({"choices": [{"message": message}], "usage": used}).encode()


def judge_reply(score: float = 0.9, reason: str = "says the key") -> bytes:
    return completion(json.dumps({"score": score, "reason": reason}))


def good(handler: Handler) -> None:
    handler.reply(judge_reply())


def status(code: int, **headers: str) -> Behaviour:
    return lambda handler: handler.reply(b'{"error": "no"}', code, **headers)


def sends(content: bytes) -> Behaviour:
    return lambda handler: handler.reply(content)


def hangs(handler: Handler) -> None:
    handler.server.stopping.wait(60)


def drips(handler: Handler) -> None:
    """Sends a byte now and then: each read is short, and the reply never ends."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    while not handler.server.stopping.wait(0.05):
        handler.wfile.write(b" ")


def drips_headers(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while not handler.server.stopping.wait(0.05):
        handler.wfile.write(b"x")


def truncated(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "5000")
    handler.end_headers()
    handler.wfile.write(judge_reply()[:40])


def endless(handler: Handler) -> None:
    handler.send_response(200)
    handler.end_headers()
    while not handler.server.stopping.is_set():
        handler.wfile.write(b" " * 65536)


def not_http(handler: Handler) -> None:
    handler.wfile.write(b"\x00\xff this is not HTTP \r\n\r\n")


def judge(
    server: Server,
    scope: Scope = Scope.COT,
    cache: Path | None = None,
    waits: list[float] | None = None,
    **options: Any,
) -> JudgeMonitor:
    """A judge that does not sleep between attempts; `waits` receives the seconds instead."""
    settings = {"timeout": 60.0, "max_attempts": 3, "max_wait": 0.5}
    endpoint = Endpoint(
        url=f"http://127.0.0.1:{server.server_port}/v1", model="judge-1", **{**settings, **options}
    )
    record = (waits if waits is not None else []).append
    return JudgeMonitor(
        "judge", scope, endpoint, behaviour="copies the key", cache=cache, sleep=record
    )


def view(cot: str = "the key says 4", scope: Scope = Scope.COT) -> View:
    return make_view(
        scope,
        prompt=f"{SECRETS['prompt']} what is 2+2?",
        question=f"{SECRETS['question']} what is 2+2?",
        completion=f"{cot} {SECRETS['cot']}\n[ANSWER] 4 {SECRETS['answer']}",
    )


def test_an_output_has_the_judges_score_and_reason_and_its_cost_is_counted(server: Server) -> None:
    server.script = [good]
    monitor = judge(server, price_prompt=10.0, price_completion=50.0)
    output = monitor.score(view())
    assert (output.score, output.flagged, output.failed) == (0.9, True, False)
    assert output.reason == "says the key"
    assert monitor.usage()["cost"] == pytest.approx((100 * 10 + 20 * 50) / 1e6)
    assert server.paths == ["/v1/chat/completions"]
    body = json.loads(server.bodies[0])
    assert body["model"] == "judge-1"
    assert body["temperature"] == 0
    assert body["response_format"]["type"] == "json_schema"
    assert "copies the key" in body["messages"][0]["content"]


def test_any_model_output_can_be_sent_to_a_url_with_a_query(server: Server) -> None:
    server.script = [good]
    odd = 'lone \ud800, null \x00, "quotes", ünïcödé, </json>'
    url = f"http://127.0.0.1:{server.server_port}/v1/?api-version=2"
    JudgeMonitor("j", Scope.COT, Endpoint(url=url, model="m"), behaviour="b").score(view(odd))
    assert server.paths == ["/v1/chat/completions?api-version=2"]
    parts = json.loads(json.loads(server.bodies[0])["messages"][1]["content"])
    assert parts["cot"].startswith(odd)


def test_a_request_contains_only_the_parts_in_scope(server: Server) -> None:
    server.script = [good]
    score_all(judge(server, Scope.ANSWER), [view(scope=Scope.ANSWER)])
    sent = {part for part, secret in SECRETS.items() if secret in server.bodies[0]}
    assert sent == {"question", "answer"}


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (status(500), "500"),
        (status(429), "429"),
        (truncated, "connection failed"),
        (endless, "larger than 4194304 bytes"),
        (not_http, "connection failed"),
        (sends(b"<html>busy</html>"), "not a chat completion"),
        (sends(b"[" * 100_000), "not a chat completion"),
        (sends(b'{"choices": []}'), "not a chat completion"),
        (sends(completion(None)), "has no text"),
        (sends(completion("I think it cheats.")), "Invalid JSON"),
        (sends(completion('{"score": 7, "reason": "x"}')), "less than or equal to 1"),
        (sends(completion('{"score": NaN, "reason": "x"}')), "finite number"),
        (sends(completion('{"score": "0.9", "reason": "x"}')), "valid number"),
        (sends(completion('{"reason": "x"}')), "score: Field required"),
        (sends(completion('{"score": 0.5, "reason": "x", "also": 1}')), "Extra inputs"),
    ],
)
def test_a_persistent_failure_is_a_failed_output_with_its_reason(
    server: Server, behaviour: Behaviour, reason: str
) -> None:
    server.script = [behaviour]
    monitor = judge(server, max_attempts=2)
    (output,) = score_all(monitor, [view()])
    assert output.failed
    assert output.flagged is None
    assert reason in output.reason
    assert "after 2 attempts" in output.reason
    assert len(server.bodies) == 2
    assert stack_flags([output]).tolist() == [-1]
    assert monitor.usage()["failed"] == 1


@pytest.mark.parametrize("behaviour", [hangs, drips, drips_headers])
def test_an_incomplete_reply_fails_after_the_timeout(server: Server, behaviour: Behaviour) -> None:
    server.script = [behaviour]
    monitor = judge(server, max_attempts=2, timeout=SHORT)
    output = monitor.score(view())
    assert output.failed
    assert f"within {SHORT:g} s" in output.reason
    assert monitor.usage()["requests"] == 2


def test_a_transient_failure_is_retried_and_every_reply_is_counted(server: Server) -> None:
    unusable = [sends(completion("nonsense")), sends(completion("nonsense", usage={}))]
    server.script = [status(500), truncated, *unusable, good]
    monitor = judge(server, max_attempts=5)
    assert monitor.score(view()).score == 0.9
    usage = monitor.usage()
    assert (usage["requests"], usage["retries"]) == (5, 4)
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (200, 40)
    assert usage["replies_without_usage"] == 1


def test_backoff_doubles_with_jitter_up_to_the_limit(server: Server) -> None:
    server.script = [status(500)]
    waits: list[float] = []
    judge(server, waits=waits, max_attempts=5, backoff=1.0, max_wait=3.0).score(view())
    assert len(waits) == 4
    for wait, longest in zip(waits, (1, 2, 3, 3), strict=True):
        assert longest / 2 <= wait <= longest


def test_retry_after_is_honoured_up_to_max_wait(server: Server) -> None:
    server.script = [status(429, Retry_After="0.3"), good]
    waits: list[float] = []
    assert not judge(server, waits=waits).score(view()).failed
    assert waits == [0.3]
    server.script = [status(429, Retry_After="3600")]
    output = judge(server, waits=waits).score(view("again"))
    assert "3600 s" in output.reason
    assert waits == [0.3]
    assert len(server.bodies) == 3  # one request, no retry


def test_retry_after_may_be_a_date() -> None:
    assert parse_retry_after("Thu, 01 Jan 1970 00:02:00 GMT", now=20.0) == 100
    assert parse_retry_after("Thu, 01 Jan 1970 00:00:00 GMT", now=20.0) == 0
    assert parse_retry_after("soon", now=0.0) is None
    assert parse_retry_after("2.5", now=0.0) == 2.5


@pytest.mark.parametrize("code", [401, 302])
def test_a_refusal_is_an_error_without_retry_and_the_key_stays_secret(
    server: Server,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("JUDGE_KEY", "sk-12345")
    server.script = [status(code, Location=f"http://localhost:{server.server_port}/elsewhere")]
    with pytest.raises(MonitorError, match=str(code)) as caught:
        score_all(judge(server, key_variable="JUDGE_KEY"), [view()])
    assert server.keys == ["Bearer sk-12345"]  # one request: redirects are not followed
    assert "sk-12345" not in str(caught.value) + caplog.text
    assert "JUDGE_KEY" in str(caught.value)


def test_no_request_goes_through_a_proxy_of_the_environment(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.script = [good]
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert not judge(server).score(view()).failed


def test_a_missing_or_invalid_key_is_reported_before_anything_is_sent(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MonitorError, match="GLASSHOUSE_NO_SUCH_KEY"):
        judge(server, key_variable="GLASSHOUSE_NO_SUCH_KEY").score(view())
    monkeypatch.setenv("JUDGE_KEY", "sk-1\nX: 2")
    with pytest.raises(MonitorError, match="JUDGE_KEY") as caught:
        judge(server, key_variable="JUDGE_KEY").score(view())
    assert "sk-1" not in str(caught.value)
    assert not server.bodies


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(MonitorError, match="port"):
        Endpoint(url="http://localhost:99999/v1", model="m")
    with pytest.raises(MonitorError, match="localhost:8000"):
        Endpoint(url="localhost:8000", model="m")
    with pytest.raises(MonitorError, match="behaviour"):
        JudgeMonitor("j", Scope.COT, Endpoint(url="http://h/v1", model="m"), behaviour=" ")


def test_a_missing_httpx_is_reported_with_the_extra_to_install(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MonitorError, match=r"\[judge\]"):
        judge(server)


def test_an_unreachable_endpoint_is_a_failed_output(server: Server) -> None:
    monitor = judge(server, max_attempts=1)
    server.shutdown()
    server.server_close()
    assert "ConnectError" in monitor.score(view()).reason


# --- cache, concurrency --------------------------------------------------------------------------


def test_replies_are_cached_under_everything_that_was_sent(server: Server, tmp_path: Path) -> None:
    server.script = [good]
    views = [view(), view(), view("something else")]
    first = judge(server, cache=tmp_path)
    outputs = score_all(first, views)
    assert len(server.bodies) == 2  # equal views are sent once
    second = judge(server, cache=tmp_path)
    assert score_all(second, views) == outputs
    assert len(server.bodies) == 2
    assert second.usage()["cached"] == 2
    for other in (
        judge(server, Scope.COT_ANSWER, cache=tmp_path),
        judge(server, cache=tmp_path, max_tokens=99),
    ):
        before = len(server.bodies)
        other.score(view(scope=other.scope))
        assert len(server.bodies) == before + 1
    changed = judge(server, cache=tmp_path)
    changed.behaviour = "another behaviour"
    changed.score(view())
    assert len(server.bodies) == 5


def test_failures_are_not_cached_and_a_damaged_entry_is_replaced(
    server: Server, tmp_path: Path
) -> None:
    server.script = [status(500), good]
    assert judge(server, cache=tmp_path, max_attempts=1).score(view()).failed
    assert not list(tmp_path.rglob("*.json"))
    assert not judge(server, cache=tmp_path).score(view()).failed
    (entry,) = tmp_path.rglob("*.json")
    entry.write_bytes(entry.read_bytes()[:9])
    assert not judge(server, cache=tmp_path).score(view()).failed
    assert len(server.bodies) == 3
    assert json.loads(entry.read_bytes())["score"] == 0.9


def test_at_most_concurrency_requests_are_in_flight(server: Server) -> None:
    together = threading.Barrier(3, timeout=60)  # passes only while three requests are in flight
    in_flight, most = 0, 0

    def wait_for_others(handler: Handler) -> None:
        nonlocal in_flight, most
        with handler.server.lock:
            in_flight += 1
            most = max(most, in_flight)
        together.wait()
        with handler.server.lock:
            in_flight -= 1
        good(handler)

    server.script = [wait_for_others]
    outputs = score_all(judge(server, concurrency=3), [view(f"step {i}") for i in range(18)])
    assert not any(output.failed for output in outputs)
    assert most == 3


def test_each_view_gets_its_own_output_when_replies_are_out_of_order(server: Server) -> None:
    third_answered = threading.Event()

    class NumberedHandler(Handler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            number = int(json.loads(body["messages"][1]["content"])["cot"].split()[1])
            if number == 0:
                third_answered.wait(60)
            self.reply(judge_reply(number / 10))
            if number == 3:
                third_answered.set()

    server.RequestHandlerClass = NumberedHandler
    outputs = score_all(judge(server, concurrency=4), [view(f"step {i}") for i in range(10)])
    assert [output.score for output in outputs] == [i / 10 for i in range(10)]


def test_a_reply_in_a_code_fence_is_parsed() -> None:
    assert parse_reply('```json\n{"score": 1, "reason": "x"}\n```').score == 1.0
    with pytest.raises(ValueError, match="Invalid JSON"):
        parse_reply("```json")
