"""A learner that is divided among processes (FSDP2 over gloo) equals one process up to rounding.

proofs/fsdp.py has the larger versions: real models, Monarch's processes, kills.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from tests.learn import sharded_ranks
from tests.learn.sharded_ranks import CASES, make_samples

from glasshouse.config.loading import load_config
from glasshouse.errors import ConfigError
from glasshouse.learn.sharded import plan_rounds
from glasshouse.runs import checkpoints
from glasshouse.runs.checkpoints import list_shards
from glasshouse.training.build import validate_config

pytestmark = pytest.mark.xdist_group("sharded")  # one worker starts the ranks
METRIC_BOUND = 2e-5
WEIGHT_BOUND = 5e-5
"""After two steps of a learning rate of 1e-3. AdamW moves a weight by about the learning rate, however small its
gradient is, so that the rounding of a gradient near 0 shows in the weight."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    sharded_ranks.run_jobs(folder)
    return folder


def results(folder: Path, job: str, world_size: int) -> list[Any]:
    """What each rank reported."""
    names = [f"{job}-{world_size}-{rank}.json" for rank in range(world_size)]
    return [json.loads((folder / name).read_text()) for name in names]


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_equal_one_process_and_hold_half_of_the_weights_each(
    folder: Path, case: str
) -> None:
    for report in results(folder, "equality", 2):
        assert report[case]["weights"] < WEIGHT_BOUND
        assert report[case]["metrics"] < METRIC_BOUND
        assert report[case]["same_metrics"]
        assert report[case]["held"] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_checkpoint_of_two_ranks_resumes_on_another_number(folder: Path, world_size: int) -> None:
    for reports in results(folder, "resume", world_size):
        for report in reports.values():
            assert report["weights"] < WEIGHT_BOUND
            assert report["metrics"] < METRIC_BOUND


def test_shards_are_safetensors_with_every_tensor(folder: Path) -> None:
    checkpoint = folder / "llama-checkpoint"
    assert [path.name for path in list_shards(checkpoint)] == [
        "learner-00001-of-00002.safetensors", "learner-00002-of-00002.safetensors",
    ]  # fmt: skip
    assert {path.suffix for path in checkpoint.iterdir()} == {".safetensors"}
    names = set()
    for shard in list_shards(checkpoint):
        with safe_open(shard, framework="pt") as tensors:
            names |= set(tensors.keys())
    with safe_open(checkpoint / "model.safetensors", framework="pt") as model:
        assert {f"exp_avg/{name}" for name in model.keys()} <= names  # noqa: SIM118


def test_few_prompts_no_samples_and_errors_leave_no_rank_waiting(folder: Path) -> None:
    for report in results(folder, "edges", 2):
        assert report["loss"] < METRIC_BOUND
        assert "loss is nan" in report["not a number"]


def test_ranks_have_equally_many_rounds_and_every_sample_once() -> None:
    samples = make_samples(7)
    parts = [samples[n : n + 3] for n in range(0, len(samples), 3)]
    for world_size in (1, 2, 3):
        ranks = [list(plan_rounds(parts, world_size, rank)) for rank in range(world_size)]
        assert len({len(rounds) for rounds in ranks}) == 1
        counted = [s for rounds in ranks for part, counts in rounds if counts for s in part]
        assert sorted(map(id, counted)) == sorted(map(id, samples))


def test_a_checkpoint_with_shards_is_verified_and_damage_is_found(
    folder: Path, tmp_path: Path
) -> None:
    source = folder / "llama-checkpoint"

    def copy_files(pattern: str) -> Callable[[Path], None]:
        return lambda target: [shutil.copy(path, target) for path in source.glob(pattern)] and None

    path = checkpoints.write_checkpoint(
        tmp_path, {"step": 1, "reward": None, "reason": "test"}, weights={}, learner={},
        save_model=copy_files("model*"), save_shards=copy_files("learner*"),
    ).path  # fmt: skip
    assert checkpoints.verify_checkpoint(path) == ()
    assert checkpoints.read_checkpoint(path)[2] == {}  # the ranks read them
    shard = path / "learner-00002-of-00002.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    assert "sha256 of learner-00002" in checkpoints.verify_checkpoint(path)[0]
    shard.unlink()
    assert "learner-00002-of-00002.safetensors is missing" in checkpoints.verify_checkpoint(path)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["learn.sharding=fsdp"], "backend=monarch"),
    ],
)
def test_keys_that_do_not_fit_together_are_refused(overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        validate_config(load_config([], overrides))
