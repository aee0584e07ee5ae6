"""What each tracker holds of a run, read back from its own files: [(name, step, value)]."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

Held = list[tuple[str, int, float]]


def tensorboard(run: Path) -> Held:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    files = EventAccumulator(str(run / "track" / "tensorboard"), size_guidance={"scalars": 0})
    files.Reload()
    return [
        (name, event.step, event.value)
        for name in files.Tags()["scalars"]
        for event in files.Scalars(name)
    ]


def trackio(run: Path) -> Held:
    from trackio.sqlite_storage import SQLiteStorage

    end = (run / "track" / "id").read_text()[:6]
    names = [name for name in SQLiteStorage.get_runs("glasshouse") if name.endswith(end)]
    assert len(names) == 1
    return [
        (name, row["step"], value)
        for row in SQLiteStorage.get_logs("glasshouse", names[0])
        for name, value in row.items()
        if "/" in name
    ]


def mlflow(run: Path) -> Held:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{run.parent / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("glasshouse")
    tag = (run / "track" / "id").read_text().strip()
    (found,) = client.search_runs([experiment.experiment_id], f"tags.glasshouse_id = '{tag}'")
    return [
        (name, metric.step, metric.value)
        for name in found.data.metrics
        if not name.startswith("summary/")
        for metric in client.get_metric_history(found.info.run_id, name)
    ]


def wandb(run: Path) -> Held:
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = (run / "track" / "wandb").glob("offline-run-*/*.wandb")
    found = []
    for data in _frames(file.read_bytes()):
        items = Record.FromString(data).history.item
        row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
        for kind in ("train", "evaluate"):
            step = row.get(f"{kind}/step")
            found += [(name, step, row[name]) for name in row if name.startswith(f"{kind}/")]
    return found


def _frames(data: bytes) -> Iterator[bytes]:
    """W&B's file is a LevelDB log: blocks of 32 kB, each frame whole or cut at a block's end."""
    at, block, whole, last = 7, 32768, 1, 4
    parts = b""
    while at + 7 <= len(data):
        if block - at % block < 7:
            at += block - at % block
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (whole, last):
            yield parts
            parts = b""
