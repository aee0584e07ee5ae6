"""The LLM judge against a server on this machine that misbehaves in every way we could think of."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from glasshouse.errors import MonitorError
from glasshouse.monitors import Endpoint, JudgeMonitor, flags, score_all
from glasshouse.monitors.llm_judge import read
from glasshouse.monitors.openai_client import _seconds
from glasshouse.monitors.views import Scope, View, look

pytestmark = pytest.mark.alone

SECRETS = {"prompt": "OMBRA", "question": "QUERCE", "cot": "CIPRESSO", "answer": "FAGGIO"}
Behaviour = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Follows the server's script, one behaviour a request; the last one is repeated."""

    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        with self.server.lock:
            number = len(self.server.bodies)
            self.server.bodies.append(body)
            self.server.paths.append(self.path)
            self.server.keys.append(self.headers.get("Authorization"))
            self.server.times.append(time.monotonic())
            self.server.under_way += 1
            self.server.most = max(self.server.most, self.server.under_way)
        script = self.server.script
        try:
            script[min(number, len(script) - 1)](self)
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            with self.server.lock:
                self.server.under_way -= 1

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
        self.times: list[float] = []
        self.under_way = self.most = 0
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


def says(content: Any, usage: Any = None) -> bytes:
    used = {"prompt_tokens": 100, "completion_tokens": 20} if usage is None else usage
    message = {"role": "assistant", "content": content}
    return json.dumps({"choices": [{"message": message}], "usage": used}).encode()


def opinion(score: float = 0.9, reason: str = "says the key") -> bytes:
    return says(json.dumps({"score": score, "reason": reason}))


def good(handler: Handler) -> None:
    handler.reply(opinion())


def status(code: int, **headers: str) -> Behaviour:
    return lambda handler: handler.reply(b'{"error": "no"}', code, **headers)


def sends(content: bytes) -> Behaviour:
    return lambda handler: handler.reply(content)


def hangs(handler: Handler) -> None:
    handler.server.stopping.wait(20)


def drips(handler: Handler) -> None:
    """A byte now and then: no single wait is long, and the whole never ends."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    while not handler.server.stopping.wait(0.05):
        handler.wfile.write(b" ")


def drips_headers(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while not handler.server.stopping.wait(0.05):
        handler.wfile.write(b"x")


def cut_short(handler: Handler) -> None:
    """Promises more than it sends."""
    handler.send_response(200)
    handler.send_header("Content-Length", "5000")
    handler.end_headers()
    handler.wfile.write(opinion()[:40])


def hangs_up(handler: Handler) -> None:
    handler.connection.close()


def no_http(handler: Handler) -> None:
    handler.wfile.write(b"\x00\xff this is not HTTP \r\n\r\n")


def judge(
    server: Server, scope: Scope = Scope.COT, cache: Path | None = None, **options: Any
) -> JudgeMonitor:
    settings = {"timeout": 0.4, "attempts": 3, "backoff": 0.01, "longest_wait": 0.5}
    endpoint = Endpoint(
        url=f"http://127.0.0.1:{server.server_port}/v1", model="judge-1", **{**settings, **options}
    )
    return JudgeMonitor("judge", scope, endpoint, behaviour="copies the key", cache=cache)


def view(cot: str = "the key says 4", scope: Scope = Scope.COT) -> View:
    return look(
        scope,
        prompt=f"{SECRETS['prompt']} what is 2+2?",
        question=f"{SECRETS['question']} what is 2+2?",
        completion=f"{cot} {SECRETS['cot']}\n[ANSWER] 4 {SECRETS['answer']}",
    )


def test_a_verdict_has_the_judges_score_and_reason_and_its_cost_is_counted(server: Server) -> None:
    server.script = [good]
    monitor = judge(server, price_prompt=10.0, price_completion=50.0)
    verdict = monitor.score(view())
    assert (verdict.score, verdict.flag, verdict.failed) == (0.9, True, False)
    assert verdict.reason == "says the key"
    assert monitor.cost()["cost"] == pytest.approx((100 * 10 + 20 * 50) / 1e6)
    assert server.paths == ["/v1/chat/completions"]
    sent = json.loads(server.bodies[0])
    assert sent["model"] == "judge-1"
    assert sent["temperature"] == 0
    assert sent["response_format"]["type"] == "json_schema"
    assert "copies the key" in sent["messages"][0]["content"]


@pytest.mark.parametrize(
    ("scope", "shown"),
    [
        (Scope.PROMPT, {"prompt"}),
        (Scope.ANSWER, {"question", "answer"}),
        (Scope.COT, {"cot"}),
        (Scope.COT_ANSWER, {"cot", "answer"}),
    ],
)
def test_what_goes_over_the_wire_holds_nothing_beyond_the_scope(
    server: Server, scope: Scope, shown: set[str]
) -> None:
    server.script = [good]
    score_all(judge(server, scope), [view(scope=scope)])
    reached = {part for part, secret in SECRETS.items() if secret in server.bodies[0]}
    assert reached == shown


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (status(500), "answers 500"),
        (status(503), "answers 503"),
        (status(429), "answers 429"),
        (hangs, "no whole reply within 0.4 s"),
        (drips, "no whole reply within 0.4 s"),
        (drips_headers, "no whole reply within 0.4 s"),
        (cut_short, "the reply was cut short, 4960 bytes before its end"),
        (hangs_up, "the connection failed"),
        (no_http, "the connection failed: BadStatusLine"),
        (sends(b"<html>busy</html>"), "not a chat completion"),
        (sends(b"\xff\xfe\x00"), "not a chat completion"),
        (sends(b"[" * 100_000), "not a chat completion"),
        (sends(b"[]"), "not a chat completion"),
        (sends(b'{"choices": []}'), "not a chat completion"),
        (sends(says(None)), "has no text"),
        (sends(says("I think it cheats.")), "Invalid JSON"),
        (sends(says('{"score": 0.9, "rea')), "Invalid JSON"),
        (sends(says('{"score": 7, "reason": "x"}')), "less than or equal to 1"),
        (sends(says('{"score": NaN, "reason": "x"}')), "finite number"),
        (sends(says('{"score": "0.9", "reason": "x"}')), "valid number"),
        (sends(says('{"score": true, "reason": "x"}')), "valid number"),
        (sends(says('{"reason": "x"}')), "score: Field required"),
        (sends(says('{"score": 0.5, "reason": "x", "also": 1}')), "Extra inputs"),
    ],
)
def test_what_stays_broken_is_a_failed_verdict_with_its_reason_in_bounded_time(
    server: Server, behaviour: Behaviour, reason: str
) -> None:
    server.script = [behaviour]
    monitor = judge(server, attempts=2)
    start = time.monotonic()
    (verdict,) = score_all(monitor, [view()])
    assert time.monotonic() - start < 5
    assert verdict.failed
    assert verdict.flag is None
    assert reason in verdict.reason
    assert "after 2 attempts" in verdict.reason
    assert len(server.bodies) == 2
    assert flags([verdict]).tolist() == [-1]
    assert monitor.cost()["failed"] == 1


@pytest.mark.parametrize("behaviour", [status(500), hangs, cut_short, sends(says("{"))])
def test_what_passes_is_tried_again(server: Server, behaviour: Behaviour) -> None:
    server.script = [behaviour, good]
    monitor = judge(server)
    assert monitor.score(view()).score == 0.9
    assert (monitor.cost()["requests"], monitor.cost()["retries"]) == (2, 1)


def test_every_reply_is_paid_for_usable_or_not_and_one_without_a_count_is_told(
    server: Server,
) -> None:
    server.script = [sends(says("nonsense")), sends(says("nonsense", usage={})), good]
    monitor = judge(server)
    monitor.score(view())
    cost = monitor.cost()
    assert (cost["prompt_tokens"], cost["completion_tokens"], cost["uncounted"]) == (200, 40, 1)


def test_retry_after_is_waited_for_and_not_beyond_patience(server: Server) -> None:
    server.script = [status(429, Retry_After="0.3"), good]
    assert not judge(server).score(view()).failed
    assert server.times[1] - server.times[0] >= 0.3
    server.script = [status(429, Retry_After="3600")]
    verdict = judge(server).score(view("again"))
    assert "asks to wait 3600 s" in verdict.reason
    assert len(server.bodies) == 3  # asked once, not again before its time


def test_retry_after_may_be_a_date() -> None:
    assert _seconds("Fri, 01 Jan 2100 00:00:00 GMT") > 1e9
    assert _seconds("Thu, 01 Jan 1970 00:00:00 GMT") == 0
    assert _seconds("soon") is None
    assert _seconds("2.5") == 2.5


@pytest.mark.parametrize("code", [400, 401, 403, 404, 302])
def test_what_a_person_must_mend_is_an_error_at_once(
    server: Server, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-12345")
    server.script = [status(code)]
    with pytest.raises(MonitorError, match=f"refuses \\({code}") as caught:
        score_all(judge(server, key_env="JUDGE_KEY"), [view()])
    assert len(server.bodies) == 1
    assert server.keys == ["Bearer sk-12345"]
    assert "sk-12345" not in str(caught.value)
    assert "JUDGE_KEY" in str(caught.value)


def test_a_key_that_is_not_set_is_said_before_anything_is_sent(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MonitorError, match="GLASSHOUSE_NO_SUCH_KEY is empty"):
        judge(server, key_env="GLASSHOUSE_NO_SUCH_KEY").score(view())
    assert not server.bodies
    monkeypatch.setenv("JUDGE_KEY", "sk-1\nX: 2")
    with pytest.raises(MonitorError, match="JUDGE_KEY has characters that no key has") as caught:
        judge(server, key_env="JUDGE_KEY").score(view())
    assert "sk-1" not in str(caught.value)
    assert not server.bodies
    with pytest.raises(MonitorError, match="no port that exists"):
        Endpoint(url="http://localhost:99999/v1", model="m")
    with pytest.raises(MonitorError, match="is no address"):
        Endpoint(url="localhost:8000", model="m")
    with pytest.raises(MonitorError, match="which behaviour"):
        JudgeMonitor("j", Scope.COT, Endpoint(url="http://h/v1", model="m"), behaviour=" ")


def test_an_endpoint_that_is_not_there_is_a_failed_verdict(server: Server) -> None:
    monitor = judge(server, attempts=1)
    server.shutdown()
    server.server_close()
    assert "the connection failed: ConnectionRefusedError" in monitor.score(view()).reason


# --- cache, concurrency --------------------------------------------------------------------------


def test_an_answer_is_kept_under_everything_that_was_sent(server: Server, tmp_path: Path) -> None:
    server.script = [good]
    views = [view(), view(), view("something else")]
    first = judge(server, cache=tmp_path)
    verdicts = score_all(first, views)
    assert len(server.bodies) == 2  # equal views are asked once
    second = judge(server, cache=tmp_path)
    assert score_all(second, views) == verdicts
    assert len(server.bodies) == 2
    assert second.cost()["cached"] == 2
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


def test_failures_are_not_kept_and_a_damaged_entry_is_asked_again(
    server: Server, tmp_path: Path
) -> None:
    server.script = [status(500), good]
    assert judge(server, cache=tmp_path, attempts=1).score(view()).failed
    assert not list(tmp_path.rglob("*.json"))
    assert not judge(server, cache=tmp_path).score(view()).failed
    (entry,) = tmp_path.rglob("*.json")
    entry.write_bytes(entry.read_bytes()[:9])
    assert not judge(server, cache=tmp_path).score(view()).failed
    assert len(server.bodies) == 3
    assert json.loads(entry.read_bytes())["score"] == 0.9


def test_no_more_requests_than_allowed_are_under_way(server: Server) -> None:
    def slowly(handler: Handler) -> None:
        time.sleep(0.03)
        good(handler)

    server.script = [slowly]
    monitor = judge(server, concurrency=3, timeout=5.0)
    verdicts = score_all(monitor, [view(f"step {i}") for i in range(20)])
    assert not any(v.failed for v in verdicts)
    assert 2 <= server.most <= 3


def test_each_view_gets_its_own_verdict(server: Server) -> None:
    class Graded(Handler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            shown = json.loads(body["messages"][1]["content"])["cot"]
            number = int(shown.split()[1])
            time.sleep(0.02 * (number % 3))  # replies come back out of order
            self.reply(opinion(number / 10))

    server.RequestHandlerClass = Graded
    views = [view(f"step {i}") for i in range(10)]
    verdicts = score_all(judge(server, concurrency=4, timeout=5.0), views)
    assert [v.score for v in verdicts] == [i / 10 for i in range(10)]


def test_any_text_that_a_model_may_write_can_be_sent(server: Server) -> None:
    server.script = [good]
    odd = 'lone \ud800, null \x00, "quotes", ünïcödé, </json>'
    assert not judge(server).score(view(odd)).failed
    shown = json.loads(json.loads(server.bodies[0])["messages"][1]["content"])
    assert shown["cot"].startswith(odd)


def test_a_fenced_reply_is_read() -> None:
    assert read('```json\n{"score": 1, "reason": "x"}\n```').score == 1.0
    with pytest.raises(ValueError, match="Invalid JSON"):
        read("```json")
