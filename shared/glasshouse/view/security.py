"""What keeps a page of local files local: host check, token, and response headers.

A page in the same browser could reach a server on loopback through a name that resolves to
127.0.0.1 (DNS rebinding). The server therefore answers only requests whose `Host` names an address
that it listens on. On any other address than loopback a token is required as well.

The one request that writes needs more: the token of the page, which only a page of this server can read, in a header
that no form can send, and an `Origin` that is the server's own.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Collection

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "glasshouse_view_token"
WRITE_PATH = "/api/label"
PAGE_TOKEN_HEADER = "x-glasshouse-page"
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
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


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def allowed_host_names(host: str, extra: Collection[str] = ()) -> frozenset[str]:
    """The names that a request's `Host` may have, without the port, in lower case."""
    names = {*LOOPBACK_NAMES, *(name.lower() for name in extra)}
    if host not in ("0.0.0.0", "::"):
        names.add(f"[{host}]" if ":" in host else host.lower())
    return frozenset(names)


class Guard:
    """Checks every request before the application sees it, and adds headers to every response.

    Example: `Guard(app, hosts=allowed_host_names("127.0.0.1"), token="")`
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str], token: str) -> None:
        self.app, self.hosts, self.token = app, hosts, token
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
        if (host if port.isdecimal() else f"{host}:{port}".removeprefix(":")) not in self.hosts:
            text = (
                "This server does not answer under that host name. Open the address that "
                "`glasshouse view` printed, or start it with --allow-host NAME.\n"
            )
            return PlainTextResponse(text, status_code=421)
        is_write = scope["method"] == "POST" and scope["path"] == WRITE_PATH
        if scope["method"] not in ("GET", "HEAD") and not is_write:
            return PlainTextResponse("This server only reads.\n", status_code=405)
        if is_write and not self._is_own_page(request):
            text = "Only the page of this server may write a label: load it again.\n"
            return PlainTextResponse(text, status_code=403)
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if (
            not self.token
            or _is_same(request.cookies.get(COOKIE, ""), self.token)
            or _is_same(bearer, self.token)
        ):
            return None
        if _is_same(request.query_params.get("token", ""), self.token):
            response = RedirectResponse("/", status_code=303)
            response.set_cookie(COOKIE, self.token, httponly=True, samesite="strict", path="/")
            return response
        text = (
            "A token is required: open the address with ?token=… that `glasshouse view` printed.\n"
        )
        return PlainTextResponse(text, status_code=401)

    def _is_own_page(self, request: HTTPConnection) -> bool:
        headers = request.headers
        origin = headers.get("origin", "").lower().partition("://")[2]
        return (
            origin == headers.get("host", "").lower()
            and headers.get("sec-fetch-site", "same-origin") == "same-origin"
            and _is_same(headers.get(PAGE_TOKEN_HEADER, ""), self.page_token)
        )


def _is_same(value: str, token: str) -> bool:
    return hmac.compare_digest(value.encode(), token.encode())
