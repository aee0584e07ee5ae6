"""The certificates of a host, in the form that Monarch expects.

Only `tls://` addresses are protected; both sides of such a connection must show a certificate.
"""

from __future__ import annotations

import stat
from pathlib import Path

from glasshouse.errors import ConfigError, HostError

CA, CERTIFICATE, KEY, NAME = "ca.pem", "host.pem", "host.key", "name"


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
    return {
        "HYPERACTOR_TLS_CA": str(paths[CA]),
        "HYPERACTOR_TLS_CERT": str(paths[CERTIFICATE]),
        "HYPERACTOR_TLS_KEY": str(paths[KEY]),
    }


def read_certificate_name(folder: Path) -> str:
    """Return the host that the folder's certificate names; empty if the folder does not say."""
    file = folder / NAME
    return file.read_text().strip() if file.is_file() else ""


def require_certificate_dir(certificates: str) -> Path:
    """Return the configured folder; raise if none is configured, since TLS needs one."""
    if not certificates:
        raise ConfigError(
            "hosts.certificates is empty, but runs on several hosts use TLS. Set it to this host's "
            "folder (`glasshouse hosts certificates` creates them)."
        )
    return Path(certificates)
