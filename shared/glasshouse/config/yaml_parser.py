"""Parses YAML with limits, so that no file, however it is made, can exhaust memory or recursion.

Refused: repeated keys, aliases (`*name`, which can expand to any size or contain themselves), deep
nesting, huge integers, and text that is not valid Unicode. docs/limits.md lists the limits.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

MAX_CONFIG_BYTES = 100_000
"""A config file has about 3,000. Parsing takes up to 25 s per megabyte."""
MAX_DEPTH = 32
MAX_INTEGER_DIGITS = 100


class RefusedYAML(yaml.MarkedYAMLError):
    """Valid YAML that exceeds a limit."""


class BoundedConstructor:
    """Limits on the values of a document, for a loader of PyYAML."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        keys = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":  # `<<` has no value itself
                continue
            key = self.construct_object(key_node, deep=True)  # type: ignore[attr-defined]
            if isinstance(key, Hashable):  # others are refused below
                if key in keys:
                    raise _refuse(f'the key "{key}" is repeated; remove one of the two', key_node)
                keys.add(key)
        return super().construct_mapping(node, deep)  # type: ignore[misc]

    def construct_scalar(self, node: Any) -> Any:
        value = super().construct_scalar(node)  # type: ignore[misc]
        if has_surrogates(str(value)):
            raise _refuse("it contains a lone surrogate, which is not valid Unicode", node)
        return value

    def construct_yaml_int(self, node: Any) -> int:
        if len(node.value) > MAX_INTEGER_DIGITS:
            raise _refuse(f"an integer has more than {MAX_INTEGER_DIGITS} digits", node)
        return super().construct_yaml_int(node)  # type: ignore[misc]

    def construct_yaml_binary(self, node: Any) -> bytes:
        raise _refuse("binary values are not allowed", node)


class BoundedLoader(BoundedConstructor, yaml.SafeLoader):
    """`yaml.SafeLoader` with limits."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) and event.anchor in self.anchors:
            raise _refuse(f"the alias *{event.anchor} is not allowed; write its value out", event)
        if self.depth > MAX_DEPTH:
            raise _refuse(f"it is nested more than {MAX_DEPTH} levels deep", event)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class FastLoader(BoundedConstructor, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same with libyaml's parser, five times as fast. It composes nodes in C, where depth and aliases
    cannot be limited: `is_flat` looks at them before."""


for loader in (BoundedLoader, FastLoader):
    yaml.add_constructor("tag:yaml.org,2002:int", BoundedConstructor.construct_yaml_int, loader)
    yaml.add_constructor(
        "tag:yaml.org,2002:binary", BoundedConstructor.construct_yaml_binary, loader
    )


def parse_yaml(text: str) -> Any:
    """Parses a YAML document. Raises a `yaml.YAMLError`; a `RefusedYAML` if it exceeds a limit. What the
    fast loader does not accept goes to the other one, whose errors say more."""
    try:
        if is_flat(text):
            return yaml.load(text, FastLoader)
    except (yaml.YAMLError, ValueError, OverflowError):
        pass
    try:
        return yaml.load(text, BoundedLoader)  # a subclass of SafeLoader
    except (ValueError, OverflowError) as error:  # for example the date 2026-13-45
        raise yaml.YAMLError(str(error)) from None


def is_flat(text: str) -> bool:
    """Is the document nested less than MAX_DEPTH levels deep, and without aliases?"""
    depth = 0
    for event in yaml.parse(text, FastLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth >= MAX_DEPTH or isinstance(event, yaml.AliasEvent):
            return False
    return True


def has_surrogates(text: str) -> bool:
    """Does the text contain code points that UTF-8 cannot encode?"""
    return any("\ud800" <= character <= "\udfff" for character in text)


def _refuse(problem: str, source: Any) -> RefusedYAML:
    return RefusedYAML(problem=problem, problem_mark=source.start_mark)
