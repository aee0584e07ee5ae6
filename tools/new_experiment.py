"""`make new EXP=my.rl`: copy training/example.rl into a new experiment."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

TRAINING = Path(__file__).resolve().parent.parent / "training"
TEMPLATE = "example.rl"
TEXT = {".py", ".md", ".yaml", ".txt", ""}


def main(argv: list[str]) -> int:
    name = argv[0] if argv else ""
    if not re.fullmatch(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_-]*", name):
        given = f'"{name}" is not a name for an experiment' if name else "Name the experiment"
        print(
            f"error: {given}; write make new EXP=<name>.<algorithm>, for example EXP=my.rl.",
            file=sys.stderr,
        )
        return 2
    target = TRAINING / name
    if target.exists():
        print(f"error: training/{name} exists already; choose another name.", file=sys.stderr)
        return 2
    shutil.copytree(
        TRAINING / TEMPLATE, target, ignore=shutil.ignore_patterns("__pycache__", "results")
    )
    for file in target.rglob("*"):
        if file.is_file() and file.suffix in TEXT:
            file.write_text(file.read_text().replace(TEMPLATE, name))
    print(f"training/{name} is ready: edit its config.yaml, then make test EXP={name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
