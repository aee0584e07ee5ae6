"""Labels that a person gave to rollouts on the page, in a file beside the rollouts: never in a run.

    rollouts.jsonl                  runs/try/
    rollouts.jsonl.labels.jsonl     runs/try.labels.jsonl

A label belongs to a prompt and what was written to it: rollouts that are equal have one label, and it stays
theirs when the file is sorted, cut or exported.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path

from glasshouse.errors import RolloutFileError
from glasshouse.files import read_regular_file, write_text

COLUMN = "human_label"
"""What --map calls the labels."""


def labels_file(rollouts: Path) -> Path:
    path = rollouts.resolve()
    return path.with_name(f"{path.name}.labels.jsonl")


def rollout_key(prompt: str, cot: str | None, text: str) -> str:
    """What a label belongs to. A lone surrogate, which JSON may hold, counts as its escape."""
    content = json.dumps([prompt, cot, text])
    return blake2b(content.encode(), digest_size=16).hexdigest()


def read_labels(rollouts: Path) -> dict[str, bool]:
    """The labels of a file or run by the keys of rollouts; empty if there are none."""
    file = labels_file(rollouts)
    labels: dict[str, bool] = {}
    try:
        lines = read_regular_file(file).decode().splitlines()
    except FileNotFoundError:
        return labels
    except (OSError, ValueError) as error:
        raise RolloutFileError(f"{file} cannot be read: {error}.") from None
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            labels[str(row["rollout"])] = {0: False, 1: True}[row["label"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise RolloutFileError(
                f"{file}, line {number}: this is not a label of `glasshouse view`. Mend or remove the line."
            ) from None
    return labels


def write_label(rollouts: Path, key: str, label: bool | None) -> dict[str, bool]:
    """Add, change or (None) remove a label; the file is replaced at once. Returns all labels."""
    labels = read_labels(rollouts)
    labels.pop(key, None)
    if label is not None:
        labels[key] = label
    rows = ({"rollout": key, "label": int(value)} for key, value in labels.items())
    write_text(labels_file(rollouts), "".join(json.dumps(row) + "\n" for row in rows))
    return labels
