"""Parts of other packages: classes and functions that an installed package offers by entry points.

    [project.entry-points."glasshouse.tasks"]
    doubling = "my_package.tasks:Doubling"

Groups: glasshouse.tasks, .organisms, .rewards, .penalties, .monitors, .trackers, .engines. A registry asks for
a name that it does not know; nothing is imported before. An experiment's own folder needs no entry
point: a module that the config key `imports` names registers its parts with decorators.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import Any

from glasshouse.errors import ConfigError, GlasshouseError

PREFIX = "glasshouse."


def list_plugins(group: str) -> list[str]:
    """The names that installed packages offer in a group, as in `list_plugins("tasks")`."""
    return sorted({point.name for point in metadata.entry_points(group=PREFIX + group)})


def load_plugin(group: str, name: str) -> Any | None:
    """What an installed package offers under this name; None if none does."""
    points = list(metadata.entry_points(group=PREFIX + group, name=name))
    if not points:
        return None
    sources = sorted({point.value for point in points})
    if len(sources) > 1:
        raise ConfigError(
            f'Two packages offer "{name}" in {PREFIX}{group}: {" and ".join(sources)}. Uninstall one of them.'
        )
    try:
        return points[0].load()
    except GlasshouseError:
        raise
    except (Exception, SystemExit) as error:
        package = points[0].dist.name if points[0].dist else "an installed package"
        raise ConfigError(
            f'"{name}" of {package} ({points[0].value}, {PREFIX}{group}) could not be loaded: '
            f"{type(error).__name__}: {error}."
        ) from error


def find_missing(part: Any, members: Sequence[str]) -> list[str]:
    """The members that a class or object lacks, or declares without an implementation."""
    abstract: frozenset[str] = getattr(part, "__abstractmethods__", frozenset())
    return [name for name in members if not hasattr(part, name) or name in abstract]


def describe_missing(kind: str, part: Any, missing: Sequence[str], example: str) -> str:
    """The end of an error message: which members a class lacks, and where to see them."""
    name = getattr(part, "__qualname__", type(part).__qualname__)
    lacks = " and ".join(missing) if len(missing) < 3 else ", ".join(missing)
    return (
        f"The {kind} {name} lacks {lacks}. {example} shows every member, docs/extend.md an example."
    )
