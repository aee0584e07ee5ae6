"""Chooses the build of PyTorch that the set-up installs, and says which: `make setup` runs this file.

    with an NVIDIA driver    the CUDA build: on Linux, the build of the index that pip is configured with
    without one              the CPU build of the index in TORCH_CPU_INDEX, if that can be reached
    otherwise                the build of the index that pip is configured with

Prints the arguments of `pip install`; the sentence goes to stderr. The version is that of constraints.txt.
Only the standard library is used, because nothing is installed yet.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path

CONSTRAINTS = Path(__file__).resolve().parent.parent / "constraints.txt"
PROBE_SECONDS = 3.0


def main(cpu_index: str) -> int:
    arguments, sentence = choose_build(
        read_pin(CONSTRAINTS.read_text()), cpu_index, sys.platform, has_nvidia_driver, is_reachable
    )
    print(sentence, end=" … ", file=sys.stderr, flush=True)
    print(" ".join(arguments))
    return 0


def choose_build(
    pin: str,
    cpu_index: str,
    platform: str,
    has_driver: Callable[[], bool],
    reachable: Callable[[str], bool],
) -> tuple[list[str], str]:
    """The arguments of `pip install`, and which build they get.

    Example: without a driver, and with a reachable index, `torch==2.13.0` becomes
    `["torch==2.13.0+cpu", "--extra-index-url", cpu_index]`.
    """
    if platform != "linux":
        return [pin], "the only build for this system"
    if has_driver():
        return [pin], "NVIDIA driver found: CUDA build"
    if cpu_index and reachable(cpu_index):
        return [f"{pin}+cpu", "--extra-index-url", cpu_index], "no NVIDIA driver: CPU build"
    return [pin], "no NVIDIA driver, no CPU index: the build of pip's index"


def read_pin(constraints: str) -> str:
    """The line of torch, for example `torch==2.13.0`."""
    (pin,) = re.findall(r"(?m)^torch==[\d.]+$", constraints)
    return str(pin)


def has_nvidia_driver() -> bool:
    """Does nvidia-smi list a GPU? The program alone may be left over from an old installation."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return False
    try:
        listed = subprocess.run([program, "-L"], capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listed.returncode == 0 and b"GPU" in listed.stdout


def is_reachable(index: str) -> bool:
    """Does the index answer for torch within a few seconds? Resolving its name can take longer than any
    timeout of the request: so a thread asks, and is not waited for."""
    answers = list[bool]()

    def ask() -> None:
        try:
            request = urllib.request.Request(f"{index.rstrip('/')}/torch/", method="HEAD")
            with urllib.request.urlopen(request, timeout=PROBE_SECONDS) as response:
                answers.append(response.status == 200)
        except (OSError, ValueError):
            answers.append(False)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS)
    return answers == [True]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
