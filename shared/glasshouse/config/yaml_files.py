"""Reads and writes YAML: the only module that does.

The values are those of YAML 1.2: `010` is 10, `1e-3` is a number; `1:30`, `yes` and 2026-01-31 are texts.
Refused, so that no file can exhaust memory or set a value unnoticed: repeated keys, aliases (`*name`, which
can expand to any size), tags (`!!binary`), deep nesting, huge integers. docs/runs.md lists the limits.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from glasshouse.errors import ConfigError

MAX_CONFIG_BYTES = 100_000
"""A config file has about 3,000."""
MAX_DEPTH = 32
MAX_INTEGER_DIGITS = 100

PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
WORDS = {"": None, "~": None} | {
    spelling: value
    for word, value in (("null", None), ("true", True), ("false", False))
    for spelling in (word, word.capitalize(), word.upper())
}
INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
SURROGATE = re.compile("[\ud800-\udfff]")
"""Code points that UTF-8 cannot encode."""


class RefusedYAML(yaml.MarkedYAMLError):
    """Valid YAML that is not allowed here."""


class Dumper(yaml.SafeDumper):
    """Writes a repeated value twice instead of an alias, and quotes texts that YAML 1.1 or 1.2 would read
    as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(f"({INTEGER.pattern}|{FLOAT.pattern})$"),
    list("-+.0123456789"),
)


def read_yaml_file(file: Path) -> dict[str, Any]:
    """Reads a YAML file whose top level is a mapping."""
    try:
        if not file.is_file() and file.exists():  # opening a FIFO would wait forever
            what = "a folder" if file.is_dir() else "not a regular file"
            raise ConfigError(f"The config file {file} is {what}. Name a YAML file.")
        with open(file, "rb") as stream:
            data = stream.read(MAX_CONFIG_BYTES + 1)
        if len(data) > MAX_CONFIG_BYTES:
            raise ConfigError(
                f"The config file {file} is larger than {MAX_CONFIG_BYTES:,} bytes. Is it a config file? "
                "Put problems into a problem file (data.file, evaluate.file)."
            )
        content = parse_yaml(data.decode())
    except FileNotFoundError:
        raise ConfigError(f"The config file {file} does not exist.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The config file {file} could not be read: {error}.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        what = "" if isinstance(error, RefusedYAML) else " is not valid YAML"
        raise ConfigError(f"{file}{line}{what}: {getattr(error, 'problem', error)}.") from None
    if not isinstance(content, dict | None):
        raise ConfigError(
            f"{file} contains a {type(content).__name__}; write a mapping of keys to values."
        )
    return content or {}


def parse_yaml(text: str) -> Any:
    """Parses a YAML document. Raises a `yaml.YAMLError`; a `RefusedYAML` if it is valid but not allowed."""
    events = (
        event
        for event in yaml.parse(text, PARSER)
        if isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent)
    )
    first = next(events, None)
    value = _build(first, events, depth=0) if first else None
    for event in events:
        raise _refuse("it has more than one document; write one file for each", event)
    return value


def dump_yaml(content: Any, *, width: int = 80, flow: bool = False) -> str:
    """The content as YAML, in its order; with `flow` in brackets, on one line if it is short."""
    options: dict[str, Any] = {"width": width, "sort_keys": False, "allow_unicode": True}
    return str(yaml.dump(content, Dumper=Dumper, default_flow_style=flow, **options))


def flatten_keys(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All (dotted key, value) pairs; an empty section is a pair with the value `{}`."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flatten_keys(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _build(event: Any, events: Iterator[Any], depth: int) -> Any:
    """The value that begins with this event; its other events are taken from `events`."""
    if isinstance(event, yaml.AliasEvent):
        raise _refuse(f"the alias *{event.anchor} is not allowed; write its value out", event)
    if event.tag is not None:
        raise _refuse(f"the tag {event.tag} is not allowed; remove it", event)
    if depth > MAX_DEPTH:
        raise _refuse(f"it is nested more than {MAX_DEPTH} levels deep", event)
    if isinstance(event, yaml.ScalarEvent):
        return _read_scalar(event)
    inner = itertools.takewhile(lambda e: not isinstance(e, yaml.CollectionEndEvent), events)
    if isinstance(event, yaml.SequenceStartEvent):
        return [_build(item, events, depth + 1) for item in inner]
    mapping: dict[Any, Any] = {}
    for name in inner:
        key = _build(name, events, depth + 1)
        if isinstance(key, list | dict):
            raise _refuse("a list or a mapping cannot be a key", name)
        if key in mapping:
            raise _refuse(f'the key "{key}" is repeated; remove one of the two', name)
        mapping[key] = _build(next(events), events, depth + 1)
    if any("." in str(key) for key in mapping):  # `learn.kl_coef: 1` beside a section `learn`
        paths = sorted(f"{path}." for path, _ in flatten_keys(mapping))
        for path, longer in itertools.pairwise(paths):
            if longer.startswith(path):
                raise _refuse(f'"{longer[:-1]}" is set twice; remove one of the two', event)
    return mapping


def _read_scalar(event: Any) -> Any:
    text: str = event.value
    if SURROGATE.search(text):
        raise _refuse("it contains a lone surrogate, which is not valid Unicode", event)
    if not event.implicit[0]:  # quoted
        return text
    if text in WORDS:
        return WORDS[text]
    if INTEGER.fullmatch(text):
        if len(text) > MAX_INTEGER_DIGITS:
            raise _refuse(f"an integer has more than {MAX_INTEGER_DIGITS} digits", event)
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if FLOAT.fullmatch(text):
        return float(re.sub(r"\.(?=[a-zA-Z])", "", text))  # .inf and .nan
    return text


def _refuse(problem: str, source: Any) -> RefusedYAML:
    return RefusedYAML(problem=problem, problem_mark=source.start_mark)
