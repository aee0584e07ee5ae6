"""What every process of a Monarch run does first: a script of its own, so that nothing is imported before.

It ends when its parent ends, however that happens, ignores Ctrl-C (the controller decides), and
writes into the controller's log instead of onto its terminal. Then it is Monarch's.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG = 1


def main(log: str) -> None:
    follow_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # another host has no such file
        file = os.open(log, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
    faulthandler.enable(all_threads=False)  # a crash in native code leaves words too
    import torch  # noqa: F401  # Monarch asks for it before its own threads start
    from monarch._src.actor.bootstrap_main import invoke_main

    invoke_main()


def follow_parent() -> None:
    """Die when the parent dies. The kernel's signal also ends a stopped process; the watching
    thread is for systems without it."""
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
