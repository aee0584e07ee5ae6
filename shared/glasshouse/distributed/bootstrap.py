"""The first script of a process that Monarch or a host's worker starts, before any other import.

    bootstrap.py actor PARENT LOG         a process of a run: it writes to the controller's log file
    bootstrap.py worker PARENT ADDRESS    Monarch's worker loop on a host

The process ends with its parent, also if it is stopped at that moment.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(kind: str, parent: int, argument: str) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel was told
        sys.exit(1)
    if kind == "worker":
        from monarch.actor import run_worker_loop_forever

        run_worker_loop_forever(address=argument, ca="trust_all_connections")
        return
    for number in (signal.SIGINT, signal.SIGHUP):  # the controller decides when to stop
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        file = os.open(argument, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
    faulthandler.enable(all_threads=False)  # a crash in native code is logged too
    from monarch._src.actor.bootstrap_main import invoke_main

    invoke_main()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
