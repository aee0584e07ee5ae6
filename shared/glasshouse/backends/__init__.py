"""Backends: where generation and learning run.

    base.py     the protocols
    local.py    this process (`backend: local`)
    monarch/    torchmonarch actors on this host (`backend: monarch`)
    hosts/      several hosts, and who may connect to them (`hosts.kind`)
    factory.py  `make_backend(policy, config, event)`

Nothing is imported here: a host that only waits for work does not need torch.
"""
