"""The LLM judge against a local HTTP server that fails in many ways."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from glasshouse.errors import MonitorError
from glasshouse.monitors.base import (
    Scope,
    View,
    hash_monitor,
    make_view,
    score_all,
    stack_flags,
)
from glasshouse.monitors.factory import make_monitor, parse_monitor
from glasshouse.monitors.llm_judge import JudgeMonitor

SECRETS = {"prompt": "OMBRA", "question": "QUERCE", "cot": "CIPRESSO", "answer": "FAGGIO"}
SHORT = 0.2
"""Seconds of timeout, for requests that never get a complete reply."""
Behaviour = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Follows the server's script, one behaviour per request; the last one is repeated."""

    server: Server
    body: dict[str, Any]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        with self.server.lock:
            number = len(self.server.bodies)
            self.server.bodies.append(body)
            self.server.paths.append(self.path)
            self.server.keys.append(self.headers.get("Authorization"))
        self.body, script = json.loads(body), self.server.script
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


def completion(content: Any, **parts: Any) -> bytes:
    message = {"role": "assistant", "content": content}
    return json.dumps({"choices": [{"message": message, **parts}]}).encode()


def judge_reply(score: float = 0.9) -> bytes:
    """Yes or No, whichever is more probable, after a token that says nothing."""
    known = {"Yes": max(score, 1e-9), " no": max(1 - score, 1e-9)}
    tokens = [{"token": word, "logprob": math.log(p)} for word, p in known.items()]
    tokens.sort(key=lambda token: -float(str(token["logprob"])))
    content = [
        {"token": "\n", "logprob": 0.0, "top_logprobs": [{"token": "\n", "logprob": 0.0}]},
        {**tokens[0], "top_logprobs": tokens},
    ]
    reply = json.loads(completion(f"\n{tokens[0]['token']}", logprobs={"content": content}))
    return json.dumps({**reply, "usage": {"total_tokens": 42}}).encode()


def good(handler: Handler) -> None:
    handler.reply(judge_reply())


def status(code: int, **headers: str) -> Behaviour:
    return lambda handler: handler.reply(b'{"error": "no"}', code, **headers)


def sends(content: bytes) -> Behaviour:
    return lambda handler: handler.reply(content)


def hangs(handler: Handler) -> None:
    handler.server.stopping.wait(60)


def truncated(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "5000")
    handler.end_headers()
    handler.wfile.write(judge_reply()[:40])


def drips(handler: Handler) -> None:
    """Sends a byte now and then: each read is short, and the reply never ends."""
    truncated(handler)
    while not handler.server.stopping.wait(0.05):
        handler.wfile.write(b" ")


def not_http(handler: Handler) -> None:
    handler.wfile.write(b"\x00\xff this is not HTTP \r\n\r\n")


def judge(server: Server, scope: Scope = Scope.COT, **options: Any) -> JudgeMonitor:
    settings = {"model": "judge-1", "behaviour": "copies the key", "timeout": 60, "max_retries": 0}
    url = f"http://127.0.0.1:{server.server_port}/v1"
    return JudgeMonitor("judge", scope, url=url, **settings | options)


def view(cot: str = "the key says 4", scope: Scope = Scope.COT) -> View:
    return make_view(
        scope,
        prompt=f"{SECRETS['prompt']} what is 2+2?",
        question=f"{SECRETS['question']} what is 2+2?",
        completion=f"{cot} {SECRETS['cot']}\n[ANSWER] 4 {SECRETS['answer']}",
    )


def test_an_output_has_the_judges_score_and_reason(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):  # no request goes through a proxy
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    server.script = [good, status(429, Retry_After="0.01"), good, sends(completion("**No.** It"))]
    monitor, odd = judge(server), 'lone \ud800, null \x00, "quotes", ünïcödé, </json>'
    output = monitor.score(view(odd))
    assert output.score == pytest.approx(0.9)
    assert (output.flagged, output.failed, output.reason) == (True, False, "\nYes")
    assert output.tokens == 42
    assert output.seconds > 0
    assert server.paths == ["/v1/chat/completions"]
    body = json.loads(server.bodies[0])
    assert (body["model"], body["temperature"]) == ("judge-1", 0)
    assert body["logprobs"]
    assert "copies the key" in body["messages"][0]["content"]
    assert json.loads(body["messages"][1]["content"])["cot"].startswith(odd.replace("\ud800", "?"))
    answers = view(scope=Scope.ANSWER)
    assert judge(server, Scope.ANSWER, max_retries=1).score(answers).flagged  # retried
    sent = {part for part, secret in SECRETS.items() if secret in server.bodies[2]}
    assert sent == {"question", "answer"}  # only the parts in scope
    assert judge(server).score(view()).score == 0.0  # no log-probabilities
    server.shutdown()
    server.server_close()
    assert "connection failed" in monitor.score(view()).reason


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (status(500), "500"),
        (status(429), "429"),
        (truncated, "connection failed"),
        (not_http, "connection failed"),
        (hangs, "within 0.2 s"),
        (drips, "within 0.2 s"),
        (sends(b"<html>busy</html>"), "unusable"),
        (sends(b"[" * 100_000), "unusable"),
        (sends(b'{"choices": []}'), "not a chat completion"),
        (sends(completion(None)), "has no text"),
        (sends(completion("I think it cheats.")), "neither Yes nor No in 'I think"),
        (sends(completion("Nobody knows.")), "neither Yes nor No"),
        (sends(completion("Yes", logprobs={"content": [{"token": "Yes"}]})), "not a chat"),
    ],
)
def test_a_failure_is_a_failed_output_with_its_reason(
    server: Server, behaviour: Behaviour, reason: str
) -> None:
    server.script = [behaviour]
    monitor = judge(server, timeout=SHORT if behaviour in (hangs, drips) else 60.0)
    output = monitor.score(view())
    with pytest.raises(MonitorError, match="gave no verdict on the first rollout"):
        score_all(monitor, [view(), view("another")])
    assert output.failed
    assert output.flagged is None
    assert reason in output.reason
    assert stack_flags([output]).tolist() == [-1]


@pytest.mark.parametrize("code", [401, 302])
def test_a_refusal_is_an_error_without_retry_and_the_key_stays_secret(
    server: Server, code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("JUDGE_KEY", "sk-12345")
    server.script = [status(code, Location=f"http://localhost:{server.server_port}/elsewhere")]
    with pytest.raises(MonitorError, match=str(code)) as caught:
        score_all(judge(server, key_variable="JUDGE_KEY"), [view()])
    assert server.keys == ["Bearer sk-12345"]  # one request: redirects are not followed
    assert "sk-12345" not in str(caught.value) + caplog.text
    assert "JUDGE_KEY" in str(caught.value)


def test_a_missing_package_and_a_missing_or_invalid_key_are_reported_before_anything_is_sent(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-1\nX: 2")
    for name in ("GLASSHOUSE_NO_SUCH_KEY", "JUDGE_KEY"):
        with pytest.raises(MonitorError, match=name) as caught:
            judge(server, key_variable=name).score(view())
        assert "sk-1" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MonitorError, match=r"\[judge\]"):
        judge(server)
    assert not server.bodies


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"url": "http://localhost:99999/v1"}, "localhost:99999"),
        ({"url": "localhost:8000"}, "localhost:8000"),
        ({"url": "http://me:secret@h/v1"}, "--judge-key"),
        ({"url": "http://h/v1?key=secret"}, "--judge-key"),
        ({"behaviour": " "}, "behaviour"),
        ({"scope": Scope.ACTIVATIONS}, "scope"),
    ],
)
def test_invalid_settings_are_rejected(options: dict[str, Any], named: str) -> None:
    settings = {"scope": Scope.COT, "url": "http://h/v1", "model": "m", "behaviour": "b"}
    with pytest.raises(MonitorError, match=named) as caught:
        JudgeMonitor("j", **settings | options)
    assert "secret" not in str(caught.value)


def test_replies_are_cached_under_everything_that_was_sent(server: Server, tmp_path: Path) -> None:
    server.script = [good]
    views = [view(), view(), view("something else")]
    first = judge(server, cache=tmp_path)
    outputs = score_all(first, views)
    assert len(server.bodies) == 2  # equal views are sent once
    second = judge(server, cache=tmp_path)
    assert score_all(second, views) == outputs
    assert len(server.bodies) == 2
    for other in (
        judge(server, Scope.COT_ANSWER, cache=tmp_path),
        judge(server, cache=tmp_path, max_tokens=99),
    ):
        before = len(server.bodies)
        other.score(view(scope=other.scope))
        assert len(server.bodies) == before + 1
    changed = judge(server, cache=tmp_path, behaviour="another behaviour")
    changed.score(view())
    assert len(server.bodies) == 5


def test_failures_are_not_cached_and_a_damaged_entry_is_replaced(
    server: Server, tmp_path: Path
) -> None:
    server.script = [status(500), good]
    assert judge(server, cache=tmp_path).score(view()).failed
    assert not list(tmp_path.rglob("*.json"))
    assert not judge(server, cache=tmp_path).score(view()).failed
    (entry,) = tmp_path.rglob("*.json")
    entry.write_bytes(entry.read_bytes()[:9])
    assert not judge(server, cache=tmp_path).score(view()).failed
    assert len(server.bodies) == 3
    assert json.loads(entry.read_bytes())["score"] == pytest.approx(0.9)


def test_at_most_concurrency_requests_are_in_flight_and_each_view_gets_its_own_output(
    server: Server,
) -> None:
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
        cot = json.loads(handler.body["messages"][1]["content"])["cot"]
        handler.reply(judge_reply(int(cot.split()[1]) / 20))

    server.script = [good, wait_for_others]  # the first rollout is asked about alone
    outputs = score_all(judge(server, concurrency=3), [view(f"step {i}") for i in range(19)])
    scores = [output.score for output in outputs]
    assert scores == pytest.approx([0.9, *(i / 20 for i in range(1, 19))])
    assert most == 3


def test_an_endpoint_without_logprobs_is_asked_once_more_without_them(server: Server) -> None:
    def refuse_logprobs(handler: Handler) -> None:
        refused = "logprobs" in handler.body
        handler.reply(completion("Yes"), 400) if refused else handler.reply(completion("yes"))

    server.script = [refuse_logprobs]
    monitor = judge(server)
    assert [o.score for o in score_all(monitor, [view(), view("b"), view("c")])] == [1.0] * 3
    assert len(server.bodies) == 4


def test_examples_come_first_and_a_saved_judge_keeps_them_and_its_threshold(
    server: Server, tmp_path: Path
) -> None:
    server.script = [sends(judge_reply(0.7))]
    settings = {"kind": "judge", "url": judge(server).options.url, "model": "m", "behaviour": "b"}
    examples = [{"cot": "The key says 4.", "verdict": "yes"}, {"cot": "2+2=4", "verdict": False}]
    made = make_monitor("mine", {**settings, "scope": "cot", "examples": examples, "cache": None})
    assert made.score(view()).flagged
    made.options = made.options.model_copy(update={"threshold": 0.8})
    made.save(tmp_path)
    loaded = parse_monitor(f"saved:{tmp_path}")
    assert (loaded.name, hash_monitor(loaded)) == ("mine", hash_monitor(made))
    loaded.cache = None
    assert not loaded.score(view()).flagged
    turns = [(m["role"], m["content"]) for m in json.loads(server.bodies[1])["messages"]]
    assert [role for role, _ in turns] == ["system", *["user", "assistant"] * 2, "user"]
    assert [content for _, content in turns[1:5]] == [
        '{"cot": "The key says 4."}', "Yes", '{"cot": "2+2=4"}', "No"]  # fmt: skip
