"""Counts the files of the package that a person follows through: `python tools/count_files.py`.

A file counts if one of its functions is called. Two paths are counted, on the mock model in this process:

step   from a configuration to one logged gradient step, without evaluation and checkpoints
page   from the rollouts of that run to a measure in the data of the page
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "shared" / "glasshouse"
sys.path.insert(0, str(ROOT / "shared"))
SETTINGS = {
    "model": str(ROOT / "models" / "mock"),
    "steps": 1,
    "data.groups_per_step": 2,
    "generate.group_size": 2,
    "generate.max_tokens": 8,
    "evaluate.problems": 0,
}


@contextmanager
def record_files(found: set[str]) -> Iterator[None]:
    """Add the files of the package whose functions are called, also in other threads."""

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name not in ("<module>", "<lambda>"):
            path = Path(code.co_filename)
            if path.is_relative_to(PACKAGE):
                found.add(str(path.relative_to(PACKAGE)))

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


def train_one_step(out: Path, **settings: Any) -> None:
    import glasshouse

    overrides = {**SETTINGS, "out": str(out), **settings}
    glasshouse.train(glasshouse.load_config(overrides=overrides), progress=False)


def show_on_page(run: Path) -> None:
    from glasshouse.view.report import write_report

    write_report(run)


def count(path: Callable[[], None]) -> set[str]:
    found: set[str] = set()
    with record_files(found):
        path()
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        train_one_step(Path(folder) / "warm-up", **{"evaluate.problems": 2})  # imports everything
        step = count(lambda: train_one_step(Path(folder) / "step"))
        page = count(lambda: train_one_step(Path(folder) / "page", **{"evaluate.problems": 2}))
        page |= count(lambda: show_on_page(Path(folder) / "page"))
    for name, files in (("step", step), ("page", page)):
        print(f"{name}: {len(files)} files")
        print("  " + "\n  ".join(sorted(files)))


if __name__ == "__main__":
    main()
