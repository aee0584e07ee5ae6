"""Rebuilds models/mock and datasets/mock, the smallest real assets, for tests.

python tests/mock_assets.py
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from glasshouse.tasks import problem_files as files
from glasshouse.tasks.base import list_tasks, make_task
from glasshouse.tasks.streams import FreshProblems, Split
from glasshouse.training.sft import sft

ROOT = Path(__file__).resolve().parent.parent
COUNTS = {Split.TRAIN: 24, Split.VALIDATION: 12}


def main() -> None:
    model = ROOT / "models" / "mock"
    shutil.rmtree(model, ignore_errors=True)
    sft("", "mock", model)
    sums = [
        f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}\n" for f in sorted(model.iterdir())
    ]
    (model / "SHA256SUMS").write_text("".join(sums))
    folder = ROOT / "datasets" / "mock"
    folder.mkdir(parents=True, exist_ok=True)
    for name in list_tasks():
        for split, count in COUNTS.items():
            problems = FreshProblems(make_task(name), split, seed=0).take(count)
            files.write_problem_file(folder / f"{name}.{split.value}.jsonl", problems)


if __name__ == "__main__":
    main()
