"""Hosts: where the processes of a run are, and who may talk to them.

`open_hosts(config.hosts)` gives named hosts, each a Monarch mesh of its own, so that the death of
one leaves the others; `rejoin` attaches one that came back.

    this         this machine
    processes    local processes that play hosts
    addresses    `glasshouse hosts worker` on other machines, by mutual TLS
    slurm        a SLURM allocation          } plain TCP, only when asked for by name
    kubernetes   pods of a MonarchMesh       }
"""

from glasshouse.backends.hosts.address import Address
from glasshouse.backends.hosts.opening import Hosts, open_hosts

__all__ = ["Address", "Hosts", "open_hosts"]
