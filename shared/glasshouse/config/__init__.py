"""The typed config of a run: YAML files, then dotted overrides (`learn.learning_rate=1e-4`).

schema.py       the sections and keys, each with its description
loading.py      builds a `Config` from files and overrides; errors name the key and suggest the nearest
imports.py      imports the modules of the key `imports`
yaml_files.py   reads and writes YAML 1.2, with limits: no aliases, repeated keys or deep nesting
rendering.py    a `Config` as YAML, as dotted keys, as a diff; the description of every key
"""

from glasshouse.config.imports import import_modules, script_import
from glasshouse.config.loading import (
    Layer,
    Overrides,
    load_config,
    merge_layers,
    override_config,
    resolve_layers,
)
from glasshouse.config.rendering import describe_keys, diff_configs, flatten, to_yaml
from glasshouse.config.schema import (
    ChatConfig,
    CheckpointConfig,
    Config,
    DataConfig,
    DiagnosticsConfig,
    EvaluateConfig,
    GenerateConfig,
    HostsConfig,
    LearnConfig,
    MonarchConfig,
    MonitorConfig,
    RewardConfig,
    RolloutLogConfig,
    Section,
    TaskConfig,
)
from glasshouse.config.yaml_files import dump_yaml, flatten_keys, parse_yaml, read_yaml_file

__all__ = [
    "ChatConfig",
    "CheckpointConfig",
    "Config",
    "DataConfig",
    "DiagnosticsConfig",
    "EvaluateConfig",
    "GenerateConfig",
    "HostsConfig",
    "Layer",
    "LearnConfig",
    "MonarchConfig",
    "MonitorConfig",
    "Overrides",
    "RewardConfig",
    "RolloutLogConfig",
    "Section",
    "TaskConfig",
    "describe_keys",
    "diff_configs",
    "dump_yaml",
    "flatten",
    "flatten_keys",
    "import_modules",
    "load_config",
    "merge_layers",
    "override_config",
    "parse_yaml",
    "read_yaml_file",
    "resolve_layers",
    "script_import",
    "to_yaml",
]
