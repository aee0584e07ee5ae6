"""`data/manifest.json` of a run directory: where its training, validation and test problems come from.

Fresh training problems are not stored: the task, its options, the seed and the number drawn reproduce
them.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path
from typing import Any

from glasshouse.config.schema import Config
from glasshouse.tasks.splits import Split
from glasshouse.tasks.streams import FixedProblems
from glasshouse.training.build import TrainingParts

TEST_PROBLEMS = 1000


def describe_data(parts: TrainingParts) -> dict[str, Any]:
    """Return the manifest: one entry per split. The trainer adds the number of problems drawn."""
    config, data = parts.config, parts.config.data
    train: dict[str, Any] = {"source": data.source, "seed": config.seed}
    if isinstance(parts.problems, FixedProblems):
        train["problems"] = len(parts.problems.problems)
    if data.source == "fixed" and data.file:
        train |= _describe_file(data.file, config)
    else:
        train |= _describe_generator(parts, Split.TRAIN)
        if config.task.schedule:
            train["schedule"] = config.model_dump(mode="json")["task"]["schedule"]
    validation: dict[str, Any] = {"problems": len(parts.held_out)}
    if parts.held_out:
        validation["file"] = "data/evaluation.jsonl"
    if config.evaluate.file:
        validation["source"] = _describe_file(config.evaluate.file, config)
    else:
        generator = _describe_generator(parts, Split.VALIDATION)
        validation["source"] = generator | {"seed": config.evaluate.seed}
    test = {
        **_describe_generator(parts, Split.TEST),
        "note": "not used by the run; problems of the test split are never trained or evaluated on",
        "create": shlex.join(_test_command(config)),
    }
    return {"train": train, "validation": validation, "test": test}


def _describe_generator(parts: TrainingParts, split: Split) -> dict[str, Any]:
    options = parts.task.options.model_dump(mode="json")
    return {"task": parts.task.name, "options": options, "split": split.value}


def _describe_file(name: str, config: Config) -> dict[str, Any]:
    path = Path(name.format(task=config.task.name))
    return {"file": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def _test_command(config: Config) -> list[str]:
    options = [f"{name}={json.dumps(value)}" for name, value in config.task.options.items()]
    return [
        "glasshouse", "data", "generate", "--task", config.task.name, "--split", "test",
        "--count", str(TEST_PROBLEMS), "--out", "test.jsonl",
        *(part for name in config.imports for part in ("--imports", name)),
        *(["--options", *options] if options else []),
    ]  # fmt: skip
