"""Hosts: addresses, certificates, refusals; and real workers on machines in network namespaces."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glasshouse import config
from glasshouse.backends.hosts import Hosts
from glasshouse.backends.hosts.address import Address, free_port, listening
from glasshouse.backends.hosts.certificates import make
from glasshouse.backends.hosts.discovery import Door, ask
from glasshouse.backends.hosts.security import DETECTION, WARNING, tls_environment
from glasshouse.cli import main
from glasshouse.config import HostsConfig
from glasshouse.errors import ConfigError, HostError, RunError

pytest.importorskip("monarch")
from proofs import hosts as proof
from proofs.network import Network, stop

pytestmark = pytest.mark.alone


@pytest.fixture(autouse=True)
def own_settings() -> Iterator[None]:
    """What a test tells Monarch is not for those after it."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
    if "monarch" in sys.modules:
        from monarch._rust_bindings.monarch_hyperactor.config import reload_config_from_env

        reload_config_from_env()


def hosts(*overrides: str) -> HostsConfig:
    return config.load([], [f"hosts.{o}" for o in overrides]).hosts


# --- addresses ---------------------------------------------------------------------------------


def test_addresses_are_read_and_written() -> None:
    address = Address.parse("tls://10.0.0.2:26600-26609")
    assert (address.scheme, address.ip, len(address.ports)) == ("tls", "10.0.0.2", 10)
    assert str(address) == "tls://10.0.0.2:26600-26609"
    assert str(address.at(26603)) == "tls://10.0.0.2:26603"
    assert Address.parse("tls://[fe80::1]:26600").ip == "fe80::1"


@pytest.mark.parametrize(
    "text",
    ["10.0.0.2", "tls://:1", "tls://a:0", "tls://a:2-1", "tls://a:70000", "http://a:1",
     "tls://a b:1", "tls://a:1@tls://b:1", ""],
)  # fmt: skip
def test_what_is_no_address_is_a_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match=r"address|ports"):
        Address.parse(text)


@given(first=st.integers(1, 60000), count=st.integers(1, 9), last=st.integers(0, 12))
def test_every_port_comes_once_and_the_last_one_last(first: int, count: int, last: int) -> None:
    address = Address("tls", "h", first, first + count - 1)
    order = list(address.after(first + last))
    assert sorted(order) == list(address.ports)
    if first + last in address.ports:
        assert order[-1] == first + last


def test_each_port_has_an_identity_of_its_own() -> None:
    address = Address.parse("tls://10.0.0.2:26600-26699")
    known = {address.at(port).identity() for port in address.ports}
    assert len(known) == 100
    assert address.at(26600).identity() == Address.parse("tls://10.0.0.2:26600").identity()


def test_listening_ports_are_found_among_closed_ones() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listening("127.0.0.1", range(port - 3, port + 1)) >= {port}
    assert port not in listening("127.0.0.1", [port])
    assert listening("no-such-host.invalid", [1]) == set()


# --- certificates ------------------------------------------------------------------------------


def test_certificates_are_private_verify_and_are_never_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "certificates"
    one, two = make(out, ["10.0.0.1", "node7.example.org"])
    for key in (out / "ca.key", one / "host.key", two / "host.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    names = ("-verify_ip", "10.0.0.1"), ("-verify_hostname", "node7.example.org")
    for folder, name in zip((one, two), names, strict=True):
        for purpose in ("sslserver", "sslclient"):
            verify = ["openssl", "verify", "-purpose", purpose, *name, "-CAfile", out / "ca.pem"]
            subprocess.run([*verify, folder / "host.pem"], check=True, stdout=subprocess.DEVNULL)
    before = (one / "host.pem").read_bytes(), (out / "ca.pem").read_bytes()
    with pytest.raises(HostError, match="exists already"):
        make(out, ["10.0.0.3", "10.0.0.1"])
    assert not (out / "10.0.0.3").exists()
    make(out, ["10.0.0.3"])  # the same authority signs one more
    assert ((one / "host.pem").read_bytes(), (out / "ca.pem").read_bytes()) == before
    assert (out / "10.0.0.3" / "ca.pem").read_bytes() == before[1]


@pytest.mark.parametrize("host", ["../escape", "a/b", "", "-x", "a..b", "x,DNS:y"])
def test_what_is_no_host_gets_no_certificate(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError):
        make(tmp_path / "certificates", [host])
    assert not list(tmp_path.iterdir())


def test_a_folder_that_misses_a_file_or_shows_its_key_is_refused(tmp_path: Path) -> None:
    (folder,) = make(tmp_path, ["10.0.0.1"])
    (folder / "host.key").chmod(0o644)
    with pytest.raises(HostError, match="chmod 600"):
        tls_environment(folder)
    (folder / "host.key").unlink()
    with pytest.raises(HostError, match=r"no host\.key"):
        tls_environment(folder)


def test_the_door_opens_for_its_own_authority_only(tmp_path: Path) -> None:
    """And what a stranger says is not even read."""
    (own,) = make(tmp_path / "own", ["127.0.0.1"])
    (other,) = make(tmp_path / "other", ["127.0.0.1"])
    shutil.copyfile(own / "ca.pem", other / "ca.pem")  # the stranger trusts us: the refusal is ours
    door = Door("127.0.0.1", 0, own)
    first = door.socket.getsockname()[1]
    address = Address("tls", "127.0.0.1", first, first + 9)
    asked: list[Collection[int]] = []

    def where(avoid: Collection[int]) -> int:
        asked.append(avoid)
        return first + 2

    def at_the_door(visit: Callable[[], object]) -> object:
        with ThreadPoolExecutor(1) as pool:
            visiting = pool.submit(visit)
            door.answer(5, where)
            return visiting.result()

    try:
        assert at_the_door(lambda: ask(address, own, [first + 1])) == first + 2
        assert asked == [[first + 1]]
        with pytest.raises(HostError, match="refused this host's certificate"):
            at_the_door(lambda: ask(address, other))
        with pytest.raises(OSError, match=r"no worker|reset"):
            at_the_door(lambda: ask(address, None))
        assert len(asked) == 1
    finally:
        door.close()


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["kind=addresses"], "hosts.addresses is empty"),
        (["kind=addresses", "addresses=[tcp://10.0.0.2:1]"], "asked for by name"),
        (["kind=addresses", "addresses=[tls://10.0.0.2:1]"], "asks for certificates"),
        (["kind=addresses", "addresses=[tls://10.0.0.2:1]", "security=plain"], "speaks tcp"),
        (["kind=addresses", "addresses=[tls://a:1,tls://a:2]"], "more than once"),
        (["kind=slurm"], "plain TCP"),
        (["kind=kubernetes"], "plain TCP"),
        (["kind=slurm", "security=plain"], "no sbatch"),
        (["kind=kubernetes", "security=plain"], "pip install kubernetes"),
    ],
)
def test_a_run_that_would_be_open_or_impossible_is_refused_with_a_sentence(
    overrides: list[str], sentence: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in (*DETECTION, "HYPERACTOR_MESH_ATTACH_CONFIG_TIMEOUT"):
        monkeypatch.setenv(name, "3s")  # put back after the test
    assert main(["hosts", "check", *[f"hosts.{o}" for o in overrides]]) == 2
    shown = capsys.readouterr().err
    assert sentence in shown
    assert (WARNING in shown) == ("security=plain" in overrides and "speaks tcp" not in shown)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--address", "tcp://127.0.0.1:26600"], "--plain"),
        (["--address", "tls://127.0.0.1:26600"], "--certificates DIR"),
        (["--address", "tls://127.0.0.1:26600", "--certificates", "/nowhere"], "no ca.pem"),
        (["--address", "127.0.0.1:26600"], "not an address"),
    ],
)
def test_a_worker_that_would_be_open_is_refused(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["hosts", "worker", *arguments]) == 2
    assert sentence in capsys.readouterr().err


# --- homes of generators ---------------------------------------------------------------------


class Street:
    """Hosts that come and go by a word; a mesh is a text."""

    names: tuple[str, ...] = ("a", "b")

    def __init__(self) -> None:
        self.gone: set[str] = set()
        self.attached = 0

    def attach(self, name: str) -> Any:
        if name in self.gone:
            raise HostError("nobody there")
        self.attached += 1
        return f"{name}{self.attached}"

    def release(self, name: str, mesh: Any) -> None: ...

    def forget(self, name: str) -> None: ...

    def close(self) -> None: ...


def test_a_lost_host_is_waited_for_and_its_other_generators_follow() -> None:
    from glasshouse.backends.hosts.multi_host import Homes

    street, told = Street(), list[str]()
    homes = Homes(Hosts(street), 60, lambda kind, **what: told.append(what["how"]))
    assert [homes(n).host for n in range(4)] == ["a1", "b2", "a1", "b2"]
    street.gone = {"b"}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(homes, 1)
        with pytest.raises(TimeoutError):
            waiting.result(0.3)
        assert homes(0).host == "a3"  # its own death is its host's alone
        street.gone = set()
        assert waiting.result(5).host == "b4"
    assert homes(3).host == "b4"  # not lost a second time
    assert told == ["lost", "lost", "back", "back"]
    homes.leave()
    street.gone = {"a"}
    with pytest.raises(RuntimeError, match="the run ended"):
        homes(0)


def test_a_run_without_any_host_ends_with_a_sentence() -> None:
    from glasshouse.backends.hosts.multi_host import Homes

    street = Street()
    homes = Homes(Hosts(street), 0, lambda kind, **what: None)
    homes(0)
    homes.hosts.lose("b")
    street.gone = {"a", "b"}
    with pytest.raises(RunError, match="Every host is lost"):
        homes(0)


# --- real workers ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_worker_ends_with_nothing_left(tmp_path: Path, how: signal.Signals) -> None:
    from glasshouse.backends.hosts.worker import session

    (folder,) = make(tmp_path / "certificates", ["127.0.0.1"])
    port = free_port("127.0.0.1")
    worker = subprocess.Popen(
        [sys.executable, "-m", "glasshouse", "hosts", "worker", "--certificates", str(folder),
         "--address", f"tls://127.0.0.1:{port}"],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
    )  # fmt: skip
    assert worker.stdout
    line = worker.stdout.readline()
    assert line.startswith("Ready"), line
    loop = int(line.split("process ")[1].rstrip(".\n"))
    worker.send_signal(how)
    assert worker.wait(15) == (-9 if how is signal.SIGKILL else 0)
    until = time.monotonic() + 5
    while session(loop) and time.monotonic() < until:
        time.sleep(0.05)
    assert not session(loop)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[proof.Scene]:
    """Four machines; workers on two of them."""
    why = Network.missing()
    if why:
        pytest.skip(why)
    with Network(4) as network:
        made = proof.Scene(network, tmp_path_factory.mktemp("scene"))
        try:
            for machine in proof.WORKERS:
                made.start_worker(machine)
            yield made
        finally:
            made.close()


def test_a_stranger_gets_no_code_run(scene: proof.Scene) -> None:
    proof.security(scene, patience=3.0)


def test_a_refused_certificate_is_a_sentence_at_once(scene: proof.Scene) -> None:
    ip = scene.network.ip(proof.STRANGER)
    folder = scene.folder / "other" / ip
    begun = time.monotonic()
    process = scene.network.start(
        proof.STRANGER,
        [sys.executable, "-m", "glasshouse", "hosts", "check", *scene.overrides[:2],
         f"hosts.certificates={folder}"],
        env=scene.environment, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        _, words = process.communicate(timeout=20)
    finally:
        stop(process)
    assert process.returncode == 2
    assert "is not trusted" in words
    assert time.monotonic() - begun < 10


def test_a_killed_host_is_noticed_and_joins_again_at_a_new_port(scene: proof.Scene) -> None:
    proof.kill(scene)


def test_a_cut_link_is_noticed_and_joins_again_when_mended(scene: proof.Scene) -> None:
    proof.cut(scene)
