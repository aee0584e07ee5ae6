"""Copies training/example.rl into a new experiment: `make new EXP=my.rl`."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

TRAINING = Path(__file__).resolve().parent.parent / "training"
TEMPLATE = "example.rl"


def main(argv: list[str]) -> int:
    name = argv[0] if argv else ""
    if not re.fullmatch(r"[a-z][a-z0-9_-]*\.[a-z][a-z0-9_-]*", name):
        problem = f'"{name}" is not a valid experiment name' if name else "No experiment name"
        print(
            f"error: {problem}; write make new EXP=<name>.<algorithm>, for example EXP=my.rl.",
            file=sys.stderr,
        )
        return 2
    target = TRAINING / name
    if target.exists():
        print(f"error: training/{name} already exists; choose another name.", file=sys.stderr)
        return 2
    shutil.copytree(
        TRAINING / TEMPLATE, target, ignore=shutil.ignore_patterns("__pycache__", "results")
    )
    for file in target.iterdir():
        file.write_text(file.read_text().replace(TEMPLATE, name))
    readme = target / "README.md"
    readme.write_text(remove_section(readme.read_text(), "## Result"))
    print(f"created training/{name}: edit its config.yaml, then run make test EXP={name}")
    return 0


def remove_section(markdown: str, heading: str) -> str:
    """Remove `heading` and the text up to the next heading of the same level, or the end."""
    level = heading.split()[0]
    return re.sub(rf"(?ms)^{re.escape(heading)}$.*?(?=^{level} |\Z)", "", markdown)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
