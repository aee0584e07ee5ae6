"""Monarch's settings (`HYPERACTOR_…` environment variables): every value we set, and why.

Monarch reads them when it is first imported, and so do the processes that it starts. This module
therefore imports nothing of Monarch. A variable of the table that the user has set keeps its value.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NamedTuple


class Setting(NamedTuple):
    """One variable: its value on one host, its value on several, and the reason.

    An empty value leaves Monarch's default.
    """

    one_host: str
    several_hosts: str
    reason: str


SETTINGS = {
    "HYPERACTOR_MESH_SUPERVISION_POLL_FREQUENCY": Setting(
        "1s", "1s", "how often Monarch looks for dead processes"
    ),
    "HYPERACTOR_MESH_GET_ACTOR_STATE_MAX_IDLE": Setting(
        "10s", "3s", "silence before an actor counts as dead. On one host a pidfd reports a death at "
        "once, so there is time for a busy process; on several, poll + silence = 4 s detects a lost host"
    ),
    "HYPERACTOR_MESH_GET_PROC_STATE_MAX_IDLE": Setting("10s", "3s", "the same, for a process"),
    "HYPERACTOR_MESH_PROC_SPAWN_MAX_IDLE": Setting(
        "300s", "120s", "importing torch on busy cores exceeds the default of 30 s. Shorter on several "
        "hosts, because weight transfer waits for a host that is lost while it spawns"
    ),
    "HYPERACTOR_MESH_ACTOR_SPAWN_MAX_IDLE": Setting("300s", "120s", "the same, for an actor"),
    "HYPERACTOR_HOST_SPAWN_READY_TIMEOUT": Setting("300s", "120s", "the same, for a host"),
    "HYPERACTOR_MESSAGE_DELIVERY_TIMEOUT": Setting(
        "300s", "", "a message to a process that is still importing is dropped after the default of "
        "30 s, and the spawn then hangs. On several hosts the default helps to detect a cut link"
    ),
    "HYPERACTOR_PENDING_ACTOR_DELIVERY_TIMEOUT": Setting("300s", "", "the same, for an actor"),
    "HYPERACTOR_MESH_ORPHAN_TIMEOUT": Setting(
        "", "20s", "a worker ends the processes of a run that vanished. On one host the kernel does it"
    ),
}  # fmt: skip


def configure_monarch(*, several_hosts: bool, extra: Mapping[str, str] | None = None) -> None:
    """Set Monarch's variables for this process and the processes it starts; `extra` wins over all.

    Example: `configure_monarch(several_hosts=True, extra=tls_environment(folder))`
    """
    for name, setting in SETTINGS.items():
        value = setting.several_hosts if several_hosts else setting.one_host
        if value:
            os.environ.setdefault(name, value)
    os.environ.update(extra or {})
    if "monarch" in sys.modules:  # it has read the environment already
        from monarch._rust_bindings.monarch_hyperactor.config import reload_config_from_env

        reload_config_from_env()
