"""A crew: what fails is a sentence, what is under way when it is dismissed is saved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from glasshouse import config
from glasshouse.cli import main
from glasshouse.errors import ConfigError, RunError
from glasshouse.study.process_pool import Crew, Done, Job, Stepped

MOCK = Path(__file__).resolve().parents[2] / "models" / "mock"
SMALL = [
    f"model={MOCK}", "steps=200", "data.groups_per_step=4", "generate.group_size=4", "generate.max_tokens=24",
    "evaluate.problems=4", "evaluate.samples=1", "checkpoints.every=0", "checkpoints.save_above_reward=null",
    "checkpoints.save_best=false",
]  # fmt: skip


def job(out: Path, *more: str) -> Job:
    return Job(name=f"The run {out.name}", config=config.load([], [*SMALL, f"out={out}", *more]))


def test_a_failed_job_is_a_sentence_and_a_dismissed_crew_saves_what_it_was_at(
    tmp_path: Path,
) -> None:
    with Crew(1) as crew:
        with pytest.raises(RunError, match=r'^The run bad: There is no model folder "nowhere"'):
            list(crew.work([job(tmp_path / "bad", "model=nowhere")]))
        [hand] = crew.hands
        [done] = [h for h in crew.work([job(tmp_path / "a", "steps=1")]) if isinstance(h, Done)]
        assert done.summary["steps_done"] == 1
        assert crew.hands == [hand]  # the same process
        for heard in crew.work([job(tmp_path / "b")]):
            if isinstance(heard, Stepped) and heard.step == 3:
                break
    summary = json.loads((tmp_path / "b" / "results" / "summary.json").read_text())
    assert summary["interrupted_at"] >= 3
    assert Path(summary["checkpoint"]).is_dir()
    assert hand.process.returncode is not None


def test_a_crew_of_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match="--jobs is 0"):
        Crew(0)


def test_the_control_command_trains_both_arms_and_does_not_train_them_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["control", "--seeds", "1", "--jobs", "1", "--out", str(tmp_path / "c"), *SMALL, "steps=2"]  # fmt: skip
    assert main(command) == 1
    first = capsys.readouterr().out
    assert "positive seed 0: sampled accuracy" in first
    assert "negative seed 0: sampled accuracy" in first
    assert "It does not learn" in first
    report = (tmp_path / "c" / "control.json").read_text()
    times = {p: p.stat().st_mtime_ns for p in (tmp_path / "c").glob("*/results/summary.json")}
    assert len(times) == 2
    assert main(command) == 1
    assert {p: p.stat().st_mtime_ns for p in times} == times
    assert (tmp_path / "c" / "control.json").read_text() == report
