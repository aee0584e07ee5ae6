"""`glasshouse rollouts` on a trained run and on a damaged copy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from glasshouse.cli.app import main
from glasshouse.config.loading import load_config
from glasshouse.runs.rollout_log import LOG, RolloutReader, read_rows, scan_log
from glasshouse.runs.rows import RolloutFilter, kind_of
from glasshouse.training.run import TrainingRun

MOCK = Path(__file__).resolve().parents[2] / "models" / "mock"
SMALL = [
    f"model={MOCK}", "steps=2", "data.groups_per_step=4", "generate.group_size=2", "generate.max_tokens=24",
    "evaluate.problems=3", "evaluate.samples=2", "learn.algorithm=dapo", "rollout_log.tokens_every=2",
    "reward.terms={format: 1}",  # gives some groups of the mock model equal rewards, and some not
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    TrainingRun(load_config([], [*SMALL, f"out={out}"])).train()
    return out


@pytest.fixture(scope="module")
def log(run: Path) -> Path:
    return run / "results" / LOG


def show_rollouts(run: Path, *options: str) -> int:
    return main(["rollouts", str(run), *options])


def test_overview_counts_every_row_and_byte(
    run: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show_rollouts(run) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    rows = list(read_rows(log))
    assert f"{len(rows):,} rollouts in" in printed.out
    assert "kB raw" in printed.out
    for text in ("validation", "train", "glasshouse rollouts", "--json"):
        assert text in printed.out
    summary = json.loads((run / "results" / "summary.json").read_text())
    assert summary["rollout_log"]["bytes"] == log.stat().st_size
    assert summary["rollout_log"]["rows"] == len(rows)


def test_discarded_groups_are_logged_too(log: Path) -> None:
    """Every generated group is logged once, as training data or as discarded."""
    rows = list(read_rows(log, "train", "discarded"))
    for step in (1, 2):
        groups = {(kind_of(r["split"]), r["group"]) for r in rows if r["step"] == step}
        assert sorted(group for _, group in groups) == list(range(len(groups)))
    discarded = [r for r in rows if kind_of(r["split"]) == "discarded"]
    trained = [r for r in rows if kind_of(r["split"]) == "train"]
    assert discarded
    assert all(r["advantage"] == 0 for r in discarded)
    assert {r["key"] for r in discarded}.isdisjoint({r["key"] for r in trained})
    rewards: dict[tuple[int, int], set[float]] = {}
    for r in discarded:
        rewards.setdefault((r["step"], r["group"]), set()).add(r["reward"])
    assert all(len(values) == 1 for values in rewards.values())


def test_tokens_every_leaves_out_tokens_but_never_texts(log: Path) -> None:
    for row in read_rows(log):
        assert (row["tokens"] is None) == (row["step"] % 2 == 1)
        assert row["prompt"]
        assert row["text"]
        assert row["length"] > 0


def test_json_prints_the_rows(run: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show_rollouts(run, "--json", "--split", "validation", "--step", "0", "--limit", "4") == 0
    lines = capsys.readouterr().out.split("\n")[:-1]
    rollout_filter = RolloutFilter(splits=("validation",), last_step=0)
    rows = list(RolloutReader(log).iter_rows(rollout_filter))[:4]
    assert [json.loads(line) for line in lines] == rows


def test_show_prints_rollouts(
    run: Path, log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    row = next(read_rows(log, "train"))
    assert show_rollouts(run, "--split", "train", "--show", "--limit", "1") == 0
    printed = capsys.readouterr().out
    for text in (
        row["question"].split()[-1],
        "reward",
        "advantage",
        row["gold_answer"],
        f"rule {row['rule']}",
    ):
        assert text in printed
    assert show_rollouts(run, "--show", "--prompt", "--limit", "1", "--step", "1") == 0
    assert "tokens were not logged" in capsys.readouterr().out


def test_damage_is_exit_code_1_and_the_rest_is_shown(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "run"
    (copy / "results").mkdir(parents=True)
    log = Path(shutil.copy(run / "results" / LOG, copy / "results" / LOG))
    frames, data = scan_log(log).frames, bytearray(log.read_bytes())
    damaged = next(frame for frame in frames if (frame.kind, frame.step) == ("train", 2))
    data[damaged.end - 9] ^= 1
    log.write_bytes(data)
    for options in ([], ["--json"]):
        assert show_rollouts(copy, "--split", "train", *options) == 1
        printed = capsys.readouterr()
        assert "damage: train, step 2: the sha256 of the frame is wrong" in printed.err
        assert printed.out
    # --show prints three rollouts, which come before the damage
    assert show_rollouts(copy, "--split", "train", "--show") == 0
    assert capsys.readouterr().err == ""
    assert show_rollouts(copy, "--split", "train", "--step", "2") == 1
    log.write_bytes(data[:-4])
    assert show_rollouts(copy, "--split", "validation", "--step", "0") == 0
    assert "note: rollouts.jsonl.zst ends with" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--step", "99"], "No rollouts"),
        (["--text", "no such words", "--json"], "No rollouts"),
        (["--step", "3..1"], "--step"),
        (["--step", "soon"], "--step"),
        (["--reward", ".."], "--reward"),
        (["--limit", "0"], "--limit"),
    ],
)
def test_wrong_option_is_exit_code_2_and_named(
    run: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show_rollouts(run, *options) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""


def test_path_without_a_run_is_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show_rollouts(tmp_path / "none") == 2
    assert "does not exist" in capsys.readouterr().err
    assert show_rollouts(tmp_path) == 2
    assert "is not a run directory" in capsys.readouterr().err
