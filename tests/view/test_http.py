"""What the server answers, and what it refuses."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import uvicorn
from starlette.testclient import TestClient

from glasshouse.cli.app import main
from glasshouse.view import server
from glasshouse.view.app import ANSWERS, make_app
from glasshouse.view.library import Library
from glasshouse.view.security import COOKIE, allowed_host_names


@pytest.mark.parametrize(
    "path",
    [
        "/../config.yaml", "/..%2f..%2fetc/passwd", "/app.js/../../x", "/api/run?run=../plain",
        "/api/run?run=/etc", "/api/run?run=plain/../plain", "/api/study?study=../..",
        "/api/rollouts?run=plain&ref=../../x.1.1", "/api/rollouts?run=plain&ref=train.1.99",
        "/api/rollouts?run=pair/seed-1/../../plain", "/assets/../app.py", "/%2e%2e/%2e%2e/etc/passwd",
    ],
)  # fmt: skip
def test_a_url_cannot_leave_the_served_folders(client: TestClient, path: str) -> None:
    response = client.get(path)
    if response.status_code == 200:  # a study or a rollout that does not exist
        answer = response.json()
        assert answer.get("rows") == [] or "There is no study" in answer["problem"]
    else:
        assert response.status_code == 404
    assert "root:" not in response.text


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8420", "127.0.0.1.evil.example", ""]
)
def test_a_foreign_host_is_refused(client: TestClient, host: str) -> None:
    assert client.get("/api/runs", headers={"host": host}).status_code == 421
    assert client.get("/", headers={"host": "localhost:1234"}).status_code == 200


def test_no_answer_changes_a_file(client: TestClient, gallery: Path) -> None:
    def read_everything() -> dict[str, tuple[int, str]]:
        return {
            str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
            for path in gallery.rglob("*")
            if path.is_file()
        }

    before = read_everything()
    for name in ANSWERS:
        client.get(f"/api/{name}", params={"run": "plain"})
        assert client.post(f"/api/{name}").status_code == 405
    assert read_everything() == before


def test_headers(client: TestClient) -> None:
    for path in ("/", "/app.js", "/api/runs", "/nothing"):
        policy = client.get(path).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert client.get(path).headers["x-content-type-options"] == "nosniff"


def test_token(library: Library) -> None:
    app = make_app(library, hosts=allowed_host_names("0.0.0.0", ["box"]), token="s3cret")
    client = TestClient(app, base_url="http://box:8420", follow_redirects=False)
    for path in ("/", "/app.js", "/api/runs", "/api/events"):
        assert client.get(path).status_code == 401
    assert client.get("/?token=wrong").status_code == 401
    assert client.get("/api/runs", headers={"authorization": "Bearer s3cret"}).status_code == 200
    assert client.get("/api/runs", headers={"cookie": "a@b=1"}).status_code == 401
    welcome = client.get("//evil.example/x?token=s3cret")
    assert (welcome.status_code, welcome.headers["location"]) == (303, "/")
    cookie = welcome.headers["set-cookie"]
    assert COOKIE in cookie
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert client.get("/api/runs").status_code == 200


def test_wrong_filters_name_the_parameter(client: TestClient) -> None:
    for query, word in (("first=x", "first"), ("sort=tga", "sort"), ("textt=1", "text")):
        response = client.get(f"/api/rollouts?run=plain&{query}")
        assert response.status_code == 404
        assert word in response.json()["error"]


def test_user_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(tmp_path / "nothing")]) == 2
    assert "does not exist" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["view", str(tmp_path / "file")]) == 2
    assert main(["view", str(tmp_path), "--port", "70000"]) == 2
    for host in ("999.1.1.1", "a\x1b\u202e", "x" * 300):
        assert main(["view", str(tmp_path), "--host", host, "--port", "0"]) == 2


def test_the_command_prints_an_address_with_a_token_opens_a_browser_and_stops(
    gallery: Path, tmp_path: Path
) -> None:
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.tmp && mv {opened}.tmp {opened}\n')
    browser.chmod(0o755)
    command = [
        sys.executable, "-m", "glasshouse", "view", str(gallery / "plain"), str(gallery / "pair"), "--open",
        "--host", "0.0.0.0", "--port", "0",
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "BROWSER": f"{browser} %s"}
    ) as process:
        assert process.stdout is not None
        try:
            printed = process.stdout.readline()
            match = re.fullmatch(r"2 runs: (http://localhost:\d+/)\?token=([\w-]{20,})\n", printed)
            assert match, printed
            address, token = match.groups()
            assert "not encrypted" in process.stdout.readline()
            with pytest.raises(HTTPError, match="401"):
                urlopen(f"{address}api/runs", timeout=30)
            with pytest.raises(HTTPError, match="401"):
                urlopen(f"{address}api/runs?token=wrong", timeout=30)
            while not opened.exists():
                time.sleep(0.05)
            assert opened.read_text().strip() == f"{address}?token={token}"
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_connections_without_a_request_are_closed(
    gallery: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = server.bind_socket("127.0.0.1", 0)
    started: list[uvicorn.Server] = []
    init = uvicorn.Server.__init__
    for name, value in (("REQUEST_SECONDS", 1), ("MAX_CONNECTIONS", 3)):
        monkeypatch.setattr(server, name, value)
    monkeypatch.setattr(server, "bind_socket", lambda host, port: listener)
    monkeypatch.setattr(
        uvicorn.Server,
        "__init__",
        lambda self, config: (started.append(self), init(self, config))[1],
    )
    thread = threading.Thread(target=server.serve, args=([gallery / "plain"],))
    thread.start()
    try:
        clients = [socket.create_connection(listener.getsockname(), timeout=60) for _ in range(3)]
        clients[1].sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        clients[2].sendall(b"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /")
        answer = clients[2].recv(100_000)
        assert b"200 OK" in answer
        one_too_many = socket.create_connection(listener.getsockname(), timeout=60)
        for client in (one_too_many, *clients):
            with contextlib.suppress(ConnectionResetError):
                while client.recv(100_000):  # until the server closes it
                    pass
    finally:
        started[0].should_exit = True
        thread.join()
