"""Parts by name. Built-in parts and those of other people are registered in the same way:

    @penalty("shouting")                              # in a module that the config key `imports` names
    class Shouting(Penalty): ...

    [project.entry-points."glasshouse.penalties"]     # or offered by an installed package
    shouting = "my_package:Shouting"

The decorators are `task`, `reward`, `penalty`, `monitor`, `intervention`, `engine`, `algorithm` and `tracker`;
each is a `Registry` beside the base class or protocol of its parts. A name that is not registered yet is
looked up in `modules` (built-in parts that are imported late), then among the entry points. Nothing
is imported before it is asked for.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Generic, TypeVar

from glasshouse.errors import ConfigError, GlasshouseError, did_you_mean

T = TypeVar("T")
Part = TypeVar("Part")


class Registry(Generic[T]):
    """The parts of one kind, by name.

    Example: `reward = Registry[Reward]("reward", "rewards")`, then `@reward("exact")` above a function
    and `reward.get("exact")`
    """

    def __init__(
        self,
        kind: str,
        group: str,
        *,
        key: str = "",
        modules: Mapping[str, str] | None = None,
        check: Callable[[str, Any], None] = lambda name, part: None,
        error: type[GlasshouseError] = ConfigError,
    ) -> None:
        self.kind, self.group, self.check, self.error = kind, f"glasshouse.{group}", check, error
        self.key = key
        """The config key that names such a part, for error messages."""
        self.modules = dict(modules or {})
        """Built-in name to the module whose import registers it."""
        self.parts: dict[str, T] = {}
        self.facts: dict[str, Mapping[str, Any]] = {}
        """What the decorator was told about each part besides its name."""

    def __call__(self, name: str, **facts: Any) -> Callable[[Part], Part]:
        """Register what stands below this decorator. Built-in names cannot be taken."""

        def register(part: Part) -> Part:
            known = self.modules.get(name) or str(getattr(self.parts.get(name), "__module__", ""))
            if known.startswith("glasshouse.") and known != getattr(part, "__module__", ""):
                raise self.error(f'There is already a {self.kind} "{name}"; choose another name.')
            self.check(name, part)
            self.parts[name] = part  # type: ignore[assignment]
            self.facts[name] = facts
            return part

        return register

    def get(self, name: str) -> T:
        """The part of this name; an unknown name is an error that suggests the nearest."""
        if name not in self.parts:
            if name in self.modules:
                importlib.import_module(self.modules[name])
            elif (part := self._load_entry_point(name)) is not None:
                if name not in self.parts:  # its module may have used the decorator
                    self(name)(part)
            else:
                where = f"{self.key}: " if self.key else ""
                known = did_you_mean(name, list(self))
                raise self.error(f'{where}there is no {self.kind} "{name}".{known}')
        return self.parts[name]

    def check_name(self, name: str) -> None:
        """Raise if there is no part of this name. Built-in parts are not imported for it."""
        if name not in self.modules:
            self.get(name)

    def __contains__(self, name: str) -> bool:
        # installed packages are searched last: it takes milliseconds, and penalties ask for each rollout
        return name in self.parts or name in self.modules or name in list(self)

    def __iter__(self) -> Iterator[str]:
        """All names: built-in, registered, offered by installed packages."""
        offered = sorted({point.name for point in metadata.entry_points(group=self.group)})
        return iter(dict.fromkeys([*self.modules, *self.parts, *offered]))

    def _load_entry_point(self, name: str) -> Any | None:
        points = list(metadata.entry_points(group=self.group, name=name))
        if not points:
            return None
        sources = sorted({point.value for point in points})
        if len(sources) > 1:
            raise self.error(
                f'Two packages offer "{name}" in {self.group}: {" and ".join(sources)}. Uninstall one of them.'
            )
        try:
            return points[0].load()
        except GlasshouseError:
            raise
        except (Exception, SystemExit) as error:
            package = points[0].dist.name if points[0].dist else "an installed package"
            raise self.error(
                f'"{name}" of {package} ({points[0].value}, {self.group}) could not be loaded: '
                f"{type(error).__name__}: {error}."
            ) from error


def require_members(
    kind: str, members: Sequence[str], example: str, error: type[GlasshouseError] = ConfigError
) -> Callable[[str, Any], None]:
    """Return a check that a part has these members, with an implementation."""

    def check(name: str, part: Any) -> None:
        abstract: frozenset[str] = getattr(part, "__abstractmethods__", frozenset())
        missing = [member for member in members if not hasattr(part, member) or member in abstract]
        if missing:
            title = getattr(part, "__qualname__", type(part).__qualname__)
            lacks = " and ".join(missing) if len(missing) < 3 else ", ".join(missing)
            raise error(
                f"The {kind} {title} lacks {lacks}. {example} shows every member, docs/python.md an example."
            )

    return check


def import_modules(names: Sequence[str]) -> None:
    """Imports each module or file of the config key `imports` once: they register parts. An error names it
    and the line that raised.

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
    assert spec is not None  # the name ends in .py
    assert spec.loader is not None
    if str(path.parent) not in sys.path:  # modules beside the file, as when it is run as a script
        sys.path.append(str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pydantic look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
