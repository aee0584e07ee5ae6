"""Renders a `Config` as YAML, as dotted keys or as a diff, and describes every key."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from glasshouse.config.schema import Config, Section
from glasshouse.config.yaml_files import dump_yaml, flatten_keys


def diff_configs(before: Config, after: Config) -> dict[str, tuple[Any, Any]]:
    """The old and the new value of each dotted key in which two configs differ."""
    old, new = dict(flatten(before)), dict(flatten(after))
    pairs = {key: (old.get(key), new.get(key)) for key in old | new}
    return {key: (value, other) for key, (value, other) in pairs.items() if value != other}


def flatten(config: Config) -> Iterator[tuple[str, Any]]:
    """All (dotted key, value) pairs of a config, without its empty sections."""
    pairs = flatten_keys(config.model_dump(mode="json"))
    return ((key, value) for key, value in pairs if value != {})


def to_yaml(config: Config) -> str:
    """The config as YAML, in the order of the schema."""
    return dump_yaml(config.model_dump(mode="json"))


@cache
def describe_keys() -> tuple[tuple[str, str, str, str], ...]:
    """(key, type, default, description) of every key, for help texts."""
    return tuple(_describe_section(Config, Config().model_dump(mode="json"), ""))


def _describe_section(
    section: type[BaseModel], defaults: dict[str, Any], prefix: str
) -> Iterator[tuple[str, str, str, str]]:
    for name, field in section.model_fields.items():
        kind, default = field.annotation, defaults[name]
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from _describe_section(kind, default, f"{prefix}{name}.")
        else:
            text = dump_yaml(default, flow=True).removesuffix("...\n").strip()
            about = " ".join((field.description or "").split())
            yield f"{prefix}{name}", _format_type(kind), text, about


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
