"""Prints the packages of the extra `docs`, one per line: they are installed without the rest of the package."""

import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent / "shared" / "pyproject.toml"
print(*tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]["docs"], sep="\n")
