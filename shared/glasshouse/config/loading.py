"""Builds a `Config` from YAML files and overrides. Errors name the key and suggest the nearest one."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from glasshouse.config.rendering import describe_keys
from glasshouse.config.schema import FREE_FORM_SECTIONS, Config
from glasshouse.config.yaml_files import (
    MAX_CONFIG_BYTES,
    MAX_DEPTH,
    SURROGATE,
    RefusedYAML,
    parse_yaml,
    read_yaml_file,
)
from glasshouse.errors import ConfigError, plain_reason

Layer = tuple[str, Mapping[str, Any] | Sequence[str]]
"""The source for error messages, and either a nested mapping (a file) or overrides (`key=value`)."""

MAX_SHOWN_VALUE = 200
"""Characters of an invalid value that an error message shows."""


Overrides = Mapping[str, Any] | Sequence[str]
"""Values by dotted key, as in `{"learn.learning_rate": 1e-4}`, or texts as on the command line."""


def load_config(files: str | Path | Sequence[str | Path] = (), overrides: Overrides = ()) -> Config:
    """Merges the defaults, the files and the overrides, in this order.

    Example: `load_config("training/example.rl/config.yaml", {"learn.learning_rate": 1e-4, "seed": 3})`
    """
    if isinstance(files, Mapping):
        raise ConfigError("load_config takes files first: write load_config(overrides={…}).")
    named = [files] if isinstance(files, str | Path) else files
    layers: list[Layer] = [(str(file), read_yaml_file(Path(file))) for file in named]
    return resolve_layers(
        [*layers, (_name_overrides(overrides), overrides)] if overrides else layers
    )


def override_config(config: Config, overrides: Overrides) -> Config:
    """The config with some keys replaced, validated as a whole.

    Example: `override_config(config, {"seed": 1, "out": "runs/seed-1"})`
    """
    layers: list[Layer] = [("the config", config.model_dump(mode="json"))]
    return resolve_layers([*layers, (_name_overrides(overrides), overrides)])


def _name_overrides(overrides: Overrides) -> str:
    return "the overrides" if isinstance(overrides, Mapping) else "the command line"


def resolve_layers(layers: Sequence[Layer]) -> Config:
    """Merges the defaults and the layers, in this order, and validates the result.

    Example: `resolve_layers([("a study", {"steps": 40}), ("the arm kl", {"learn.kl_coef": 0.3})])`
    """
    origins: dict[str, str] = {}
    for name, layer in layers:
        pairs = (
            _flatten_mapping(layer) if isinstance(layer, Mapping) else map(_parse_override, layer)
        )
        origins |= {key: name for key, _ in pairs}
    try:
        return Config.model_validate(merge_layers([layer for _, layer in layers]))
    except ValidationError as error:
        fallback = layers[-1][0] if layers else "the command line"
        messages = [_format_error(dict(e), origins, fallback) for e in error.errors()]
        raise ConfigError("\n".join(messages)) from None


def merge_layers(layers: Sequence[Mapping[str, Any] | Sequence[str]]) -> dict[str, Any]:
    """Merges the layers into one nested mapping, without validation."""
    merged: dict[str, Any] = {}
    for layer in layers:
        if isinstance(layer, Mapping):
            _merge_into(merged, copy.deepcopy(layer))
        else:
            for key, value in map(_parse_override, layer):
                _set_key(merged, key, value)
    return merged


def _parse_override(override: str) -> tuple[str, Any]:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(
            f'"{override}" is not an override; write key=value, for example learn.learning_rate=1e-4.'
        )
    if SURROGATE.search(override):
        raise ConfigError(f"The override {ascii(override)[:100]} is not valid Unicode.")
    if len(text) > MAX_CONFIG_BYTES:
        raise ConfigError(f'the command line: "{key}" is longer than {MAX_CONFIG_BYTES:,} bytes.')
    if key.strip() in _text_keys() and text[:1] not in ("'", '"'):
        return key.strip(), text  # YAML would drop " #x", and read 1e3 or "a: b" as other types
    try:
        return key.strip(), parse_yaml(text) if text else ""
    except RefusedYAML as error:
        raise ConfigError(f'the command line: "{key.strip()}": {error.problem}.') from None
    except yaml.YAMLError:
        return key.strip(), text


@cache
def _text_keys() -> frozenset[str]:
    """The keys whose value is a text, such as out and model."""
    return frozenset(key for key, kind, *_ in describe_keys() if kind == "str")


def _set_key(mapping: dict[str, Any], key: str, value: Any) -> None:
    """Sets a dotted key, creating the sections above it."""
    *parents, last = key.split(".")
    if len(parents) > MAX_DEPTH:
        raise ConfigError(f'The key "{key[:100]}…" has more than {MAX_DEPTH} dots.')
    for parent in parents:
        section = mapping.setdefault(parent, {})
        if not isinstance(section, dict):
            section = mapping[parent] = {}
        mapping = section
    mapping[last] = value


def _merge_into(mapping: dict[str, Any], layer: Mapping[str, Any]) -> None:
    """Merges sections key by key and replaces everything else. A free-form section (task.options,
    reward.terms) is replaced as a whole: a mix of two would make no sense. A dotted name
    (learn.kl_coef) sets that one key, after the sections."""
    for name, value in sorted(layer.items(), key=lambda item: "." in str(item[0])):
        if isinstance(name, str) and "." in name:
            _set_key(mapping, name, value)
        elif (
            isinstance(value, Mapping)
            and isinstance(mapping.get(name), dict)
            and name not in FREE_FORM_SECTIONS
        ):
            _merge_into(mapping[name], value)
        else:
            mapping[name] = dict(value) if isinstance(value, Mapping) else value


def _flatten_mapping(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All (dotted key, value) pairs, including those of sections."""
    for name, value in mapping.items():
        yield f"{prefix}{name}", value
        if isinstance(value, Mapping):
            yield from _flatten_mapping(value, f"{prefix}{name}.")


def _format_error(error: dict[str, Any], origins: Mapping[str, str], fallback: str) -> str:
    """Formats a pydantic error as: where, what is wrong, what to do."""
    key = ".".join(str(part) for part in error["loc"])
    parents = [k for k in origins if key == k or key.startswith(k + ".")]
    origin = origins[max(parents, key=len)] if parents else fallback
    if error["type"] == "extra_forbidden":
        all_keys = [k for k, *_ in describe_keys()]
        sections = sorted({k.rpartition(".")[0] for k in all_keys} - {""})
        parent = key.rpartition(".")[0]
        siblings = [k for k in all_keys + sections if k.rpartition(".")[0] == parent]
        return f'{origin}: there is no key "{key}".{_suggest_key(key, siblings, all_keys)}'
    value = repr(error["input"])
    value = value if len(value) <= MAX_SHOWN_VALUE else f"{value[:MAX_SHOWN_VALUE]}…"
    return f'{origin}: "{key}" is {value}: {_explain_invalid(error, key)}.'


def _explain_invalid(error: dict[str, Any], key: str) -> str:
    """Says what a value must be, in the words of YAML instead of pydantic's."""
    if error["type"] in ("model_type", "dict_type"):
        example = next((k for k, *_ in describe_keys() if k.startswith(f"{key}.")), f"{key}.name")
        return f"this is a section; set its keys, as in {example}=…, or write a mapping"
    return plain_reason(str(error["msg"]))


def _suggest_key(key: str, siblings: list[str], all_keys: list[str]) -> str:
    """Suggests a key of the same name in another section, or the nearest key of the same section."""
    name = key.rpartition(".")[2]
    same_name = [k for k in all_keys if k.rpartition(".")[2] == name]
    if same_name:
        return f' Did you mean "{same_name[0]}"?'
    by_name = {k.rpartition(".")[2]: k for k in siblings}
    close = difflib.get_close_matches(name, sorted(by_name), n=1)
    if close:
        return f' Did you mean "{by_name[close[0]]}"?'
    return f" Known: {', '.join(sorted(siblings))}."
