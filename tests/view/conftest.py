"""One folder of runs, one server and one browser for all tests of the page."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.testclient import TestClient
from tests.view.browser import CHROMIUM
from tests.view.gallery import write_gallery

from glasshouse.view.app import make_app
from glasshouse.view.library import Library
from glasshouse.view.server import bind_socket

ADDRESS = "http://127.0.0.1:8420"


@pytest.fixture(scope="session")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Runs of every kind (gallery.py)."""
    with write_gallery(tmp_path_factory.mktemp("gallery")) as folder:
        yield folder


@pytest.fixture(scope="session")
def library(gallery: Path, tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library([gallery])


@pytest.fixture(scope="session")
def client(library: Library) -> TestClient:
    app = make_app(library)
    return TestClient(app, base_url=ADDRESS)


class Watched:
    """A page that records its requests and what goes wrong in it."""

    def __init__(self, browser: Any, address: str, width: int = 1280) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 800})
        self.page = self.context.new_page()
        self.address, self.problems, self.requests = address, list[str](), list[str]()
        self.page.on("console", lambda message: self._log(message.type, message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.set_default_timeout(60_000)

    def _log(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.problems.append(text)

    def close(self) -> None:
        """Nothing went wrong in the page, and it asked nobody but its own server or file."""
        self.context.close()
        allowed = (self.address, "data:", "blob:")
        assert not self.problems
        assert not [url for url in self.requests if not url.startswith(allowed)]

    def open(self, state: str) -> Any:
        self.page.goto(f"{self.address}{state}")
        self.page.locator("h1").first.wait_for()
        return self.page


@contextmanager
def serve(library: Library) -> Iterator[str]:
    """A real server in a thread; yields its address."""
    listener = bind_socket(0)
    app = make_app(library)
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM:
        pytest.skip("no chromium is installed (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def server(gallery: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve(Library([gallery])) as url:
        yield url


@pytest.fixture
def address(server: str) -> str:
    """What `watched` opens; the tests of the report open a file instead."""
    return server


@pytest.fixture
def watched(browser: Any, address: str) -> Iterator[Watched]:
    watched = Watched(browser, address)
    yield watched
    watched.close()
