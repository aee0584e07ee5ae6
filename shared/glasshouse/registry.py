"""Parts by name. Built-in parts and those of other people are registered in the same way:

    @penalty("shouting")                              # in a module that the config key `imports` names
    class Shouting(Penalty): ...

    [project.entry-points."glasshouse.penalties"]     # or offered by an installed package
    shouting = "my_package:Shouting"

The decorators are `task`, `reward`, `penalty`, `monitor`, `engine`, `algorithm` and `tracker`; each
is a `Registry` beside the base class or protocol of its parts. A name that is not registered yet is
looked up in `modules` (built-in parts that are imported late), then among the entry points. Nothing
is imported before it is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
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
            known = self.modules.get(name) or getattr(self.parts.get(name), "__module__", None)
            if (
                known
                and known.startswith("glasshouse.")
                and known != getattr(part, "__module__", "")
            ):
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
