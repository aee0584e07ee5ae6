"""The door of a worker: a port at which one asks where the worker is.

Connections outlive links: after a cut, the old ones wait for minutes, on either side, and a worker
that came back is reached only at another port and under another identity. So a worker with a range
of ports keeps the first for a door. Whoever shows a certificate of the same authority says at which
ports it has lost the worker, and is told one at which it is new.

    controller ── {"avoid": [26601]} ──► door 26600      one line of JSON each way, over TLS
    controller ◄── {"port": 26602} ────                  the worker has started anew there
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Callable, Collection
from pathlib import Path

from glasshouse.backends.hosts.address import Address
from glasshouse.backends.hosts.security import CA, CERTIFICATE, KEY
from glasshouse.errors import HostError

REACHED, PATIENCE = 2.0, 5.0
"""Seconds to get to the door; and for one who is there, to show a certificate and ask."""
STARTING = 60.0
"""Seconds a worker may take to start anew."""
LONGEST = 4096


class Door:
    """The worker's side.

    Example: `Door("10.0.0.2", 26600, folder).answer(0.5, lambda avoid: 26601)`
    """

    def __init__(self, host: str, port: int, folder: Path | None) -> None:
        try:
            self.socket = listener(host, port)
        except OSError as error:
            raise HostError(
                f"A worker cannot listen at {host}:{port}: {error}. The host must be an address of "
                "this machine, and the port free."
            ) from None
        self.context = _context(ssl.PROTOCOL_TLS_SERVER, folder) if folder else None

    def answer(self, wait: float, where: Callable[[Collection[int]], int]) -> None:
        """Wait a little for somebody; strangers and stammerers get no answer."""
        self.socket.settimeout(wait)
        try:
            plain, _ = self.socket.accept()
        except TimeoutError:
            return
        with plain:
            plain.settimeout(PATIENCE)
            try:
                if self.context is None:
                    _reply(plain, where)
                else:
                    with self.context.wrap_socket(
                        plain, server_side=True, do_handshake_on_connect=False
                    ) as secured:
                        _greet(secured)
                        _reply(secured, where)
            except (OSError, ValueError, KeyError, TypeError):
                return

    def close(self) -> None:
        self.socket.close()


def listener(host: str, port: int) -> socket.socket:
    """A socket that listens there, by name or by IP."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family)


def ask(address: Address, folder: Path | None, avoid: Collection[int] = ()) -> int:
    """At which port the worker is; `avoid`: where it has been lost. The controller's side."""
    try:
        with socket.create_connection((address.ip, address.first), REACHED) as plain:
            if folder is None:
                return _request(plain, avoid)
            context = _context(ssl.PROTOCOL_TLS_CLIENT, folder)
            with context.wrap_socket(plain, server_hostname=address.ip) as secured:
                return _request(secured, avoid)
    except ssl.SSLCertVerificationError as error:
        raise HostError(
            f"The worker at {address} is not trusted: {error.verify_message.rstrip('.')}. Its certificate must "
            f"name {address.host} and be of the authority in {folder and folder / CA}."
        ) from None
    except ssl.SSLError as error:
        raise HostError(
            f"The worker at {address} refused this host's certificate ({error.reason or error}). Both "
            f"must be of the same authority: {folder} is from another, or has run out."
        ) from None
    except (ValueError, KeyError) as error:
        raise HostError(f"What listens at {address} is no worker: {error}.") from None


def check_folder(folder: Path) -> None:
    """Certificate and key belong together; Monarch would say so in a stack trace."""
    _context(ssl.PROTOCOL_TLS_SERVER, folder)


def _context(side: int, folder: Path) -> ssl.SSLContext:
    """Both sides show a certificate of the one authority."""
    try:
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(folder / CA)
        context.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    except (ssl.SSLError, OSError) as error:
        raise HostError(f"The certificates in {folder} cannot be used: {error}.") from None
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _greet(caller: ssl.SSLSocket) -> None:
    """Shake hands, or refuse so that it is heard: a hasty end would overtake the reason."""
    try:
        caller.do_handshake()
    except ssl.SSLError:
        caller.shutdown(socket.SHUT_WR)
        caller.settimeout(1.0)
        while caller.recv(LONGEST):
            pass
        raise


def _reply(caller: socket.socket, where: Callable[[Collection[int]], int]) -> None:
    avoid = [int(port) for port in json.loads(_line(caller))["avoid"]]
    caller.sendall(json.dumps({"port": where(avoid)}).encode() + b"\n")


def _request(worker: socket.socket, avoid: Collection[int]) -> int:
    worker.settimeout(STARTING)
    worker.sendall(json.dumps({"avoid": list(avoid)}).encode() + b"\n")
    return int(json.loads(_line(worker))["port"])


def _line(other: socket.socket) -> bytes:
    """Up to the end of the line, and not for ever."""
    line = b""
    while not line.endswith(b"\n"):
        part = other.recv(LONGEST)
        if not part or len(line) + len(part) > LONGEST:
            raise ValueError("it said nothing that makes sense")
        line += part
    return line
