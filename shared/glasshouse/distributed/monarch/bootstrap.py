"""The first script that every process of a Monarch run executes, before any other import.

The process ends when its parent ends, ignores Ctrl-C (the controller decides when to stop), and
writes to the controller's log file instead of the terminal. Then Monarch takes over.
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
    exit_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # the file does not exist on another host
        file = os.open(log, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
    faulthandler.enable(all_threads=False)  # so that a crash in native code is logged too
    import torch  # noqa: F401  # Monarch needs it imported before its own threads start
    from monarch._src.actor.bootstrap_main import invoke_main

    invoke_main()


def exit_with_parent() -> None:
    """Exit when the parent exits.

    The kernel's signal also kills a stopped process; the polling thread is for systems without it.
    """
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    def poll_parent() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=poll_parent, daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
