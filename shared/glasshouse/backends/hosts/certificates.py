"""A certificate authority for one group of hosts, and a certificate for each: mutual TLS.

    DIR/ca.pem, ca.key          the authority; the key signs further hosts and stays where it is
    DIR/<host>/ca.pem           whom the host trusts
    DIR/<host>/host.pem, .key   what the host shows
    DIR/<host>/name             whom that names

Made with the `openssl` program. A certificate names its host; a worker at another address is refused.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from glasshouse.backends.hosts.security import CA, CERTIFICATE, KEY, NAME
from glasshouse.errors import ConfigError, HostError

AUTHORITY_KEY = "ca.key"
DNS_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


def make(out: Path, hosts: Sequence[str], days: int = 365) -> list[Path]:
    """A folder for each host, signed by the authority in `out`, which is made if there is none.

    Example: `make(Path("certificates"), ["10.0.0.1", "node7.example.org"])`
    """
    if not hosts:
        raise ConfigError("Name every host that takes part, this one too: --host 10.0.0.1 …")
    if days < 1:
        raise ConfigError("--days must be above 0.")
    names = {host: _subject(host) for host in hosts}
    folders = [out / host.replace(":", "_") for host in names]
    for folder in folders:
        if folder.exists():
            raise HostError(f"{folder} exists already; nothing was overwritten. Remove it first.")
    _authority(out, days)
    for folder, (host, subject) in zip(folders, names.items(), strict=True):
        _host(out, folder, host, subject, days)
    return folders


def _subject(host: str) -> str:
    """The host as a certificate names it: an IP or a DNS name."""
    try:
        return f"IP:{ipaddress.ip_address(host.strip('[]'))}"
    except ValueError:
        if not DNS_NAME.fullmatch(host) or ".." in host:
            raise ConfigError(
                f'"{host}" is neither an IP address nor the name of a host.'
            ) from None
        return f"DNS:{host}"


def _authority(out: Path, days: int) -> None:
    certificate, key = out / CA, out / AUTHORITY_KEY
    if certificate.exists() != key.exists():
        there, gone = (certificate, key) if certificate.exists() else (key, certificate)
        raise HostError(f"{there} is there but {gone} is not; nothing was overwritten.")
    if certificate.exists():
        return
    out.mkdir(parents=True, exist_ok=True)
    _openssl(
        "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
        "-keyout", str(key), "-out", str(certificate), "-days", str(max(days, 3650)),
        "-subj", "/CN=glasshouse hosts", "-addext", "basicConstraints=critical,CA:TRUE,pathlen:0",
        "-addext", "keyUsage=critical,keyCertSign,cRLSign",
    )  # fmt: skip
    certificate.chmod(0o644)


def _host(out: Path, folder: Path, host: str, subject: str, days: int) -> None:
    """Everything is made beside the folder and moved into place, so that none is half there."""
    with tempfile.TemporaryDirectory(dir=out, prefix=".making-") as made:
        work = Path(made) / "host"
        work.mkdir(mode=0o700)
        extensions = Path(made) / "extensions"
        extensions.write_text(
            f"subjectAltName={subject}\nbasicConstraints=critical,CA:FALSE\n"
            "keyUsage=critical,digitalSignature\nextendedKeyUsage=serverAuth,clientAuth\n"
        )
        request = Path(made) / "request"
        _openssl(
            "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-keyout", str(work / KEY), "-out", str(request), "-subj", f"/CN={host[:64]}",
        )  # fmt: skip
        _openssl(
            "x509", "-req", "-in", str(request), "-CA", str(out / CA),
            "-CAkey", str(out / AUTHORITY_KEY), "-set_serial", f"0x{secrets.token_hex(16)}",
            "-days", str(days),
            "-extfile", str(extensions), "-out", str(work / CERTIFICATE),
        )  # fmt: skip
        shutil.copyfile(out / CA, work / CA)
        (work / NAME).write_text(f"{host.strip('[]')}\n")
        for public in (CA, CERTIFICATE, NAME):
            (work / public).chmod(0o644)
        os.rename(work, folder)


def _openssl(*arguments: str) -> None:
    """Keys are never readable by others, not even while they are written."""
    try:
        done = subprocess.run(
            ["openssl", *arguments], capture_output=True, text=True, check=False, umask=0o077
        )
    except FileNotFoundError:
        raise HostError("Certificates are made with the openssl program; install it.") from None
    if done.returncode:
        raise HostError(f"openssl {arguments[0]} failed: {done.stderr.strip()[-400:]}")
