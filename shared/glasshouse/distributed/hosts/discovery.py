"""Discovery: the first port of a worker's range tells a controller where the worker listens.

TCP connections outlive a cut link: old ones block for minutes on either side, and a worker that was
lost can only be reached at another port, under another identity. A controller that shows a
certificate of the same CA sends the ports at which it lost the worker, and gets a new one.

    controller ── {"avoid": [26601]} ──► discovery port 26600   one line of JSON each way, over TLS
    controller ◄── {"port": 26602} ────                         the worker was restarted there

Each client has its own thread and one deadline, so a slow client delays neither another client nor
the process that supervises the worker. That process takes complete requests from a queue.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

from glasshouse.distributed.hosts.address import Address
from glasshouse.distributed.hosts.security import CA, CERTIFICATE, KEY
from glasshouse.errors import HostError

CONNECT_TIMEOUT = 2.0
CLIENT_TIMEOUT = 5.0
"""Seconds that a client has in total for the TLS handshake and its request."""
RESTART_TIMEOUT = 60.0
"""Seconds that a worker may take to restart."""
MAX_LINE = 4096
MAX_CONNECTIONS = 256
"""Open connections. One more closes the oldest that has not sent its request yet."""
BACKLOG = 512
ACCEPT_POLL = 0.5


class PortRequest(NamedTuple):
    """A valid request that waits for its answer."""

    avoid: list[int]
    port: Future[int]


class DiscoveryServer:
    """The worker's side: accepts clients in the background until it is closed.

    Example: `DiscoveryServer("10.0.0.2", 26600, folder).serve_one(0.5, lambda avoid: 26601)`
    """

    def __init__(self, host: str, port: int, folder: Path) -> None:
        try:
            self.socket = listen_at(host, port)
        except OSError as error:
            raise HostError(
                f"A worker cannot listen at {host}:{port}: {error}. The host must be an address of "
                "this machine, and the port free."
            ) from None
        self.context = _tls_context(ssl.PROTOCOL_TLS_SERVER, folder)
        self.requests: queue.SimpleQueue[PortRequest] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.connections: dict[socket.socket, bool] = {}
        """Open connections, oldest first; True once the request has been read."""
        self.closed = False
        self.socket.settimeout(ACCEPT_POLL)
        threading.Thread(target=self._accept_clients, name="discovery", daemon=True).start()

    def serve_one(self, timeout: float, choose_port: Callable[[Collection[int]], int]) -> None:
        """Wait for one valid request of an authenticated client and answer it.

        `choose_port` runs in the calling thread: a worker that it starts ends with that thread.
        """
        try:
            request = self.requests.get(timeout=timeout)
        except queue.Empty:
            return
        try:
            request.port.set_result(choose_port(request.avoid))
        finally:
            request.port.cancel()  # has no effect once there is a result

    def close(self) -> None:
        self.closed = True
        self.socket.close()
        with self.lock:
            for client in self.connections:
                _shut_down(client)

    def _accept_clients(self) -> None:
        while not self.closed:
            try:
                client, _ = self.socket.accept()
            except TimeoutError:
                continue
            except OSError:  # closed, or no file descriptor is left
                self._drop_oldest()
                time.sleep(0.05)
                continue
            try:
                client = self.context.wrap_socket(
                    client, server_side=True, do_handshake_on_connect=False
                )
                with self.lock:
                    is_full = len(self.connections) >= MAX_CONNECTIONS
                if is_full and not self._drop_oldest():
                    client.close()
                    continue
                with self.lock:
                    self.connections[client] = False
                threading.Thread(target=self._serve_client, args=(client,), daemon=True).start()
            except (OSError, ValueError, RuntimeError):  # already gone, or no thread can start
                with self.lock:
                    self.connections.pop(client, None)
                client.close()

    def _drop_oldest(self) -> bool:
        """End the oldest connection that has not sent its request; return whether there was one."""
        with self.lock:
            oldest = next(
                (c for c, has_request in self.connections.items() if not has_request), None
            )
            if oldest is None:
                return False
            self.connections.pop(oldest)
            _shut_down(oldest)  # its thread closes it
            return True

    def _serve_client(self, client: socket.socket) -> None:
        """Serve one client; drop unauthenticated or malformed requests without an answer."""
        # Whatever a client sends must end no more than its own connection.
        with contextlib.suppress(Exception):
            deadline = time.monotonic() + CLIENT_TIMEOUT
            if isinstance(client, ssl.SSLSocket):
                _handshake(client, deadline)
            request = PortRequest(parse_request(_read_line(client, deadline)), Future())
            with self.lock:
                if client not in self.connections:
                    return
                self.connections[client] = True
            self.requests.put(request)
            port = request.port.result(RESTART_TIMEOUT)
            client.settimeout(CLIENT_TIMEOUT)
            client.sendall(json.dumps({"port": port}).encode() + b"\n")
        with self.lock:  # so that no other thread shuts down a descriptor that is used again
            self.connections.pop(client, None)
            client.close()


def listen_at(host: str, port: int) -> socket.socket:
    """Return a socket that listens at a host name or IP."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


def request_worker_port(address: Address, folder: Path, avoid: Collection[int] = ()) -> int:
    """Ask a worker for its port, other than the ports in `avoid`. The controller's side."""
    try:
        with socket.create_connection((address.ip, address.first), CONNECT_TIMEOUT) as plain:
            context = _tls_context(ssl.PROTOCOL_TLS_CLIENT, folder)
            with context.wrap_socket(plain, server_hostname=address.ip) as secured:
                return _request(secured, avoid)
    except ssl.SSLCertVerificationError as error:
        raise HostError(
            f"The worker at {address} is not trusted: {error.verify_message.rstrip('.')}. Its "
            f"certificate must name {address.host} and be signed by {folder / CA}."
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


def parse_request(line: bytes) -> list[int]:
    """Return the ports to avoid; raise `ValueError` for anything but {"avoid": [port, …]}."""
    try:
        request = json.loads(line)
    except RecursionError:
        raise ValueError("the request is nested too deeply") from None
    avoid = request.get("avoid") if isinstance(request, dict) else None
    if not isinstance(avoid, list) or not all(
        type(port) is int and 0 < port <= 65535 for port in avoid
    ):
        raise ValueError('the request is not {"avoid": [port, …]}')
    return avoid


def _handshake(client: ssl.SSLSocket, deadline: float) -> None:
    """Do the TLS handshake; on failure, make sure that the client receives the alert.

    Closing at once would reset the connection, and the client could lose the alert.
    """
    try:
        _set_deadline(client, deadline)
        client.do_handshake()  # the timeout limits the whole handshake, not each read
    except ssl.SSLError:
        client.shutdown(socket.SHUT_WR)
        deadline = min(deadline, time.monotonic() + 1.0)
        while _set_deadline(client, deadline) and client.recv(MAX_LINE):
            pass
        raise


def _request(server: socket.socket, avoid: Collection[int]) -> int:
    server.settimeout(CONNECT_TIMEOUT)
    server.sendall(json.dumps({"avoid": list(avoid)}).encode() + b"\n")
    return int(json.loads(_read_line(server, time.monotonic() + RESTART_TIMEOUT))["port"])


def _read_line(connection: socket.socket, deadline: float) -> bytes:
    """Read one line of at most `MAX_LINE` bytes before the deadline."""
    line = b""
    while not line.endswith(b"\n"):
        _set_deadline(connection, deadline)
        part = connection.recv(MAX_LINE)
        if not part or len(line) + len(part) > MAX_LINE:
            raise ValueError("its answer is not one line of JSON")
        line += part
    return line


def _set_deadline(connection: socket.socket, deadline: float) -> bool:
    """Let the next operation take until the deadline; raise `TimeoutError` if it has passed."""
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError("the deadline has passed")
    connection.settimeout(remaining)
    return True


def _shut_down(client: socket.socket) -> None:
    """Wake the thread that reads from a connection; the thread closes it."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(client, socket.SHUT_RDWR)  # SSLSocket's own would drop its TLS state
