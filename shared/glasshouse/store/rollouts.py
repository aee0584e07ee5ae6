"""The record: every prompt sent and every completion received, whole.

One file a kind (`train.jsonl.zst`, `validation.jsonl.zst`). Each step is one zstd frame of JSON
lines with a checksum of its own, and a line in `manifest.jsonl` that says where it lies and how
many rows it has. The manifest's line is written after the frame, so that a frame without a line
is the tail of a crash.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import zstandard

from glasshouse.types import Rollout

LEVEL = 3


class RolloutLog:
    """Appends steps to a run's record.

    Example:
        log = RolloutLog(run / "results" / "rollouts")
        log.append("train", step=1, rollouts=rollouts)
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)

    def append(self, kind: str, step: int, rollouts: Sequence[Rollout]) -> int:
        """Write one step as one frame; returns the bytes it took."""
        text = "".join(json.dumps(row(r), ensure_ascii=False) + "\n" for r in rollouts)
        frame = self.compressor.compress(text.encode("utf-8", "surrogatepass"))
        path = self.folder / f"{kind}.jsonl.zst"
        offset = path.stat().st_size if path.exists() else 0
        _append(path, frame)
        entry = {
            "kind": kind,
            "step": step,
            "rows": len(rollouts),
            "offset": offset,
            "bytes": len(frame),
        }
        _append(self.folder / "manifest.jsonl", (json.dumps(entry) + "\n").encode())
        return len(frame)

    def position(self) -> dict[str, Any]:
        manifest = self.folder / "manifest.jsonl"
        lines = manifest.read_text().splitlines() if manifest.exists() else []
        sizes = {p.name.split(".")[0]: p.stat().st_size for p in self.folder.glob("*.jsonl.zst")}
        return {"lines": len(lines), "bytes": sizes}

    def rewind(self, position: dict[str, Any]) -> None:
        manifest = self.folder / "manifest.jsonl"
        if manifest.exists():
            lines = manifest.read_text().splitlines(keepends=True)[: position.get("lines", 0)]
            manifest.write_text("".join(lines))
        for path in self.folder.glob("*.jsonl.zst"):
            os.truncate(path, position.get("bytes", {}).get(path.name.split(".")[0], 0))


def read(folder: Path, kind: str, after: int = -1) -> Iterator[dict[str, Any]]:
    """The rows of one kind, in order, as the manifest promises them; only steps after `after`."""
    manifest = folder / "manifest.jsonl"
    decompressor = zstandard.ZstdDecompressor()
    with open(folder / f"{kind}.jsonl.zst", "rb") as file:
        for line in manifest.read_text().splitlines():
            entry = json.loads(line)
            if entry["kind"] != kind or entry["step"] <= after:
                continue
            file.seek(entry["offset"])
            text = decompressor.decompress(file.read(entry["bytes"])).decode(
                "utf-8", "surrogatepass"
            )
            rows = [json.loads(r) for r in text.split("\n")[:-1]]  # splitlines breaks at U+2028 too
            if len(rows) != entry["rows"]:
                raise ValueError(
                    f"{kind} step {entry['step']}: {len(rows)} rows, {entry['rows']} promised"
                )
            yield from rows


def row(rollout: Rollout) -> dict[str, Any]:
    """A rollout as JSON values; log-probabilities keep all that float32 holds."""
    p, c, g = rollout.problem, rollout.completion, rollout.grade
    return {
        "step": rollout.step,
        "split": rollout.split,
        "group": rollout.group,
        "sample": rollout.sample,
        "task": p.task,
        "key": p.key,
        "level": p.level,
        "question": p.question,
        "gold": p.answer,
        "prompt": rollout.prompt_text,
        "completion": rollout.text,
        "stop": c.stop.value,
        "reward": g.reward,
        "parts": dict(g.parts),
        "correct": g.correct,
        "lenient": g.lenient,
        "strict": g.strict,
        "tagged": g.tagged,
        "answer": g.extracted.value,
        "rule": g.extracted.rule.value,
        "ambiguous": g.extracted.ambiguous,
        "advantage": rollout.advantage,
        "version": c.version,
        "prompt_tokens": list(rollout.prompt_tokens),
        "tokens": list(c.tokens),
        "logprobs": [float(f"{x:.9g}") for x in c.logprobs],
        "time": rollout.time,
    }


def _append(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
