"""The command that installs an optional extra, for error messages: right for how the package was installed.

Glasshouse is not on a package index: `pip install "glasshouse[wandb]"` would find nothing, or a
package of somebody else.
"""

from __future__ import annotations

import importlib
import json
import os
import shlex
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from glasshouse.errors import GlasshouseError, RunError


def import_extra(
    extra: str, feature: str, *modules: str, error: type[GlasshouseError] = RunError
) -> list[Any]:
    """Import modules of an extra; the error says what needs them and how to install them.

    Example: `(pandas,) = import_extra("notebook", "A table", "pandas")`
    """
    try:
        return [importlib.import_module(module) for module in modules]
    except ImportError as missing:
        name = missing.name or modules[0]
        raise error(
            f"{feature} needs {name}, which is not installed: {install_command(extra)}"
        ) from None


def install_command(extra: str, *, without_dependencies: Sequence[str] = ()) -> str:
    """The command that adds an extra to this installation, and after it these packages without their
    dependencies.

    Example: `install_command("wandb")` gives `.venv/bin/python -m pip install -e 'shared[wandb]'` in this
    repository. If the folder or the wheel is gone, as in a container image, the command names the
    packages of the extra instead.
    """
    command = _install_extra(extra)
    if without_dependencies:
        command += f" && {_pip_install(['--no-deps', *without_dependencies])}"
    return command


def _install_extra(extra: str) -> str:
    source = Path(__file__).parent.parent
    if (source / "pyproject.toml").exists():  # a checkout, installed with -e or not at all
        return _pip_install(["-e", f"{_shorten(source)}[{extra}]"])
    distribution = metadata.distribution("glasshouse")
    url = json.loads(distribution.read_text("direct_url.json") or "{}").get("url", "")
    path = Path(unquote(urlsplit(url).path))
    if url.startswith("file:") and path.exists():
        return _pip_install([f"{_shorten(path)}[{extra}]"])
    return _pip_install(_list_packages(distribution, extra))


def _list_packages(distribution: metadata.Distribution, extra: str) -> list[str]:
    """The requirements of an extra without their markers."""
    marker = f'extra == "{extra}"'
    lines = [line.replace("'", '"').split(";") for line in distribution.requires or []]
    return [line[0].strip() for line in lines if len(line) == 2 and marker in line[1]]


def _pip_install(arguments: list[str]) -> str:
    python = _shorten(Path(sys.executable or "python"))
    return shlex.join([python, "-m", "pip", "install", *arguments])


def _shorten(path: Path) -> str:
    """The path relative to the working directory if it is below it; pip reads a name without a slash as
    that of a package, so that `./` stays."""
    try:
        relative = os.fspath(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return os.fspath(path)
    return relative if os.sep in relative else f".{os.sep}{relative}"
