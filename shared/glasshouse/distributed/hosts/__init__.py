"""The hosts of a run: where its processes run, and who may connect to them.

`open_hosts(config.hosts)` returns a `HostPool` of named hosts. Each host is its own Monarch mesh, so
that losing one does not affect the others; `reconnect` attaches a lost host again.

    local        this machine
    processes    local processes that act as hosts
    addresses    `glasshouse hosts worker` on other machines, over mutual TLS
"""
