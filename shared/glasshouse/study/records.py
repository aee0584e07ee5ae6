"""What a run of a study was made from and where: one record per run in the table, and which runs need no repetition."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from glasshouse.files import compute_checksum
from glasshouse.models.folders import find_model

if TYPE_CHECKING:
    from glasshouse.study.spec import StudyRun

Record = Mapping[str, Any]
NO_EFFECT = {"out", "threads", "log_every", "trackers", "model"}
"""Config keys on which no result depends; the model is that of the study's base, which has its own hash."""
MODEL_FILES = (
    "*.safetensors",
    "config.json",
    "tokenizer*",
    "chat_template*",
    "merges.txt",
    "vocab.*",
)


def hash_content(content: Mapping[str, Any]) -> str:
    """SHA-256 of the content as JSON with sorted keys: independent of comments, order and layout.

    Example: `hash_content({"seeds": [0, 1]})` starts with "c20d".
    """
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def hash_settings(run: StudyRun) -> str:
    """SHA-256 of everything that a run's results depend on, but the weights of its base."""
    values = run.config.model_dump(mode="json")
    prepared = run.preparation and run.preparation.model_dump(mode="json")
    known = {key: own for key, own in values.items() if key not in NO_EFFECT}
    if known["evaluate"]["temperature"] == 1:  # the key is newer than some published tables
        del known["evaluate"]["temperature"]
    return hash_content(known | {"prepare": prepared})


def hash_model(name: str) -> str:
    """SHA-256 over the files of a model's folder that change what it computes; empty for a hub's model."""
    folder = find_model(name)
    if folder is None:
        return ""
    files = sorted({file for pattern in MODEL_FILES for file in folder.glob(pattern)})
    return hash_content({file.name: compute_checksum(file)["sha256"] for file in files})


def describe_run(run: StudyRun) -> dict[str, Any]:
    """The record of a run that this process has trained."""
    from glasshouse.models.sources import hash_sources, software_versions, source_commit

    versions = software_versions()
    return {
        "config": hash_settings(run),
        "model": hash_model(run.base),
        "path": hash_sources(run.config, ())["generate.engine"]["compute path"],
        "cpu": versions.pop("machine"),
        "versions": versions,
        "commit": source_commit(),
    }


def is_same_run(record: Record, run: StudyRun) -> bool:
    """Whether a record is that of a run with this configuration and base."""
    return record["config"] == hash_settings(run) and record["model"] == hash_model(run.base)


def gives_same_bits(one: Record | None, other: Record | None) -> bool:
    """Whether two executions of a run must agree bit for bit: by the kernel on any CPU, by torch only with the same
    software on the same kind of CPU. Unknown is no."""
    if not one or not other or one["path"] != other["path"]:
        return False
    if "kernel" in one["path"]:
        return bool(one["versions"]["glasshouse"] == other["versions"]["glasshouse"])
    return bool(one["versions"] == other["versions"] and one["cpu"] == other["cpu"])
