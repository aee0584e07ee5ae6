"""Who may talk to whom: the certificates of a host, and what Monarch has to be told before it starts.

Monarch reads its settings from the environment, and so do the processes it starts; hence they are
set there, by whoever opens hosts or runs a worker. Only `tls://` addresses are protected, and they
always ask both sides for a certificate.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from glasshouse.errors import ConfigError, HostError

CA, CERTIFICATE, KEY, NAME = "ca.pem", "host.pem", "host.key", "name"
WARNING = (
    "hosts.security is plain: nothing is encrypted and nobody is asked who they are. "
    "Whoever reaches a port of this run can run code on its hosts."
)

DETECTION = {
    # A dead process, a dead host and a cut link are then noticed within 5 s instead of a minute.
    "HYPERACTOR_MESH_SUPERVISION_POLL_FREQUENCY": "1s",
    "HYPERACTOR_MESH_GET_ACTOR_STATE_MAX_IDLE": "3s",
    "HYPERACTOR_MESH_GET_PROC_STATE_MAX_IDLE": "3s",
    # Busy cores import slowly: the default of 30 s has tripped.
    "HYPERACTOR_MESH_PROC_SPAWN_MAX_IDLE": "120s",
    "HYPERACTOR_MESH_ACTOR_SPAWN_MAX_IDLE": "120s",
    "HYPERACTOR_HOST_SPAWN_READY_TIMEOUT": "120s",
    # What a vanished controller leaves on a worker ends soon.
    "HYPERACTOR_MESH_ORPHAN_TIMEOUT": "20s",
}


def tell_monarch(certificates: Path | None = None, **more: str) -> None:
    """Settings for this process and those it starts; what the user has set stays.

    Example: `tell_monarch(Path("certificates/10.0.0.2"))`
    """
    for name, value in (DETECTION | more).items():
        os.environ.setdefault(name, value)
    if certificates is not None:
        os.environ.update(tls_environment(certificates))
    if "monarch" in sys.modules:  # it has read them already
        from monarch._rust_bindings.monarch_hyperactor.config import reload_config_from_env

        reload_config_from_env()


def tls_environment(folder: Path) -> dict[str, str]:
    """The folder's three files under the names Monarch knows, after a look at them."""
    paths = {name: (folder / name).resolve() for name in (CA, CERTIFICATE, KEY)}
    missing = [name for name, path in paths.items() if not path.is_file()]
    if missing:
        raise HostError(
            f"The certificate folder {folder} has no {' and no '.join(missing)}. Make one for every "
            "host with `glasshouse hosts certificates` and copy each host its own."
        )
    mode = stat.S_IMODE(paths[KEY].stat().st_mode)
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise HostError(
            f"Everybody on this machine may read {paths[KEY]} (mode {mode:o}): chmod 600 it."
        )
    return {
        "HYPERACTOR_TLS_CA": str(paths[CA]),
        "HYPERACTOR_TLS_CERT": str(paths[CERTIFICATE]),
        "HYPERACTOR_TLS_KEY": str(paths[KEY]),
    }


def name_of(folder: Path) -> str:
    """Whom the folder's certificate names; empty if it does not say."""
    file = folder / NAME
    return file.read_text().strip() if file.is_file() else ""


def folder_of(certificates: str) -> Path:
    """The configured folder; without one there is no TLS."""
    if not certificates:
        raise ConfigError(
            "A run on several hosts is encrypted and asks for certificates: set hosts.certificates to "
            "this host's folder (`glasshouse hosts certificates` makes them), or, on a network that "
            "only you can reach, hosts.security=plain."
        )
    return Path(certificates)
