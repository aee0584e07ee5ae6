"""What keeps a page of local files local: the check of the host, and response headers.

The server listens on this machine only; from another one it is reached by an SSH tunnel. A page in the same browser
could still reach it through a name that resolves to 127.0.0.1 (DNS rebinding). The server therefore answers only
requests whose `Host` names this machine.

The one request that writes needs more: the token of the page, which only a page of this server can read, in a header
that no form can send, and an `Origin` that is the server's own.
"""

from __future__ import annotations

import hmac
import secrets

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

WRITE_PATH = "/api/label"
PAGE_TOKEN_HEADER = "x-glasshouse-page"
HOST_NAMES = ("localhost", "127.0.0.1")
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}


class Guard:
    """Checks every request before the application sees it, and adds headers to every response.

    Example: `Guard(app).page_token`
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.page_token = secrets.token_urlsafe(24)
        """What a page that may write sends; `/api/info` gives it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self.check(scope)
        await (refusal or self.app)(scope, receive, send_with_headers)

    def check(self, scope: Scope) -> Response | None:
        """The answer to a request that may not pass; None if it may."""
        request = HTTPConnection(scope)
        host, _, port = request.headers.get("host", "").lower().rpartition(":")
        if (host if port.isdecimal() else f"{host}:{port}".removeprefix(":")) not in HOST_NAMES:
            text = (
                "Open the address that `glasshouse view` printed: no other host name is answered.\n"
            )
            return PlainTextResponse(text, status_code=421)
        is_write = scope["method"] == "POST" and scope["path"] == WRITE_PATH
        if scope["method"] not in ("GET", "HEAD") and not is_write:
            return PlainTextResponse("This server only reads.\n", status_code=405)
        if is_write and not self._is_own_page(request):
            text = "Only the page of this server may write a label: load it again.\n"
            return PlainTextResponse(text, status_code=403)
        return None

    def _is_own_page(self, request: HTTPConnection) -> bool:
        headers = request.headers
        origin = headers.get("origin", "").lower().partition("://")[2]
        return (
            origin == headers.get("host", "").lower()
            and headers.get("sec-fetch-site", "same-origin") == "same-origin"
            and hmac.compare_digest(
                headers.get(PAGE_TOKEN_HEADER, "").encode(), self.page_token.encode()
            )
        )
