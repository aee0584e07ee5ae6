"""Monarch's settings (`HYPERACTOR_…` environment variables): every value we set, and why.

Monarch reads them when it is first imported, and so do the processes that it starts. This module therefore imports
nothing of Monarch. A variable that the user has set keeps its value.
"""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

ONE_HOST = {
    "HYPERACTOR_MESH_SUPERVISION_POLL_FREQUENCY": "1s",  # how often it looks for dead processes
    # Silence before an actor or a process counts as dead. A pidfd reports a death at once, so a busy process has time.
    "HYPERACTOR_MESH_GET_ACTOR_STATE_MAX_IDLE": "10s",
    "HYPERACTOR_MESH_GET_PROC_STATE_MAX_IDLE": "10s",
    # Importing torch on busy cores exceeds the default of 30 s.
    "HYPERACTOR_MESH_PROC_SPAWN_MAX_IDLE": "300s",
    "HYPERACTOR_MESH_ACTOR_SPAWN_MAX_IDLE": "300s",
    "HYPERACTOR_HOST_SPAWN_READY_TIMEOUT": "300s",
    # A message to a process that is still importing would be dropped, and the spawn would then hang.
    "HYPERACTOR_MESSAGE_DELIVERY_TIMEOUT": "300s",
    "HYPERACTOR_PENDING_ACTOR_DELIVERY_TIMEOUT": "300s",
    "HYPERACTOR_CHANNEL_RECONNECT_TIMEOUT": "300s",
}
SEVERAL_HOSTS = {
    "HYPERACTOR_MESH_SUPERVISION_POLL_FREQUENCY": "1s",
    # Poll + silence = 4 s until a lost host is detected.
    "HYPERACTOR_MESH_GET_ACTOR_STATE_MAX_IDLE": "3s",
    "HYPERACTOR_MESH_GET_PROC_STATE_MAX_IDLE": "3s",
    # Shorter than on one host, because weight transfer waits for a host that is lost while it spawns.
    "HYPERACTOR_MESH_PROC_SPAWN_MAX_IDLE": "120s",
    "HYPERACTOR_MESH_ACTOR_SPAWN_MAX_IDLE": "120s",
    "HYPERACTOR_HOST_SPAWN_READY_TIMEOUT": "120s",
    "HYPERACTOR_CHANNEL_RECONNECT_TIMEOUT": "60s",  # Monarch's default: a cut link must be given up
    # A worker ends the processes of a run that vanished; on one host the kernel does it.
    "HYPERACTOR_MESH_ORPHAN_TIMEOUT": "20s",
}


def configure_monarch(settings: Mapping[str, str], extra: Mapping[str, str] | None = None) -> None:
    """Set Monarch's variables for this process and the processes it starts; `extra` wins over all.

    Example: `configure_monarch(SEVERAL_HOSTS, tls_environment(folder))`
    """
    with suppress(OSError, KeyError):  # a folder of another user: not ours to change
        make_log_private()
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    os.environ.update(extra or {})
    if "monarch" in sys.modules:  # it has read the environment already
        from monarch._rust_bindings.monarch_hyperactor.config import reload_config_from_env

        reload_config_from_env()


def make_log_private() -> Path:
    """Monarch appends to /tmp/<user>/monarch_log.log and would create it readable by all; it has no setting for it."""
    file = Path("/tmp", pwd.getpwuid(os.getuid()).pw_name, "monarch_log.log")
    file.parent.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    os.fchmod(descriptor, 0o600)
    os.close(descriptor)
    return file
