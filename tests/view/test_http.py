"""What the server answers, and what it refuses."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest
from starlette.testclient import TestClient

from glasshouse.cli.app import main
from glasshouse.view.app import ANSWERS


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


def test_the_command_prints_its_address_opens_a_browser_and_stops(
    gallery: Path, tmp_path: Path
) -> None:
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.tmp && mv {opened}.tmp {opened}\n')
    browser.chmod(0o755)
    command = [
        sys.executable, "-m", "glasshouse", "view", str(gallery / "plain"), str(gallery / "pair"), "--open",
        "--port", "0",
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "BROWSER": f"{browser} %s"}
    ) as process:
        assert process.stdout is not None
        try:
            printed = process.stdout.readline()
            match = re.fullmatch(r"2 runs: (http://127.0.0.1:\d+/)\n", printed)
            assert match, printed
            with urlopen(f"{match[1]}api/runs", timeout=30) as answer:
                assert len(json.load(answer)["runs"]) == 2
            while not opened.exists():
                time.sleep(0.05)
            assert opened.read_text().strip() == match[1]
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
