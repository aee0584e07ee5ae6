"""The rollouts that `glasshouse monitor` sampled, as rows of the same shape as the rollout log's.

monitor_rows.jsonl.zst has one frame per monitored model, with rows of several kinds: rollouts of
the interventions, rollouts of an organism's two arms, and the output of every monitor on them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import zstandard

from glasshouse.errors import RunDataError
from glasshouse.runs.monitor_results import ROWS_FILE
from glasshouse.runs.rows import Row, decode_rows, to_row
from glasshouse.types import Completion, Extracted, Grade, Problem, Rollout

MAX_FRAME_BYTES = 1_000_000_000


def read_monitored_rollouts(results: Path, entry: Mapping[str, Any]) -> list[Row]:
    """The rollouts of one monitored model; raise RunDataError if its frame is damaged."""
    location = entry["rows"]
    path = results / ROWS_FILE
    try:
        if not path.is_file():
            raise RunDataError(f"{ROWS_FILE} is missing")
        with open(path, "rb") as file:
            file.seek(location["offset"])
            frame = file.read(location["bytes"])
        if hashlib.sha256(frame).hexdigest() != location["sha256"]:
            raise RunDataError("the sha256 of the frame is wrong")
        size = min(int(location["raw"]), MAX_FRAME_BYTES)
        data = zstandard.ZstdDecompressor().decompress(frame, max_output_size=size)
        return assemble_rollouts(decode_rows(data))
    except OSError as error:
        raise RunDataError(f"{ROWS_FILE} cannot be read: {error.strerror}") from None
    except (zstandard.ZstdError, ValueError, KeyError, TypeError) as error:
        raise RunDataError(f"the frame cannot be decoded: {error}") from None


def assemble_rollouts(rows: Sequence[Row]) -> list[Row]:
    """Join each rollout with the outputs of the monitors that scored it."""
    rollouts: dict[tuple[Any, ...], Row] = {}
    outputs: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        arm = row.get("planted")
        if "monitor" in row:
            place = (_source(row["evaluation"]), arm, row["key"], row["sample"])
            outputs.setdefault(place, {})[_monitor_name(row)] = {
                "score": row.get("score"),
                "flagged": row.get("flagged"),
                "reason": row.get("reason", ""),
            }
        elif (
            row.get("intervention") == "none" or {"question", "text", "model_answer"} <= row.keys()
        ):
            place = (_source(row["evaluation"]), arm, row["key"], row["sample"])
            rollouts.setdefault(place, row)
    groups: dict[tuple[Any, ...], int] = {}
    assembled = []
    for place, row in rollouts.items():
        group = groups.setdefault(place[:3], len(groups))
        assembled.append(_to_log_row(row, group, outputs.get(place, {})))
    return assembled


def _source(evaluation: str) -> str:
    """The monitors of a task without a planted behaviour score the rollouts of the interventions."""
    return "interventions" if evaluation == "monitors" else evaluation


def _monitor_name(row: Row) -> str:
    return str(row["monitor"])


def _to_log_row(row: Row, group: int, verdicts: dict[str, Any]) -> Row:
    """The row of a rollout of which more is unknown, with the monitors' verdicts."""
    arm = {0: "control", 1: "planted"}.get(row.get("planted", -1), "")
    reward, behaviour = row.get("reward"), row.get("behaviour")
    question: str = row.get("question", "")
    rollout = Rollout(
        step=row["step"],
        split=f"monitored/{arm or row['evaluation']}",
        arm=arm,
        group=group,
        sample=row["sample"],
        checkpoint=row["checkpoint"],
        problem=Problem(
            task="", key=row["key"], question=question, gold_answer=row.get("gold_answer", "")
        ),
        prompt=row.get("prompt") or question,
        text=row["text"],
        completion=Completion(),
        grade=Grade(
            reward=math.nan if reward is None else reward,
            correct=row.get("correct"),
            extracted=Extracted(model_answer=row.get("model_answer")),
        ),
        behaviour=None if behaviour is None else bool(behaviour),
    )
    return to_row(rollout) | {"verdicts": verdicts}
