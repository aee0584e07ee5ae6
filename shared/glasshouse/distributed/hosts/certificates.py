"""A certificate authority (CA) for one group of hosts, and a certificate per host, for mutual TLS.

    DIR/ca.pem, ca.key          the CA; its key signs further hosts and stays on this machine
    DIR/<host>/ca.pem           the CA that the host trusts
    DIR/<host>/host.pem, .key   the host's own certificate and key
    DIR/<host>/name             the host that the certificate names

A certificate names its host; a worker that shows it at another address is refused.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from glasshouse.distributed.hosts.security import CA, CERTIFICATE, KEY, NAME
from glasshouse.errors import ConfigError, HostError
from glasshouse.extras import install_command

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise HostError(
        f"Creating certificates needs the package cryptography: {install_command('monarch')}"
    ) from None

CA_KEY = "ca.key"
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
    for host in hosts:
        _validate_host(host)
    folders = {host: out / host.replace(":", "_") for host in hosts}
    for folder in folders.values():
        if folder.exists():
            raise HostError(f"{folder} exists already; nothing was overwritten. Remove it first.")
    ca, ca_key = _load_or_create_ca(out, max(days, CA_DAYS))
    for host, folder in folders.items():
        _create_host(out, folder, host, days, ca, ca_key)
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


def _validate_host(host: str) -> None:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        if not DNS_NAME.fullmatch(host) or ".." in host:
            raise ConfigError(
                f'--host "{host}" is neither an IP address nor a host name.'
            ) from None


def _load_or_create_ca(out: Path, days: int) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate_file, key_file = out / CA, out / CA_KEY
    if certificate_file.exists() != key_file.exists():
        missing = key_file if certificate_file.exists() else certificate_file
        raise HostError(f"{out} holds half of a CA: {missing} is missing. Nothing was overwritten.")
    if certificate_file.exists():
        try:
            certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
            key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
        except ValueError as error:
            raise HostError(f"The CA in {out} cannot be read: {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise HostError(f"{key_file} is not an elliptic-curve key.")
        return certificate, key
    out.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = _common_name("glasshouse hosts")
    certificate = (
        _builder(name, name, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(sign_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write_key(key_file, key)
    _write_certificate(certificate_file, certificate)
    return certificate, key


def _create_host(
    out: Path,
    folder: Path,
    host: str,
    days: int,
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
) -> None:
    """Create the folder under a temporary name and rename it, so that it is never incomplete."""
    name = host.strip("[]")
    try:
        subject: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        subject = x509.DNSName(name)
    key = ec.generate_private_key(ec.SECP256R1())
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    certificate = (
        _builder(_common_name(host[:64]), ca.subject, key, days)
        .add_extension(x509.SubjectAlternativeName([subject]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(issuer_key, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    with tempfile.TemporaryDirectory(dir=out, prefix=".partial-") as temporary:
        partial = Path(temporary) / "host"
        partial.mkdir(mode=0o700)
        _write_key(partial / KEY, key)
        _write_certificate(partial / CERTIFICATE, certificate)
        _write_certificate(partial / CA, ca)
        (partial / NAME).write_text(f"{name}\n")
        (partial / NAME).chmod(0o644)
        os.rename(partial, folder)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _key_usage(*, sign_certificates: bool) -> x509.KeyUsage:
    """Return the usage of a CA's key (sign certificates) or of a host's key (sign handshakes)."""
    return x509.KeyUsage(
        digital_signature=not sign_certificates, key_cert_sign=sign_certificates,
        crl_sign=sign_certificates, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write a private key that no other user can read at any time."""
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(pem)


def _write_certificate(path: Path, certificate: x509.Certificate) -> None:
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    path.chmod(0o644)
