"""Run the server: choose a port, print the address, and stop on Ctrl-C."""

from __future__ import annotations

import contextlib
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from glasshouse.errors import RunError, install_command
from glasshouse.files import check_output_folder
from glasshouse.view.discovery import check_roots
from glasshouse.view.library import Library

DEFAULT_PORT = 8420


def serve(
    paths: Sequence[Path],
    *,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    token: str = "",
    allow_hosts: Sequence[str] = (),
    cache: Path | None = None,
    open_browser: bool = False,
) -> None:
    """Serve these folders until interrupted.

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
    from glasshouse.view.rollout_index import default_cache

    check_roots(paths)
    if cache:
        check_output_folder("--cache", cache)
    if not is_loopback(host) and not token:
        token = secrets.token_urlsafe(24)
    library = Library(paths, cache or default_cache())
    listener = bind_socket(host, port)
    bound = listener.getsockname()[1]
    names = allowed_host_names(host, [*allow_hosts, *([socket.gethostname()] if token else [])])
    app = make_app(library, hosts=names, token=token)
    shown = "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{bound}/" + (f"?token={token}" if token else "")
    count = len(library.catalog.runs)
    print(f"{count} run{'s' * (count != 1)}: {address}", flush=True)
    if not count:
        print(
            "No run is in these folders yet. The page shows runs as soon as they start.", flush=True
        )
    if token:
        print(
            "Anyone with this address can read these runs; the connection is not encrypted.",
            flush=True,
        )
    if open_browser:
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, date_header=False,
        timeout_graceful_shutdown=1, lifespan="on",
    )  # fmt: skip
    server = uvicorn.Server(config)
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
    print("stopped", file=sys.stderr)


def bind_socket(host: str, port: int) -> socket.socket:
    """Listen on the port, or on a free one if the default is taken."""
    if not 0 <= port <= 65_535:
        raise RunError(f"--port {port} is not a port. Choose one from 1 to 65535, or 0 for any.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    candidates = [port, 0] if port == DEFAULT_PORT else [port]
    for candidate in candidates:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, candidate))
            listener.listen(128)  # a browser that opens the printed address at once must wait
            return listener
        except (TypeError, UnicodeError):
            listener.close()
            raise RunError(f"--host {host} is not an address or a name of this machine.") from None
        except socket.gaierror as error:
            listener.close()
            raise RunError(f"--host {host} cannot be used: {error.strerror}.") from None
        except OSError as error:
            listener.close()
            if candidate == candidates[-1]:
                raise RunError(
                    f"--host {host} --port {candidate} cannot be used: {error.strerror}. "
                    "Choose another port with --port, or 0 for any."
                ) from None
    raise AssertionError("unreachable")
