"""What macOS lacks is not needed to import the package and to train. macOS itself was not run (docs/install.md)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

WITHOUT_LINUX = """
import os, pathlib, pkgutil, select, signal, sys
import numpy, torch, transformers

LINUX_ONLY = {
    os: ("sched_", "memfd_", "pidfd_", "eventfd", "timerfd_", "epoll", "splice", "copy_file_range", "getrandom",
         "setns", "unshare", "getxattr", "setxattr", "posix_fadvise", "posix_fallocate", "O_TMPFILE", "O_DIRECT"),
    select: ("epoll", "EPOLL"),
    signal: ("pidfd_", "SIGRT", "SIGPWR", "SIGSTKFLT", "SIGPOLL", "sigtimedwait", "sigwaitinfo"),
}
for module, starts in LINUX_ONLY.items():
    for name in [name for name in dir(module) if name.startswith(starts)]:
        delattr(module, name)

read_text = pathlib.Path.read_text
def read_no_proc(self, *args, **kwargs):
    if str(self).startswith("/proc"):
        raise FileNotFoundError(2, "No such file or directory", str(self))
    return read_text(self, *args, **kwargs)
pathlib.Path.read_text = read_no_proc

import glasshouse
skipped = ("glasshouse.generate.vllm", "glasshouse.distributed.monarch", "glasshouse.distributed.hosts")
names = [m.name for m in pkgutil.walk_packages(glasshouse.__path__, "glasshouse.") if not m.name.startswith(skipped)]
assert len(names) > 130, len(names)
for name in names:
    __import__(name)
small = {"steps": 2, "data.groups_per_step": 2, "generate.max_tokens": 16, "evaluate.problems": 4}
run = glasshouse.train(glasshouse.load_config(overrides={**small, "out": sys.argv[1]}), progress=False)
assert (run.path / "results" / "summary.json").exists()
"""


def test_every_module_imports_and_training_runs_without_what_only_linux_has(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_LINUX, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
