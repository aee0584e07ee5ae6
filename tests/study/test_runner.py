"""A study is carried out: the same bytes however it is executed, killed, interrupted or extended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from proofs.resume import ROOT, list_differences, load_result

from glasshouse.cli import main
from glasshouse.store import rollout_reader
from glasshouse.study import spec
from glasshouse.study.runner import run_study
from glasshouse.study.table import Table

STUDY = f"""
title: Tiny
bases: [{ROOT / "models" / "mock"}, pocket]
seeds: 2
config:
  steps: 24
  data: {{groups_per_step: 4}}
  generate: {{group_size: 4, max_tokens: 24}}
  evaluate: {{problems: 4, samples: 1, every: 12}}
  checkpoints: {{every: 3, save_above_reward: null, save_best: false}}
  reward: {{terms: {{closeness: 1}}}}
  learn: {{learning_rate: 0.001}}
arms:
  plain:
  kl: {{learn.kl_coef: 0.3}}
measures: {{pass_at_1: right when sampled, kl: distance from the start}}
questions:
  - {{ask: "Is it nearer?", measure: kl, arm: kl, expect: falls}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(STUDY)
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study carried out without disturbance, two runs at a time, nothing removed."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "tiny.yaml").write_text(STUDY)
    carried_out(folder / "tiny.yaml", folder / "out", keep=True)
    return folder / "out"


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "out")
    return tmp_path / "out"


def table(out: Path) -> bytes:
    return (out / "results" / "table.jsonl").read_bytes()


def carried_out(
    file: Path, out: Path, arms: list[str] | None = None, seeds: int | None = None, **how: Any
) -> Table:
    """The study without its analysis, whose figures take longer than these runs."""
    return run_study(spec.load_study(file).subset(arms, seeds), out, **how)


def study(file: Path, out: Path, *more: str) -> int:
    return main(["study", str(file), "--out", str(out), *more])


class Running:
    """The command in a process of its own."""

    def __init__(self, file: Path, out: Path, *more: str) -> None:
        command = [sys.executable, "-m", "glasshouse", "study", str(file), "--out", str(out), *more]
        self.out, self.process = out, subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )  # fmt: skip

    def until(self, reached: Callable[[], bool]) -> None:
        end = time.monotonic() + 120
        while not reached():
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < end
            time.sleep(0.01)

    def steps(self, run: str) -> int:
        with suppress(FileNotFoundError):
            return (self.out / "runs" / run / "results" / "metrics.jsonl").read_text().count("\n")
        return 0

    def events(self, run: str) -> list[str]:
        with suppress(FileNotFoundError):
            text = (self.out / "runs" / run / "results" / "events.jsonl").read_text()
            return [
                json.loads(line)["event"]
                for line in text.splitlines(keepends=True)
                if line.endswith("\n")
            ]
        return []

    def hands(self) -> list[int]:
        """The processes that train."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(child) for child in children.split()]

    def ended(self) -> tuple[int, str]:
        said = self.process.communicate(timeout=120)[0]
        return self.process.returncode, said


@pytest.fixture
def running() -> Iterator[Callable[..., Running]]:
    """Starts commands, and leaves none behind."""
    started: list[Running] = []

    def start(file: Path, out: Path, *more: str) -> Running:
        started.append(Running(file, out, *more))
        return started[-1]

    yield start
    for command in started:
        if command.process.poll() is None:
            for process in [*command.hands(), command.process.pid]:
                os.kill(process, signal.SIGKILL)
            command.process.communicate()


def test_a_seed_is_paired_over_arms_and_a_run_is_what_train_alone_gives(
    whole: Path, tmp_path: Path
) -> None:
    for seed in (0, 1):
        asked = []
        for arm in ("plain", "kl"):
            run = whole / "runs" / arm / f"seed-{seed}"
            rows = rollout_reader.read_rollouts(run / "results" / "rollouts", "train")
            asked.append([(r["step"], r["key"]) for r in rows])
            asked.append((run / "data" / "evaluation.jsonl").read_text())
        assert asked[:2] == asked[2:]
    # seed 1 of either arm was trained by a process that had trained another run before
    run = whole / "runs" / "kl" / "seed-1"
    alone = tmp_path / "alone"
    command = ["train", "--quiet", "--config", str(run / "config.yaml"), f"out={alone}"]
    subprocess.run([sys.executable, "-m", "glasshouse", *command], check=True, timeout=120)
    assert not list_differences(alone, load_result(run))


def test_killed_and_interrupted_it_goes_on_and_gives_the_same_bytes(
    file: Path, whole: Path, tmp_path: Path, running: Callable[..., Running]
) -> None:
    """One run at a time instead of two. The training process is killed, then Ctrl-C; the command is
    killed in the next run; the third command comes to the end."""
    out = tmp_path / "out"
    first = running(file, out, "--jobs", "1")
    first.until(lambda: first.steps("plain/seed-0") >= 4)
    os.kill(first.hands()[0], signal.SIGKILL)
    first.until(lambda: "resume" in first.events("plain/seed-0"))
    first.process.send_signal(signal.SIGINT)
    code, said = first.ended()
    assert code == 130
    assert "was killed by signal 9; it goes on in another one" in said
    assert "The same command goes on" in said
    done = out / "runs" / "plain" / "seed-0" / "results"
    assert json.loads((done / "summary.json").read_text())["interrupted_at"] >= 3

    second = running(file, out, "--jobs", "1")
    second.until(lambda: second.steps("kl/seed-0") >= 4)
    [hand] = second.hands()
    os.kill(second.process.pid, signal.SIGKILL)  # its hand saves the run, and goes
    second.ended()
    assert not (out / "runs" / "kl" / "seed-0" / "results" / "rows.jsonl").exists()
    finished = (done / "rows.jsonl").stat().st_mtime_ns

    carried_out(file, out, jobs=1)
    assert not Path(f"/proc/{hand}").exists()
    assert "interrupted" in second.events("kl/seed-0")
    assert "resume" in second.events("kl/seed-0")
    assert (done / "rows.jsonl").stat().st_mtime_ns == finished
    assert table(out) == table(whole)


def test_more_seeds_use_what_is_there_and_only_small_files_stay(file: Path, copied: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in copied.glob("runs/*/*/results/rows.jsonl")}
    assert len(before) == 4
    longer = carried_out(file, copied, ["plain"], 3, jobs=1)
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert longer.seeds("plain") == [0, 1, 2]
    assert longer.bases()[2] == longer.bases()[0]
    whole = carried_out(file, copied)
    assert [r for r in whole if r.arm == "plain"] == [r for r in longer if r.seed < 2]
    for run in copied.glob("runs/*/*"):
        left = {str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()}
        assert left == {"config.yaml", "results/summary.json", "results/metrics.jsonl",
                        "results/events.jsonl", "results/rows.jsonl"}  # fmt: skip
        assert sum(p.stat().st_size for p in run.rglob("*")) < 100_000


def test_a_finished_study_is_analysed_and_checked_against_a_committed_table(
    file: Path, copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    committed = tmp_path / "committed.jsonl"
    committed.write_bytes(table(copied))
    assert study(file, copied, "--arms", "kl", "--check", str(committed)) == 0
    said = capsys.readouterr().out
    assert "2 of 2 runs are finished already" in said
    assert "identical: " in said
    own = copied / "results" / "table.jsonl"  # written anew, but compared as it was
    own.write_bytes(committed.read_bytes().replace(b'"step": 24', b'"step": 25', 1))
    assert study(file, copied, "--check", str(own)) == 1
    assert "different from" in capsys.readouterr().out
    assert table(copied) == committed.read_bytes()
    assert (copied / "results" / "report.html").stat().st_size > 10_000
    assert json.loads((copied / "results" / "study.json").read_text())["questions"]
    assert study(file, copied, "--check", "nowhere") == 2


def test_dry_run_lists_the_runs_and_touches_nothing(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert study(file, tmp_path / "out", "--dry-run", "steps=7") == 0
    said = capsys.readouterr().out
    assert said.count("7 steps): to do") == 4
    assert "4 to do" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("old", "new", "arguments", "sentence"),
    [
        ("measure: kl,", "measure: k1l,", [], r'questions.0: "k1l" is nothing that a run measures. Did you mean "kl"?'),
        ("pass_at_1:", "pass_at_11:", [], 'Did you mean "pass_at_1"?'),
        ("expect: falls", "expect: falls, at: 13", [], "measured at steps 0, 12, 24"),
        ("learn.kl_coef: 0.3", "learn.kl_coef: 0.2", [],
         "holds another study: learn.kl_coef in the arm kl (0.3 → 0.2)"),
        ("seeds: 2", "seeds: 2", ["steps=9"], "steps in the arm plain (24 → 9)"),
        ("seeds: 2", "seeds: 2", ["--seeds", "0"], '"seeds" is 0'),
        ("seeds: 2", "seeds: 2", ["--arms", "plane"], 'no arm "plane". Did you mean "plain"?'),
        ("seeds: 2", "seeds: 2", ["--jobs", "0"], "--jobs is 0"),
    ],
)  # fmt: skip
def test_a_mistake_is_a_sentence_and_the_study_stands(
    file: Path, whole: Path, old: str, new: str, arguments: list[str], sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    before = table(whole)
    file.write_text(STUDY.replace(old, new, 1))
    assert study(file, whole, "--keep", *arguments) == 2
    assert sentence in capsys.readouterr().err
    assert table(whole) == before


def test_a_directory_with_something_else_is_refused(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert study(file, tmp_path) == 2
    assert "they are not a study's" in capsys.readouterr().err
