"""From YAML files and overrides to a `Config`, or a sentence that names the key and the nearest one."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from glasshouse.config.rendering import describe
from glasshouse.config.schema import FREE, Config
from glasshouse.errors import ConfigError

Layer = tuple[str, Mapping[str, Any] | Sequence[str]]
"""Where it comes from, for error sentences; and a tree as a file holds it, or overrides."""


def load(files: Sequence[str | Path] = (), overrides: Sequence[str] = ()) -> Config:
    """Defaults, then each file laid over what is there, then the overrides.

    Example: `load(["training/example.rl/config.yaml"], ["learn.learning_rate=1e-4", "seed=3"])`
    """
    layers: list[Layer] = [(str(file), read(Path(file))) for file in files]
    return resolve([*layers, ("the command line", overrides)] if overrides else layers)


def resolve(layers: Sequence[Layer]) -> Config:
    """Defaults, then each layer laid over what is there.

    Example: `resolve([("a study", {"steps": 40}), ("its arm kl", {"learn.kl_coef": 0.3})])`
    """
    origin: dict[str, str] = {}
    for name, layer in layers:
        given = _leaves(layer) if isinstance(layer, Mapping) else map(_parse, layer)
        origin |= {path: name for path, _ in given}
    try:
        return Config.model_validate(overlaid([layer for _, layer in layers]))
    except ValidationError as error:
        fallback = layers[-1][0] if layers else "the command line"
        problems = [_sentence(dict(e), origin, fallback) for e in error.errors()]
        raise ConfigError("\n".join(problems)) from None


def overlaid(layers: Sequence[Mapping[str, Any] | Sequence[str]]) -> dict[str, Any]:
    """The layers as one tree, not yet checked."""
    tree: dict[str, Any] = {}
    for layer in layers:
        if isinstance(layer, Mapping):
            _lay_over(tree, copy.deepcopy(layer))
        else:
            for path, value in map(_parse, layer):
                _assign(tree, path, value)
    return tree


def read(file: Path) -> dict[str, Any]:
    """A YAML file's tree; a file that is none is one sentence."""
    try:
        tree = yaml.safe_load(file.read_text())
    except FileNotFoundError:
        raise ConfigError(f"The config file {file} does not exist.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The config file {file} could not be read: {error}.") from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" line {where.line + 1}" if where else ""
        raise ConfigError(
            f"{file}{line} is not valid YAML: {getattr(error, 'problem', error)}."
        ) from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{file} holds {type(tree).__name__}, not a mapping of keys to values.")
    return tree


def _parse(override: str) -> tuple[str, Any]:
    path, equals, text = override.partition("=")
    if not equals or not path:
        raise ConfigError(
            f'"{override}" is not an override; write key=value, for example learn.learning_rate=1e-4.'
        )
    try:
        return path.strip(), yaml.safe_load(text) if text else ""
    except yaml.YAMLError:
        return path.strip(), text


def _assign(tree: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        below = tree.setdefault(parent, {})
        if not isinstance(below, dict):
            below = tree[parent] = {}
        tree = below
    tree[last] = value


def _lay_over(tree: dict[str, Any], over: Mapping[str, Any]) -> None:
    """Sections are merged key by key, everything else replaced. A section that names its entries
    freely (task.options, reward.terms) is replaced whole: half of another's would make no sense.
    A dotted name (learn.kl_coef) sets that one key."""
    for name, value in over.items():
        if isinstance(name, str) and "." in name:
            _assign(tree, name, value)
        elif isinstance(value, Mapping) and isinstance(tree.get(name), dict) and name not in FREE:
            _lay_over(tree[name], value)
        else:
            tree[name] = dict(value) if isinstance(value, Mapping) else value


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        yield f"{prefix}{name}", value
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")


def _sentence(error: dict[str, Any], origin: Mapping[str, str], fallback: str) -> str:
    """One pydantic error as: where, what, and what to do."""
    path = ".".join(str(part) for part in error["loc"])
    known = [p for p in origin if path == p or path.startswith(p + ".")]
    where = origin[max(known, key=len)] if known else fallback
    if error["type"] == "extra_forbidden":
        keys = [key for key, *_ in describe()]
        sections = sorted({key.rpartition(".")[0] for key in keys} - {""})
        parent = path.rpartition(".")[0]
        here = [k for k in keys + sections if k.rpartition(".")[0] == parent]
        return f'{where}: there is no key "{path}".{_suggest(path, here, keys)}'
    return f'{where}: "{path}" is {error["input"]!r}: {error["msg"]}.'


def _suggest(path: str, here: list[str], everywhere: list[str]) -> str:
    """A key of that very name elsewhere, or the nearest one beside it."""
    name = path.rpartition(".")[2]
    same = [k for k in everywhere if k.rpartition(".")[2] == name]
    if same:
        return f' Did you mean "{same[0]}"?'
    beside = {k.rpartition(".")[2]: k for k in here}
    close = difflib.get_close_matches(name, sorted(beside), n=1)
    return (
        f' Did you mean "{beside[close[0]]}"?' if close else f" Known: {', '.join(sorted(here))}."
    )
