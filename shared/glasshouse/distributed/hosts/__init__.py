"""The other machines of a run: who may connect to them, and which generators they run.

`HostPool` attaches `glasshouse hosts worker` processes over mutual TLS. Each host is its own Monarch
mesh: losing one does not affect the others, and a lost host is attached again.
"""
