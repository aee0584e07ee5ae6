"""Reads the metrics of a run back from each tracker's own files, as [(name, step, value)]."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

Metrics = list[tuple[str, int, float]]


def read_tensorboard(run: Path) -> Metrics:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    files = EventAccumulator(str(run / "track" / "tensorboard"), size_guidance={"scalars": 0})
    files.Reload()
    return [
        (name, event.step, event.value)
        for name in files.Tags()["scalars"]
        for event in files.Scalars(name)
    ]


def read_trackio(run: Path) -> Metrics:
    from trackio.sqlite_storage import SQLiteStorage

    suffix = (run / "track" / "id").read_text()[:6]
    names = [name for name in SQLiteStorage.get_runs("glasshouse") if name.endswith(suffix)]
    assert len(names) == 1
    return [
        (name, row["step"], value)
        for row in SQLiteStorage.get_logs("glasshouse", names[0])
        for name, value in row.items()
        if "/" in name
    ]


def read_mlflow(run: Path) -> Metrics:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{run.parent / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("glasshouse")
    tag = (run / "track" / "id").read_text().strip()
    (tracked,) = client.search_runs([experiment.experiment_id], f"tags.glasshouse_id = '{tag}'")
    return [
        (name, metric.step, metric.value)
        for name in tracked.data.metrics
        if not name.startswith("summary/")
        for metric in client.get_metric_history(tracked.info.run_id, name)
    ]


def read_wandb(run: Path) -> Metrics:
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = (run / "track" / "wandb").glob("offline-run-*/*.wandb")
    metrics = []
    for data in _leveldb_records(file.read_bytes()):
        items = Record.FromString(data).history.item
        row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
        for kind in ("train", "evaluate"):
            step = row.get(f"{kind}/step")
            metrics += [(name, step, row[name]) for name in row if name.startswith(f"{kind}/")]
    return metrics


def _leveldb_records(data: bytes) -> Iterator[bytes]:
    """Split W&B's file, a LevelDB log: blocks of 32 kB, with records split at the block ends."""
    position, block, full, last = 7, 32768, 1, 4
    parts = b""
    while position + 7 <= len(data):
        if block - position % block < 7:
            position += block - position % block
            continue
        _, size, kind = struct.unpack("<IHB", data[position : position + 7])
        parts += data[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (full, last):
            yield parts
            parts = b""
