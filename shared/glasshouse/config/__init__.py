"""The typed config of a run: YAML files, then dotted overrides (`learn.learning_rate=1e-4`).

schema.py       the sections and keys, each with its description
loading.py      builds a `Config` from files and overrides; errors name the key and suggest the nearest
imports.py      imports the modules of the key `imports`
yaml_parser.py  YAML with limits: no aliases, repeated keys, deep nesting or huge integers
rendering.py    a `Config` as YAML, as dotted keys, as a diff; the description of every key
"""

from glasshouse.config.imports import import_modules, script_import
from glasshouse.config.loading import (
    Layer,
    Overrides,
    load_config,
    merge_layers,
    override_config,
    read_yaml_file,
    resolve_layers,
)
from glasshouse.config.rendering import describe_keys, diff_configs, flatten, flatten_keys, to_yaml
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
    "flatten",
    "flatten_keys",
    "import_modules",
    "load_config",
    "merge_layers",
    "override_config",
    "read_yaml_file",
    "resolve_layers",
    "script_import",
    "to_yaml",
]
