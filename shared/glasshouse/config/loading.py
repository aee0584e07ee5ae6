"""Reads YAML files and overrides into a `Config`, describes its keys, and renders it as YAML or as a diff.

The values are those of YAML 1.2: `010` is 10, `1e-3` is a number; `1:30`, `yes` and 2026-01-31 are texts.
Refused, so that no file can exhaust memory or set a value unnoticed: repeated keys, aliases (`*name`, which
can expand to any size), tags (`!!binary`), deep nesting, huge integers. docs/runs.md lists the limits.
"""

from __future__ import annotations

import copy
import difflib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from yaml import YAMLError

from glasshouse.config.schema import FREE_FORM_SECTIONS, Config, Section
from glasshouse.errors import ConfigError, plain_reason
from glasshouse.files import read_regular_file

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
        if file.is_file() and file.stat().st_size > MAX_CONFIG_BYTES:
            raise ConfigError(
                f"The config file {file} is larger than {MAX_CONFIG_BYTES:,} bytes. Is it a config file? "
                "Put problems into a problem file (data.file, evaluate.file)."
            )
        content = parse_yaml(read_regular_file(file).decode())
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


MAX_SHOWN_ERRORS = 20

Overrides = Mapping[str, Any] | Sequence[str]
"""Values by dotted key, as in `{"learn.learning_rate": 1e-4}`, or texts as on the command line."""
Layer = tuple[str, Overrides]
"""The source for error messages, and its values; those of a file are a nested mapping."""


def load_config(files: str | Path | Sequence[str | Path] = (), overrides: Overrides = ()) -> Config:
    """Merges the defaults, the files and the overrides, in this order.

    Example: `load_config("training/example.rl/config.yaml", {"learn.learning_rate": 1e-4, "seed": 3})`
    """
    if isinstance(files, Mapping):
        raise ConfigError("load_config takes files first: write load_config(overrides={…}).")
    named = [files] if isinstance(files, str | Path) else files
    layers: list[Layer] = [(str(file), read_yaml_file(Path(file))) for file in named]
    return resolve_layers([*layers, *_name_overrides(overrides)])


def override_config(config: Config, overrides: Overrides) -> Config:
    """The config with some keys replaced, validated as a whole.

    Example: `override_config(config, {"seed": 1, "out": "runs/seed-1"})`
    """
    return resolve_layers(
        [("the config", config.model_dump(mode="json")), *_name_overrides(overrides)]
    )


def _name_overrides(overrides: Overrides) -> list[Layer]:
    name = "the overrides" if isinstance(overrides, Mapping) else "the command line"
    return [(name, overrides)] if overrides else []


def resolve_layers(layers: Sequence[Layer]) -> Config:
    """Merges the defaults and the layers, in this order, and validates the result.

    Example: `resolve_layers([("a study", {"steps": 40}), ("the arm kl", {"learn.kl_coef": 0.3})])`
    """
    try:
        return Config.model_validate(merge_layers([layer for _, layer in layers]))
    except ValidationError as error:
        raise ConfigError(_format_errors(error.errors(), layers)) from None


def merge_layers(layers: Sequence[Overrides]) -> dict[str, Any]:
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
    except YAMLError:
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


def _format_errors(errors: Sequence[Any], layers: Sequence[Layer]) -> str:
    """One line per error of pydantic: which layer, which key, what is wrong, what to do."""
    origins: dict[str, str] = {}
    for name, layer in layers:
        pairs = flatten_keys(layer) if isinstance(layer, Mapping) else map(_parse_override, layer)
        origins |= {path: name for key, _ in pairs for path in _paths_to(key)}
    lines = []
    for error in errors[:MAX_SHOWN_ERRORS]:
        key = ".".join(map(str, error["loc"]))
        origin = [origins[path] for path in _paths_to(key) if path in origins] or [layers[-1][0]]
        lines.append(f"{origin[-1]}: {_explain(error, key)}")
    if len(errors) > MAX_SHOWN_ERRORS:
        lines.append(f"… and {len(errors) - MAX_SHOWN_ERRORS:,} more errors.")
    return "\n".join(lines)


def _explain(error: Mapping[str, Any], key: str) -> str:
    if error["type"] == "extra_forbidden":
        inner = error["input"]  # of an unknown section, name its first key
        path = next(flatten_keys({key: inner if isinstance(inner, Mapping) else None}))[0]
        return f'there is no key "{path}".{_suggest_key(path)}'
    reason = plain_reason(str(error["msg"]))
    if error["type"] in ("model_type", "dict_type"):
        example = next((k for k, *_ in describe_keys() if k.startswith(f"{key}.")), f"{key}.name")
        reason = f"this is a section; set its keys, as in {example}=…, or write a mapping"
    return f'"{key}" is {error["input"]!r:.200}: {reason}.'


SYNONYMS = {
    "learn.learning_rate": "lr rate step_size",
    "data.groups_per_step": "batch batch_size bs train_batch_size num_prompts prompts_per_step",
    "generate.group_size": "num_generations num_samples samples_per_prompt rollouts_per_prompt num_return_sequences",
    "generate.max_tokens": "max_new_tokens max_completion_length max_length response_length max_response_length",
    "generate.temperature": "temp sampling_temperature",
    "generate.engine": "use_vllm sampler rollout_engine",
    "learn.kl_coef": "beta kl kl_beta kl_loss_coef kl_penalty init_kl_coef",
    "learn.clip_low": "epsilon eps clip clip_range cliprange clip_ratio epsilon_low clip_ratio_low",
    "learn.clip_high": "epsilon_high clip_ratio_high",
    "learn.entropy_coef": "entropy entropy_bonus ent_coef",
    "learn.max_grad_norm": "grad_clip clip_grad_norm gradient_clip gradient_clipping",
    "learn.epochs_per_batch": "num_iterations ppo_epochs mu num_epochs epochs",
    "learn.lr_schedule": "scheduler lr_scheduler lr_scheduler_type",
    "learn.warmup_steps": "warmup lr_warmup_steps num_warmup_steps",
    "learn.microbatch_tokens": "micro_batch_size per_device_train_batch_size gradient_accumulation_steps",
    "learn.activation_checkpointing": "gradient_checkpointing",
    "learn.lora_rank": "lora r rank use_peft",
    "learn.algorithm": "algo loss loss_type adv_estimator",
    "steps": "num_steps max_steps num_train_steps total_steps iterations num_train_epochs training_steps",
    "seed": "random_seed rng_seed",
    "model": "model_name model_name_or_path base_model model_path base",
    "out": "output_dir output save_dir run_dir out_dir path",
    "dtype": "bf16 fp16 torch_dtype precision",
    "trackers": "report_to logger wandb tracker",
    "log_every": "logging_steps log_interval log_freq",
    "task.name": "environment env task_name dataset dataset_name",
    "data.file": "train_file train_files data_path",
    "evaluate.file": "eval_file val_files eval_dataset test_file",
    "evaluate.every": "eval_steps eval_every eval_interval test_freq eval_freq",
    "evaluate.problems": "eval_samples eval_size num_eval eval_batch_size max_eval_samples",
    "checkpoints.every": "save_steps save_every save_freq save_interval",
    "checkpoints.keep": "save_total_limit max_checkpoints",
    "reward.terms": "rewards reward_funcs reward_function reward_fn",
    "reward.penalties": "penalty",
    "monarch.generators": "num_generators num_workers",
}
"""What other trainers call a key, for the error about an unknown one."""
_KEY_OF = {word: key for key, words in SYNONYMS.items() for word in words.split()}


def _suggest_key(key: str) -> str:
    """Suggests the key of the same name, the one that other trainers call so, or the nearest one."""
    section, _, name = key.rpartition(".")
    keys = [k for k, *_ in describe_keys()]
    same = [k for k in keys if k.rpartition(".")[2] == name]
    paths = {path: path for k in keys for path in _paths_to(k)}
    if same or name.lower() in _KEY_OF:
        near = difflib.get_close_matches(key, same or [_KEY_OF[name.lower()]], n=1, cutoff=0)
    else:
        near = difflib.get_close_matches(key, paths, n=1, cutoff=0.75)
    if near:
        return f' Did you mean "{near[0]}"?'
    words = _KEY_OF | {k.rpartition(".")[2]: k for k in keys}
    for word in difflib.get_close_matches(name, words, n=1, cutoff=0.75):
        return f' Did you mean "{words[word]}"?'
    siblings = sorted(path for path in paths if path.rpartition(".")[0] == section)
    return f" Known: {', '.join(siblings or sorted(p for p in paths if '.' not in p))}."


def _paths_to(key: str) -> Iterator[str]:
    """Example: "hosts.slurm.gpus" gives "hosts", "hosts.slurm" and "hosts.slurm.gpus"."""
    return itertools.accumulate(key.split("."), "{}.{}".format)


# --- rendering -----------------------------------------------------------------------------


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
