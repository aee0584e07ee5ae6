"""Run the server: choose a port, print the address, and stop on Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glasshouse.errors import RunError, install_command
from glasshouse.tables import list_files
from glasshouse.terminal import count_noun
from glasshouse.view.library import Library

DEFAULT_PORT = 8420
REQUEST_SECONDS = 10
"""A client has so long for each request."""
MAX_CONNECTIONS = 200


def serve(
    paths: Sequence[Path],
    *,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    token: str = "",
    allow_hosts: Sequence[str] = (),
    open_browser: bool = False,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Serve these folders and files until interrupted; `options` are those of `RolloutFile`.

    Example: `serve([Path("runs")])`
    """
    try:
        import uvicorn

        from glasshouse.view.app import make_app
        from glasshouse.view.security import allowed_host_names, is_loopback
    except ImportError:
        raise RunError(
            f'glasshouse view needs the extra "view": {install_command("view")}'
        ) from None
    for path in paths:
        if not path.exists():
            raise RunError(
                f"{path} does not exist. Name runs, a folder with runs, or files of rollouts."
            )
        if path.is_file():
            list_files(path)  # raises if its name is of no known format
    if not is_loopback(host) and not token:
        token = secrets.token_urlsafe(24)
    library = Library(paths, options)
    runs = list(library.catalog.runs.values())
    for run in runs:
        if run.is_file:
            library.open_run(run.id)  # raises if the file cannot be read
    listener = bind_socket(host, port)
    names = allowed_host_names(host, [*allow_hosts, *([socket.gethostname()] if token else [])])
    app = make_app(library, hosts=names, token=token)
    shown = "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    query = f"?token={token}" if token else ""
    address = f"http://{shown}:{listener.getsockname()[1]}/{query}"
    files = sum(run.is_file for run in runs)
    found = [count_noun(len(runs) - files, "run")] if len(runs) > files or not files else []
    found += [count_noun(files, "source") + " of rollouts"] if files else []
    lines = [f"{', '.join(found)}: {address}"]
    if not runs:
        lines.append("No run is in these folders yet. The page shows runs as soon as they start.")
    if token:
        lines.append(
            "Anyone with this address can read these runs; the connection is not encrypted."
        )
    print("\n".join(lines), flush=True)
    if open_browser:
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    config = uvicorn.Config(
        app,
        http=make_protocol(),
        log_level="warning",
        timeout_graceful_shutdown=1,
        server_header=False,
        date_header=False,
    )
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
    print("stopped", file=sys.stderr)


def make_protocol() -> type[asyncio.Protocol]:
    """uvicorn's protocol with limits: it waits for a request without end, from any number of clients."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class LimitedProtocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.wait_for_request()
            if len(self.connections) > MAX_CONNECTIONS:
                transport.abort()

        def on_response_complete(self) -> None:
            self.wait_for_request()
            super().on_response_complete()

        def wait_for_request(self) -> None:
            self.loop.call_later(REQUEST_SECONDS, self.close_unless_asked, self.cycle)

        def close_unless_asked(self, answered: object) -> None:
            if self.cycle is answered:  # no further request is complete
                self.transport.abort()

    return LimitedProtocol


def bind_socket(host: str, port: int) -> socket.socket:
    """Listen on the port, or on a free one if the default is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        try:
            listener.bind((host, port))
        except OSError:
            if port != DEFAULT_PORT:
                raise
            listener.bind((host, 0))
        listener.listen(128)  # a browser that opens the printed address at once must wait
        return listener
    except (OSError, OverflowError, TypeError, UnicodeError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or "it is not an address of this machine"
        raise RunError(
            f"--host {host} --port {port} cannot be used: {reason}. Choose another host or port; port 0 is "
            "any that is free."
        ) from None
