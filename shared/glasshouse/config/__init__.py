"""The whole run as one typed tree: a YAML file, then dotted overrides (`learn.learning_rate=1e-4`).

`tree` declares it, every field with its description under it; `reading` makes it from files and
overrides, and answers unknown keys and wrong types with where the key stands and the nearest valid
one; `showing` prints it.
"""

from glasshouse.config.loading import Layer, load, overlaid, read, resolve
from glasshouse.config.rendering import changes, describe, dump, leaves
from glasshouse.config.schema import (
    CheckpointConfig,
    Config,
    DataConfig,
    DiagnosticsConfig,
    EvaluateConfig,
    GenerateConfig,
    HostsConfig,
    KubernetesConfig,
    LearnConfig,
    MonarchConfig,
    MonitorConfig,
    RewardConfig,
    RolloutLogConfig,
    Section,
    SlurmConfig,
    TaskConfig,
)

__all__ = [
    "CheckpointConfig",
    "Config",
    "DataConfig",
    "DiagnosticsConfig",
    "EvaluateConfig",
    "GenerateConfig",
    "HostsConfig",
    "KubernetesConfig",
    "Layer",
    "LearnConfig",
    "MonarchConfig",
    "MonitorConfig",
    "RewardConfig",
    "RolloutLogConfig",
    "Section",
    "SlurmConfig",
    "TaskConfig",
    "changes",
    "describe",
    "dump",
    "leaves",
    "load",
    "overlaid",
    "read",
    "resolve",
]
