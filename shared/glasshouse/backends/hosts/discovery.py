"""Discovery: the first port of a worker's range tells a controller where the worker listens.

TCP connections outlive a cut link: old ones block for minutes on either side, and a worker that was
lost can only be reached at another port, under another identity. A controller that shows a
certificate of the same CA sends the ports at which it lost the worker, and gets a new one.

    controller ── {"avoid": [26601]} ──► discovery port 26600   one line of JSON each way, over TLS
    controller ◄── {"port": 26602} ────                         the worker was restarted there
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

CONNECT_TIMEOUT = 2.0
CLIENT_TIMEOUT = 5.0
"""Seconds that a connected client has for the TLS handshake and its request."""
RESTART_TIMEOUT = 60.0
"""Seconds that a worker may take to restart."""
MAX_LINE = 4096


class DiscoveryServer:
    """The worker's side.

    Example: `DiscoveryServer("10.0.0.2", 26600, folder).serve_one(0.5, lambda avoid: 26601)`
    """

    def __init__(self, host: str, port: int, folder: Path | None) -> None:
        try:
            self.socket = listen_at(host, port)
        except OSError as error:
            raise HostError(
                f"A worker cannot listen at {host}:{port}: {error}. The host must be an address of "
                "this machine, and the port free."
            ) from None
        self.context = _tls_context(ssl.PROTOCOL_TLS_SERVER, folder) if folder else None

    def serve_one(self, timeout: float, choose_port: Callable[[Collection[int]], int]) -> None:
        """Wait for one client; drop unauthenticated or malformed requests without an answer."""
        self.socket.settimeout(timeout)
        try:
            plain, _ = self.socket.accept()
        except TimeoutError:
            return
        with plain:
            plain.settimeout(CLIENT_TIMEOUT)
            try:
                if self.context is None:
                    _answer(plain, choose_port)
                else:
                    with self.context.wrap_socket(
                        plain, server_side=True, do_handshake_on_connect=False
                    ) as secured:
                        _handshake(secured)
                        _answer(secured, choose_port)
            except (OSError, ValueError, KeyError, TypeError):
                return

    def close(self) -> None:
        self.socket.close()


def listen_at(host: str, port: int) -> socket.socket:
    """Return a socket that listens at a host name or IP."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family)


def request_worker_port(address: Address, folder: Path | None, avoid: Collection[int] = ()) -> int:
    """Ask a worker for its port, other than the ports in `avoid`. The controller's side."""
    try:
        with socket.create_connection((address.ip, address.first), CONNECT_TIMEOUT) as plain:
            if folder is None:
                return _request(plain, avoid)
            context = _tls_context(ssl.PROTOCOL_TLS_CLIENT, folder)
            with context.wrap_socket(plain, server_hostname=address.ip) as secured:
                return _request(secured, avoid)
    except ssl.SSLCertVerificationError as error:
        raise HostError(
            f"The worker at {address} is not trusted: {error.verify_message.rstrip('.')}. Its "
            f"certificate must name {address.host} and be signed by {folder and folder / CA}."
        ) from None
    except ssl.SSLError as error:
        raise HostError(
            f"The worker at {address} refused this host's certificate ({error.reason or error}). Both "
            f"must be signed by the same CA; the one in {folder} is from another CA or has expired."
        ) from None
    except (ValueError, KeyError) as error:
        raise HostError(
            f"The program that listens at {address} is not a worker: {error}."
        ) from None


def validate_certificate_dir(folder: Path) -> None:
    """Check that certificate and key match; Monarch would fail with a stack trace."""
    _tls_context(ssl.PROTOCOL_TLS_SERVER, folder)


def _tls_context(side: int, folder: Path) -> ssl.SSLContext:
    """Return a context in which both sides must show a certificate of the folder's CA."""
    try:
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(folder / CA)
        context.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    except (ssl.SSLError, OSError) as error:
        raise HostError(f"The certificates in {folder} cannot be used: {error}.") from None
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _handshake(client: ssl.SSLSocket) -> None:
    """Do the TLS handshake; on failure, make sure that the client receives the alert.

    Closing at once would reset the connection, and the client could lose the alert.
    """
    try:
        client.do_handshake()
    except ssl.SSLError:
        client.shutdown(socket.SHUT_WR)
        client.settimeout(1.0)
        while client.recv(MAX_LINE):
            pass
        raise


def _answer(client: socket.socket, choose_port: Callable[[Collection[int]], int]) -> None:
    avoid = [int(port) for port in json.loads(_read_line(client))["avoid"]]
    client.sendall(json.dumps({"port": choose_port(avoid)}).encode() + b"\n")


def _request(server: socket.socket, avoid: Collection[int]) -> int:
    server.settimeout(RESTART_TIMEOUT)
    server.sendall(json.dumps({"avoid": list(avoid)}).encode() + b"\n")
    return int(json.loads(_read_line(server))["port"])


def _read_line(connection: socket.socket) -> bytes:
    """Read one line of at most `MAX_LINE` bytes."""
    line = b""
    while not line.endswith(b"\n"):
        part = connection.recv(MAX_LINE)
        if not part or len(line) + len(part) > MAX_LINE:
            raise ValueError("its answer is not one line of JSON")
        line += part
    return line
