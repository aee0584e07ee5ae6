"""The exception classes. A message says what is wrong, where, and what to do.

Every user error is a `GlasshouseError`; the command line prints its message and exits with code 2. Each
class also inherits from the built-in exception that it refines.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
import shlex
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class GlasshouseError(Exception):
    """Base class of errors that a user can fix; the message says how."""


class ConfigError(GlasshouseError, ValueError):
    """The config is invalid."""


class TaskError(GlasshouseError, ValueError):
    """A task does not exist or does not support an option, mode or problem."""


class RewardError(GlasshouseError, RuntimeError):
    """A reward term raised an exception; the message contains the completion."""


class ModelError(GlasshouseError, OSError):
    """A model could not be found, loaded or saved."""


class RunError(GlasshouseError, RuntimeError):
    """A run cannot start or continue."""


class RunDataError(GlasshouseError, ValueError):
    """Data of a run or a study is missing or damaged."""


class MonitorError(GlasshouseError, ValueError):
    """A monitor cannot be built or used, or the rows passed to a measure do not match."""


class RolloutFileError(GlasshouseError, ValueError):
    """A file of rollouts cannot be measured; the message names row and column."""


class HostError(GlasshouseError, OSError):
    """A host could not be reached, authenticated or started."""


class TrackError(GlasshouseError, RuntimeError):
    """A tracker could not start or rejected data."""


def plain_reason(message: str) -> str:
    """What pydantic says about an invalid value, in plain words.

    Example: `plain_reason("Input should be a valid integer")` gives "it must be a valid integer"
    """
    return message.removeprefix("Value error, ").replace("Input should be", "it must be", 1)


@contextmanager
def unwrap_os_error() -> Iterator[None]:
    """Raise OSError for a full disk or another I/O error, which safetensors and tokenizers wrap in
    their own errors."""
    try:
        yield
    except Exception as error:
        if code := re.search(r"os error (\d+)", str(error)):
            number = int(code[1])
            raise OSError(number, os.strerror(number)) from None
        raise


def locate_user_code(error: BaseException) -> str:
    """Where code that this package called has raised, as `my_rewards.py, line 12, in polite`: the innermost frame that
    is neither ours nor of an installed package; empty if there is none."""
    package, found = Path(__file__).parent, ""
    was_called = False
    for frame in traceback.extract_tb(error.__traceback__):
        if Path(frame.filename).is_relative_to(package):
            was_called = True
        elif was_called and not frame.filename.startswith((sys.prefix, sys.base_prefix, "<")):
            found = f"{frame.filename}, line {frame.lineno}, in {frame.name}"
    return found


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error message: suggests the nearest known name, or lists all of them.

    Example: `did_you_mean("lerning_rate", ["learning_rate"])` gives ' Did you mean "learning_rate"?'
    """
    options = sorted(known)
    close = difflib.get_close_matches(name, options, n=1, cutoff=0.6)
    if close:
        return f' Did you mean "{close[0]}"?'
    return f" Known: {', '.join(options)}." if options else ""


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
    """The end of an error message: the command that adds an extra to this installation, and after it these
    packages without their dependencies.

    Glasshouse is not on a package index: `pip install "glasshouse[wandb]"` would find nothing, or a package
    of somebody else. So a checkout is installed again, `python -m pip install -e ./shared[wandb]`, and
    elsewhere the command names the packages of the extra. An environment without pip was made by uv.
    """
    source, python = Path(__file__).parent.parent, shorten_path(Path(sys.executable or "python"))
    if (source / "pyproject.toml").exists():
        arguments = ["-e", f"{shorten_path(source)}[{extra}]"]
    else:
        arguments = find_requirements(extra)
    if importlib.util.find_spec("pip"):
        install = [python, "-m", "pip", "install"]
    else:
        install = ["uv", "pip", "install", "--python", python]
    command = shlex.join([*install, *arguments])
    if without_dependencies:
        command += f" && {shlex.join([*install, '--no-deps', *without_dependencies])}"
    return command


def find_requirements(extra: str) -> list[str]:
    """The packages that an extra adds, as in `["wandb<0.32,>=0.31"]`."""
    from importlib import metadata

    lines = [line.replace("'", '"').split(";") for line in metadata.requires("glasshouse") or []]
    marker = f'extra == "{extra}"'
    return [line[0].strip() for line in lines if len(line) == 2 and marker in line[1]]


def shorten_path(path: Path) -> str:
    """The path relative to the working directory if it is below it; pip reads a name without a slash as
    that of a package, so that `./` stays."""
    try:
        relative = os.fspath(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return os.fspath(path)
    return relative if os.sep in relative else f".{os.sep}{relative}"


def validate_options(
    model: Any, options: Mapping[str, Any], where: str, error: type[GlasshouseError] = ConfigError
) -> Any:
    """Build a pydantic model from options; an error names the option and suggests the nearest one.

    Example: `validate_options(RuleOptions, {"keyword": "key"}, "The monitor hint")` raises 'The monitor hint
    has no option "keyword". Did you mean "keywords"?'
    """
    for name in options:
        if name not in model.model_fields:
            raise error(f'{where} has no option "{name}".{did_you_mean(name, model.model_fields)}')
    try:
        return model.model_validate(dict(options))
    except ValueError as invalid:  # pydantic's ValidationError; importing it here would cost time
        found = invalid.errors()  # type: ignore[attr-defined]
        # a misspelt key is also a missing one: name what was written
        first = min(found, key=lambda e: e["type"] != "extra_forbidden")
        name = ".".join(map(str, first["loc"])) or "options"
        reason = f"{plain_reason(first['msg'])} (got {first['input']!r:.200})"
        raise error(f'{where}, option "{name}": {reason}.') from None
