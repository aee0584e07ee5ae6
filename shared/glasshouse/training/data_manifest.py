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
from glasshouse.tasks.base import Task
from glasshouse.tasks.streams import FixedProblems, ProblemStream, Split

TEST_PROBLEMS = 1000


def describe_data(
    config: Config, task: Task[Any], problems: ProblemStream, validation_problems: int
) -> dict[str, Any]:
    """Return the manifest: one entry per split. The run adds the number of problems drawn."""
    data = config.data
    train: dict[str, Any] = {"source": data.source, "seed": config.seed}
    if isinstance(problems, FixedProblems):
        train["problems"] = len(problems.problems)
    if data.source == "fixed" and data.file:
        train |= _describe_file(data.file, config)
    else:
        train |= _describe_generator(task, Split.TRAIN)
        if config.task.schedule:
            train["schedule"] = config.model_dump(mode="json")["task"]["schedule"]
    validation: dict[str, Any] = {"problems": validation_problems}
    if validation_problems:
        validation["file"] = "data/validation.jsonl"
    if config.evaluate.file:
        validation["source"] = _describe_file(config.evaluate.file, config)
    else:
        generator = _describe_generator(task, Split.VALIDATION)
        validation["source"] = generator | {"seed": config.evaluate.seed}
    test = {
        **_describe_generator(task, Split.TEST),
        "note": "not used by the run; problems of the test split are never trained or evaluated on",
        "create": shlex.join(_test_command(config)),
    }
    return {"train": train, "validation": validation, "test": test}


def _describe_generator(task: Task[Any], split: Split) -> dict[str, Any]:
    options = task.options.model_dump(mode="json")
    return {"task": task.name, "options": options, "split": split.value}


def _describe_file(name: str, config: Config) -> dict[str, Any]:
    path = Path(name.format(task=config.task.name))
    return {"file": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def _test_command(config: Config) -> list[str]:
    options = [f"{name}={json.dumps(value)}" for name, value in config.task.options.items()]
    return [
        "glasshouse", "tasks", "generate", "--task", config.task.name, "--split", "test",
        "--count", str(TEST_PROBLEMS), "--out", "test.jsonl",
        *(part for name in config.imports for part in ("--imports", name)),
        *(["--options", *options] if options else []),
    ]  # fmt: skip
