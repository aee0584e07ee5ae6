"""Run the server: choose a port, print the address, and stop on Ctrl-C."""

from __future__ import annotations

import contextlib
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

HOST, DEFAULT_PORT = "127.0.0.1", 8420


def serve(
    paths: Sequence[Path],
    *,
    port: int = DEFAULT_PORT,
    open_browser: bool = False,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Serve these folders and files to this machine until interrupted; `options` are those of `RolloutFile`.

    Example: `serve([Path("runs")])`
    """
    try:
        import uvicorn

        from glasshouse.view.app import make_app
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
    library = Library(paths, options)
    runs = list(library.catalog.runs.values())
    for run in runs:
        if run.is_file:
            library.open_run(run.id)  # raises if the file cannot be read
    listener = bind_socket(port)
    address = f"http://{HOST}:{listener.getsockname()[1]}/"
    files = sum(run.is_file for run in runs)
    found = [count_noun(len(runs) - files, "run")] if len(runs) > files or not files else []
    found += [count_noun(files, "source") + " of rollouts"] if files else []
    lines = [f"{', '.join(found)}: {address}"]
    if not runs:
        lines.append("No run is in these folders yet. The page shows runs as soon as they start.")
    print("\n".join(lines), flush=True)
    if open_browser:
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    config = uvicorn.Config(
        make_app(library),
        log_level="warning",
        timeout_graceful_shutdown=1,
        server_header=False,
        date_header=False,
    )
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
    print("stopped", file=sys.stderr)


def bind_socket(port: int) -> socket.socket:
    """Listen on the port, or on a free one if the default is taken."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        try:
            listener.bind((HOST, port))
        except OSError:
            if port != DEFAULT_PORT:
                raise
            listener.bind((HOST, 0))
        listener.listen(128)  # a browser that opens the printed address at once must wait
        return listener
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or "it is not between 0 and 65535"
        raise RunError(
            f"--port {port} cannot be used: {reason}. Choose another; 0 is any that is free."
        ) from None
