"""A real browser, a server that records requests, and text that tries to break out of a page."""

from __future__ import annotations

import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)


class RequestRecorder(ThreadingHTTPServer):
    """Records the path of every request and answers 404."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                recorder.paths.append(self.path)
                self.send_error(404)

            def log_message(self, *_: object) -> None: ...

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


def hostile_text(url: str) -> str:
    return (
        f'</pre><script>console.error("executed");fetch("{url}/script")</script>'
        f'<img src="{url}/image" onerror="console.error(1)"><style>@import "{url}/style";</style>'
        f"<!-- \"'>&amp; {{{{ 7*7 }}}} \x00\x1b[31m\u202e 7+7=15\n[ANSWER] 7"
    )


def open_in_browser(page: Path, folder: Path) -> tuple[str, list[str]]:
    """The DOM after the browser has rendered the page, and the lines of its console."""
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--enable-logging=stderr",
        f"--user-data-dir={folder / 'browser'}", "--virtual-time-budget=2000", "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
