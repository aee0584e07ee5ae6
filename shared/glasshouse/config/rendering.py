"""Renders a `Config` as YAML, as dotted keys or as a diff, and describes every key."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from glasshouse.config.schema import Config, Section
from glasshouse.config.yaml_files import dump_yaml, flatten_keys


def diff_configs(before: Config, after: Config) -> list[str]:
    """The dotted keys whose values differ."""
    old, new = dict(flatten(before)), dict(flatten(after))
    return [key for key in {**old, **new} if old.get(key) != new.get(key)]


def flatten(config: Config) -> Iterator[tuple[str, Any]]:
    """All (dotted key, value) pairs of a config, without its empty sections."""
    pairs = flatten_keys(config.model_dump(mode="json"))
    return ((key, value) for key, value in pairs if value != {})


def to_yaml(config: Config) -> str:
    """The config as YAML, in the order of the schema."""
    return dump_yaml(config.model_dump(mode="json"))


def describe_keys() -> list[tuple[str, str, str, str]]:
    """(key, type, default, description) of every key, for help texts."""
    return list(_describe_section(Config, ""))


def _describe_section(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str, str]]:
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from _describe_section(kind, f"{prefix}{name}.")
            continue
        default = dump_yaml(_to_plain(field.get_default()), flow=True)
        default = default.removesuffix("...\n").strip()
        yield (
            f"{prefix}{name}",
            _format_type(kind),
            default,
            " ".join((field.description or "").split()),
        )


def _format_type(kind: Any) -> str:
    """A readable type: `int`, `fresh | fixed`, `float or empty`."""
    if get_origin(kind) is Literal:
        return " | ".join(str(choice) for choice in get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " | ".join(str(member.value) for member in kind)
    if get_origin(kind) in (Union, UnionType):
        options = [_format_type(k) for k in get_args(kind) if k is not NoneType]
        return " | ".join(options) + (" or empty" if NoneType in get_args(kind) else "")
    return kind.__name__ if get_origin(kind) is None else str(kind).replace("typing.", "")


def _to_plain(value: Any) -> Any:
    """Converts a default to plain YAML types."""
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value
