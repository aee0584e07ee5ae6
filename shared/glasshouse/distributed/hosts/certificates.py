"""A certificate authority (CA) for one group of hosts, and a certificate per host, for mutual TLS.

    DIR/ca.pem, ca.key          the CA; its key signs further hosts and stays on this machine
    DIR/<host>/ca.pem           the CA that the host trusts
    DIR/<host>/host.pem, .key   the host's own certificate and key

A certificate names its host; a worker that shows it at another address is refused.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import ssl
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

from glasshouse.errors import ConfigError, HostError, install_command

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise HostError(
        f"Certificates need the package cryptography: {install_command('monarch')}"
    ) from None

CA, CA_KEY, CERTIFICATE, KEY = "ca.pem", "ca.key", "host.pem", "host.key"
CA_DAYS = 3650
CLOCK_SKEW = datetime.timedelta(minutes=5)
"""Certificates are valid from this long before now, for hosts whose clocks are slow."""
DNS_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


def create_certificates(out: Path, hosts: Sequence[str], days: int = 365) -> list[Path]:
    """Create a folder per host, signed by the CA in `out`, which is created if there is none.

    Example: `create_certificates(Path("certificates"), ["10.0.0.1", "node7.example.org"])`
    """
    if not hosts:
        raise ConfigError("--host is missing: name every host, this one too, as in --host 10.0.0.1")
    if days < 1:
        raise ConfigError("--days must be above 0.")
    subjects = {host: _parse_host(host) for host in hosts}
    folders = {host: out / host.replace(":", "_") for host in hosts}
    for folder in folders.values():
        if folder.exists():
            raise HostError(f"{folder} exists already; nothing was overwritten. Remove it first.")
    ca, ca_key = _load_or_create_ca(out, max(days, CA_DAYS))
    for host, folder in folders.items():
        # under a temporary name first, so that a folder is never incomplete
        with tempfile.TemporaryDirectory(dir=out, prefix=".partial-") as temporary:
            partial = Path(temporary) / "host"
            partial.mkdir(mode=0o700)
            key = _create_key(partial / KEY)
            certificate = _sign(key, host, days, ca_key, subject=subjects[host], ca=ca)
            (partial / CERTIFICATE).write_bytes(_encode(certificate))
            (partial / CA).write_bytes(_encode(ca))
            os.rename(partial, folder)
    return list(folders.values())


def read_certificate_hosts(folder: Path) -> list[str]:
    """Return the IP addresses and names in a host's certificate."""
    try:
        certificate = x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    except (OSError, ValueError) as error:
        raise HostError(f"The certificate in {folder} cannot be read: {error}") from None
    addresses = [str(ip) for ip in names.get_values_for_type(x509.IPAddress)]
    return addresses + names.get_values_for_type(x509.DNSName)


def tls_environment(folder: Path) -> dict[str, str]:
    """Return Monarch's variables for a host's certificate folder; raise if it is unusable."""
    paths = {name: (folder / name).resolve() for name in (CA, CERTIFICATE, KEY)}
    missing = [name for name, path in paths.items() if not path.is_file()]
    if missing:
        raise HostError(
            f"The certificate folder {folder} has no {' and no '.join(missing)}. Create one per host "
            "with `glasshouse hosts certificates` and copy each to its host."
        )
    mode = stat.S_IMODE(paths[KEY].stat().st_mode)
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise HostError(
            f"All users of this machine can access {paths[KEY]} (mode {mode:o}); run chmod 600 on it."
        )
    tls_context(ssl.PROTOCOL_TLS_SERVER, folder)  # Monarch would fail with a stack trace
    variables = ("HYPERACTOR_TLS_CA", "HYPERACTOR_TLS_CERT", "HYPERACTOR_TLS_KEY")
    return dict(zip(variables, map(str, paths.values()), strict=True))


def tls_context(side: int, folder: Path) -> ssl.SSLContext:
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


def _parse_host(host: str) -> x509.GeneralName:
    try:
        ip = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        if not DNS_NAME.fullmatch(host) or ".." in host:
            raise ConfigError(
                f'--host "{host}" is neither an IP address nor a host name.'
            ) from None
        return x509.DNSName(host)
    if ip.is_unspecified:
        raise ConfigError(f"--host {host} stands for all addresses; name one of them.")
    return x509.IPAddress(ip)


def _load_or_create_ca(out: Path, days: int) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    files = out / CA, out / CA_KEY
    missing = [file for file in files if not file.exists()]
    if len(missing) == 1:
        raise HostError(
            f"{out} holds half of a CA: {missing[0]} is missing. Nothing was overwritten."
        )
    if missing:
        out.mkdir(parents=True, exist_ok=True)
        key = _create_key(out / CA_KEY)
        certificate = _sign(key, "glasshouse hosts", days, key)
        (out / CA).write_bytes(_encode(certificate))
        return certificate, key
    try:
        certificate = x509.load_pem_x509_certificate(files[0].read_bytes())
        loaded = serialization.load_pem_private_key(files[1].read_bytes(), password=None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise ValueError("its key is of another kind")
    except ValueError as error:
        raise HostError(f"The CA in {out} cannot be read: {error}") from None
    return certificate, loaded


def _sign(
    key: ec.EllipticCurvePrivateKey,
    name: str,
    days: int,
    ca_key: ec.EllipticCurvePrivateKey,
    *,
    subject: x509.GeneralName | None = None,
    ca: x509.Certificate | None = None,
) -> x509.Certificate:
    """Return the certificate of a host (`subject`, signed by `ca`) or, without these, of a CA."""
    now = datetime.datetime.now(datetime.UTC)
    own_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    constraints = x509.BasicConstraints(ca=not subject, path_length=None if subject else 0)
    builder = (
        x509.CertificateBuilder()
        .subject_name(own_name)
        .issuer_name(ca.subject if ca else own_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(constraints, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if subject:
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
        builder = (
            builder.add_extension(x509.SubjectAlternativeName([subject]), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(issuer, critical=False)
        )
    else:
        # only key_cert_sign is true
        usage = x509.KeyUsage(False, False, False, False, False, True, False, False, False)
        builder = builder.add_extension(usage, critical=True)
    return builder.sign(ca_key, hashes.SHA256())


def _create_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Create a private key in a file that no other user can read at any time."""
    key = ec.generate_private_key(ec.SECP256R1())
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key.private_bytes(encoding, form, serialization.NoEncryption()))
    return key


def _encode(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
