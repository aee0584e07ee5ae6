"""A configuration as text, as pairs, as what changed; and what every key means."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel

from glasshouse.config.schema import Config, Section


def changes(before: Config, after: Config) -> list[str]:
    """The keys whose values differ."""
    old, new = dict(leaves(before)), dict(leaves(after))
    return [key for key in {**old, **new} if old.get(key) != new.get(key)]


def leaves(config: Config) -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of the whole tree."""

    def walk(tree: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for name, value in tree.items():
            if isinstance(value, dict):
                yield from walk(value, f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}", value

    return walk(config.model_dump(mode="json"), "")


def dump(config: Config) -> str:
    """The resolved tree as YAML, in the order of declaration."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def describe() -> list[tuple[str, str, str, str]]:
    """(key, type, default, description) of every field, for help pages."""
    return list(_fields(Config, ""))


def _fields(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str, str]]:
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from _fields(kind, f"{prefix}{name}.")
            continue
        default = yaml.safe_dump(_plain(field.get_default()), default_flow_style=True)
        default = default.removesuffix("...\n").strip()
        yield f"{prefix}{name}", _type(kind), default, " ".join((field.description or "").split())


def _type(kind: Any) -> str:
    """A type as people say it: `int`, `fresh | fixed`, `float or empty`."""
    if get_origin(kind) is Literal:
        return " | ".join(str(choice) for choice in get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " | ".join(str(member.value) for member in kind)
    if get_origin(kind) in (Union, UnionType):
        options = [_type(k) for k in get_args(kind) if k is not NoneType]
        return " | ".join(options) + (" or empty" if NoneType in get_args(kind) else "")
    return kind.__name__ if get_origin(kind) is None else str(kind).replace("typing.", "")


def _plain(value: Any) -> Any:
    """A default as YAML would hold it."""
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value
