"""Imports the modules and files of the config key `imports`, which register reward terms and tasks."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from glasshouse.errors import ConfigError, GlasshouseError


def import_modules(names: Sequence[str]) -> None:
    """Imports each module or file once; an error names it and the line that raised.

    Example: `import_modules(["my_rewards", "training/example.rl/train.py"])`
    """
    for name in names:
        try:
            _import_file(Path(name)) if name.endswith(".py") else _import_module(name)
        except GlasshouseError:
            raise
        except (Exception, SystemExit) as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            raise ConfigError(
                f'imports: "{name}" could not be imported: {type(error).__name__}: {error} '
                f"({frame.filename}, line {frame.lineno})."
            ) from error


def script_import(script: str) -> str:
    """The entry of `imports` for a script: relative to the working directory if it is below it."""
    path, folder = Path(script).resolve(), Path.cwd()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _import_module(name: str) -> None:
    if os.getcwd() not in sys.path:  # as with `python -m`; the `glasshouse` script does not add it
        sys.path.append(os.getcwd())
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(
                f'imports: there is no module "{name}". Install it, start glasshouse in its folder, or '
                "name its file (ending in .py)."
            ) from None
        raise


def _import_file(file: Path) -> None:
    path = file.expanduser().resolve()
    if not path.is_file():
        raise ConfigError(
            f'imports: there is no file "{file}" in {Path.cwd()}. Files are relative to the working '
            "directory; if the file was moved, set imports=[…] to its new place."
        )
    main_file = getattr(sys.modules.get("__main__"), "__file__", None)
    if main_file and Path(main_file).resolve() == path:
        return  # this file is the running script
    module_name = f"imported from {path}"  # not an identifier, so it cannot shadow a module
    if module_name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f'imports: "{file}" is not a Python file.')
    if str(path.parent) not in sys.path:  # modules beside the file, as when it is run as a script
        sys.path.append(str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pydantic look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
