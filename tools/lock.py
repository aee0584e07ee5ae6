"""Writes the tested versions of all packages: constraints.txt, and requirements.lock with hashes.

    make lock        after changing a dependency, with the tested environment in .venv

The versions are those installed in .venv. pip resolves the file of each for this platform, without
installing it, and reports its SHA-256. PyTorch is pinned by version only, because its CPU and CUDA
builds are different files; glasshouse itself is installed from this repository.

There are two files because pip refuses an editable installation as soon as a constraint has a hash:
`make setup` uses constraints.txt, on every platform; requirements.lock is for this platform only.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
CONSTRAINTS = ROOT / "constraints.txt"
EXCLUDED = {"pip", "setuptools", "torch", "uv"}
CONSTRAINTS_HEADER = """\
# The versions with which Glasshouse is tested, for `pip install -c constraints.txt`: `make setup` uses this file.
# Created by `make lock`, together with requirements.lock, which has the same versions with the hashes of their files.
"""
HEADER = """\
# The versions with which Glasshouse is tested, with the SHA-256 of each file. Created by `make lock`.
# Python {python}, {system} {machine}: on another platform pip selects other files and refuses them.
# torch is not in this file, because its CPU and CUDA builds differ: install torch=={torch} first.
#
#   python -m venv .venv
#   .venv/bin/pip install torch=={torch}
#   .venv/bin/pip install --require-hashes --no-deps -r requirements.lock
#   .venv/bin/pip install --no-deps -e shared
#
# The build tools of source distributions (setuptools) are downloaded by pip and not hashed.
"""


def main() -> int:
    versions = installed_versions()
    if "torch" not in versions:
        print("error: torch is not installed in this environment; run make setup.", file=sys.stderr)
        return 2
    pins = [f"{name}=={version}" for name, version in versions.items() if name not in EXCLUDED]
    torch = versions["torch"].partition("+")[0]
    LOCK.write_text(format_lock(resolve_files(pins), torch))
    CONSTRAINTS.write_text(format_constraints([*pins, f"torch=={torch}"]))
    print(f"{LOCK.name}, {CONSTRAINTS.name}: {len(pins)} packages and torch")
    return 0


def installed_versions() -> dict[str, str]:
    """Return the installed packages, except for editable ones."""
    command = [sys.executable, "-m", "pip", "list", "--exclude-editable", "--format", "json"]
    packages = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return {package["name"].lower(): package["version"] for package in packages}


def resolve_files(pins: list[str]) -> list[dict[str, Any]]:
    """Let pip choose the file of each pinned version; nothing is installed."""
    with tempfile.TemporaryDirectory() as folder:
        requirements, report = Path(folder, "requirements.txt"), Path(folder, "report.json")
        requirements.write_text("\n".join(pins) + "\n")
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--quiet", "--dry-run", "--no-deps",
             "--ignore-installed", "--report", str(report), "-r", str(requirements)],
            check=True,
        )  # fmt: skip
        entries: list[dict[str, Any]] = json.loads(report.read_text())["install"]
        return entries


def format_lock(entries: list[dict[str, Any]], torch: str) -> str:
    """Return the text of the lock file; where a file was downloaded from is not part of it."""
    lines = []
    for entry in entries:
        metadata, digest = entry["metadata"], entry["download_info"]["archive_info"]["hashes"]
        pin = f"{metadata['name'].lower()}=={metadata['version']}"
        lines.append(f"{pin} \\\n    --hash=sha256:{digest['sha256']}\n")
    header = HEADER.format(
        python=".".join(platform.python_version_tuple()[:2]), system=platform.system(),
        machine=platform.machine(), torch=torch,
    )  # fmt: skip
    return header + "".join(sorted(lines))


def format_constraints(pins: list[str]) -> str:
    """Return the text of the constraints file: one `name==version` per line."""
    return CONSTRAINTS_HEADER + "\n".join(sorted(pins)) + "\n"


if __name__ == "__main__":
    sys.exit(main())
