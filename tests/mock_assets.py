"""Rebuilds models/mock and datasets/mock, the smallest real assets, for tests.

python tests/mock_assets.py
"""

from __future__ import annotations

import shutil
from pathlib import Path

from glasshouse import tasks
from glasshouse.data import FreshProblems, Split, files
from glasshouse.pocket.build_command import build_pocket_model

ROOT = Path(__file__).resolve().parent.parent
COUNTS = {Split.TRAIN: 24, Split.VALIDATION: 12}


def main() -> None:
    model = ROOT / "models" / "mock"
    shutil.rmtree(model, ignore_errors=True)
    build_pocket_model("mock", model)
    folder = ROOT / "datasets" / "mock"
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*tasks.TASKS, *tasks.ORGANISMS):
        for split, count in COUNTS.items():
            problems = FreshProblems(tasks.make_task(name), split, seed=0).take(count)
            files.write_problem_file(folder / f"{name}.{split.value}.jsonl", problems)


if __name__ == "__main__":
    main()
