"""A study: its questions with effect, interval, null and verdict, and the curves behind them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from glasshouse.checksums import read_regular_file
from glasshouse.view.run_measures import describe_measure

MAX_BYTES = 50_000_000


def load_study_results(folder: Path) -> dict[str, Any]:
    """results/study.json with the label of each measure; `problem` says why it cannot be shown."""
    file = folder / "results" / "study.json"
    try:
        data = read_regular_file(file)
        if len(data) > MAX_BYTES:
            return {"problem": f"results/study.json is larger than {MAX_BYTES:,} bytes."}
        content = json.loads(data)
        if not isinstance(content, dict) or not isinstance(content.get("questions"), list):
            return {"problem": "results/study.json does not hold the questions of a study."}
    except FileNotFoundError:
        return {
            "problem": "This study has no analysis yet: `glasshouse study` writes it after its last run. "
            "Its runs can be compared before that."
        }
    except (OSError, ValueError, RecursionError) as error:
        return {"problem": f"results/study.json cannot be read: {error}."}
    names = {curve.get("measure") for curve in content.get("curves", [])}
    names |= {question.get("measure") for question in content["questions"]}
    content["measures"] = {str(name): describe_measure(str(name)) for name in names if name}
    content["problem"] = ""
    return content
