"""A study's runs: paired, resumed after kills to the same bytes, trained by workers that are replaced."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest
from proofs.processes import wait_for_exit
from proofs.resume import ROOT, list_differences, load_result
from safetensors.torch import load_file, save_file
from tests.study.in_process_pool import InProcessPool

from glasshouse.cli.app import main
from glasshouse.config.loading import load_config
from glasshouse.errors import RunError
from glasshouse.runs.rollout_log import read_rows
from glasshouse.study.process_pool import ProcessPool
from glasshouse.study.runner import count_warnings, plan_runs, run_study, train_study
from glasshouse.study.spec import StudyRun, load_study
from glasshouse.study.table import Table

pytestmark = pytest.mark.xdist_group("study runner")  # one worker makes the expensive fixtures once
MOCK = ROOT / "models" / "mock"
STUDY = f"""
title: Tiny
bases: [{MOCK}, OTHER_BASE]
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
measures: {{pass_at_1: accuracy of samples, kl: distance from the start}}
questions:
  - {{ask: "Does KL keep it closer?", measure: kl, arm: kl, expect: falls}}
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The study file's text. Its second base is the mock model with other weights."""
    other = tmp_path_factory.mktemp("bases") / "other"
    shutil.copytree(MOCK, other)
    weights = load_file(other / "model.safetensors")
    other_weights = {name: 0.9 * tensor for name, tensor in weights.items()}
    save_file(other_weights, other / "model.safetensors", {"format": "pt"})
    return STUDY.replace("OTHER_BASE", str(other))


@pytest.fixture
def file(study: str, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(study)
    return path


@pytest.fixture(scope="module")
def complete(study: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study, run without interruption, two runs at a time, nothing deleted."""
    folder = tmp_path_factory.mktemp("complete")
    (folder / "tiny.yaml").write_text(study)
    run_without_report(folder / "tiny.yaml", folder / "out", keep_all=True)
    return folder / "out"


@pytest.fixture
def copy(complete: Path, tmp_path: Path) -> Path:
    shutil.copytree(complete, tmp_path / "out")
    return tmp_path / "out"


def table_bytes(out: Path) -> bytes:
    return (out / "results" / "table.jsonl").read_bytes()


def run_without_report(
    file: Path, out: Path, arms: Iterable[str] = ("plain", "kl"), seeds: int = 2, **options: Any
) -> Table:
    """The figures of a report take longer than these runs."""
    study = load_study(file, seeds=seeds)
    own = {arm: study.arms[arm] for arm in arms}
    asked = tuple(q for q in study.questions if q.arm in own)
    part = study.model_copy(update={"arms": own, "questions": asked})
    return train_study(part, out, **options)


def run_command(file: Path, out: Path, *arguments: str) -> int:
    return main(["study", str(file), "--out", str(out), *arguments])


class StudyProcess:
    """`glasshouse study` in a separate process, one run at a time; killed with its workers at the end."""

    def __init__(self, file: Path, out: Path) -> None:
        command = [sys.executable, "-m", "glasshouse", "study", file, "--out", out, "--jobs", "1"]
        self.results = out / "runs" / "plain" / "seed-0" / "results"
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def __enter__(self) -> StudyProcess:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            for pid in [*self.worker_pids(), self.process.pid]:
                os.kill(pid, signal.SIGKILL)
            self.process.communicate()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 240
        while not condition():
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def count_steps(self) -> int:
        return len(read_lines(self.results / "metrics.jsonl"))

    def read_events(self) -> list[str]:
        return [json.loads(line)["event"] for line in read_lines(self.results / "events.jsonl")]

    def worker_pids(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(child) for child in children.split()]


def read_lines(file: Path) -> list[str]:
    """The complete lines of a file that may be growing, or not exist yet."""
    with suppress(FileNotFoundError):
        lines = file.read_text().splitlines(keepends=True)
        return [line for line in lines if line.endswith("\n")]
    return []


def test_arms_are_paired_and_a_run_equals_the_same_run_by_train(
    complete: Path, tmp_path: Path
) -> None:
    for seed in (0, 1):
        problems = []
        for arm in ("plain", "kl"):
            run = complete / "runs" / arm / f"seed-{seed}"
            rows = read_rows(run, "train")
            trained = [(row["step"], row["key"]) for row in rows]
            problems.append((trained, (run / "data" / "validation.jsonl").read_text()))
        assert problems[0] == problems[1]
    # seed 1 was trained by a worker that had trained another run before
    run = complete / "runs" / "kl" / "seed-1"
    alone = tmp_path / "alone"
    assert main(["train", "--quiet", "--config", str(run / "config.yaml"), f"out={alone}"]) == 0
    assert not list_differences(alone, load_result(run))


def test_after_kills_the_resumed_study_gives_the_same_bytes(
    file: Path, complete: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run at a time instead of two. The worker is killed, then the command, and another command finishes the
    study."""
    out = tmp_path / "out"
    with StudyProcess(file, out) as command:
        command.wait_until(lambda: command.count_steps() >= 4)
        os.kill(command.worker_pids()[0], signal.SIGKILL)
        command.wait_until(lambda: "resume" in command.read_events())
        resumed_at = command.count_steps()
        command.wait_until(lambda: command.count_steps() > resumed_at)
        [worker] = command.worker_pids()
        os.kill(command.process.pid, signal.SIGKILL)  # the worker notices, saves its run and exits
        assert "signal 9" in command.process.communicate(timeout=240)[0]
    assert wait_for_exit([worker])
    # saved, or on a slow machine at its last checkpoint
    assert {"interrupted", "stopped"} & set(command.read_events())
    rows = command.results / "rows.jsonl"
    assert not rows.exists()

    monkeypatch.setattr("glasshouse.study.runner.ProcessPool", InProcessPool)
    run_without_report(file, out, ["plain"])
    assert command.read_events().count("resume") == 2
    finished_at = rows.stat().st_mtime_ns
    run_without_report(file, out)
    assert rows.stat().st_mtime_ns == finished_at
    assert table_bytes(out) == table_bytes(complete)


def interrupt(pool: ProcessPool, runs: Iterable[StudyRun], **options: Any) -> NoReturn:
    """As if the user pressed Ctrl-C during the first run."""
    raise KeyboardInterrupt


def test_ctrl_c_ends_the_command_with_130(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ProcessPool, "train", interrupt)
    assert run_command(file, tmp_path / "out") == 130
    assert main(["demo", "--out", str(tmp_path / "my demo"), "steps=3"]) == 130
    assert f"glasshouse demo --out '{tmp_path / 'my demo'}' steps=3" in capsys.readouterr().out


def test_more_seeds_reuse_finished_runs_and_only_small_files_remain(
    file: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glasshouse.study.runner.ProcessPool", InProcessPool)
    times = {p: p.stat().st_mtime_ns for p in copy.glob("runs/*/*/results/rows.jsonl")}
    assert len(times) == 4
    longer = run_without_report(file, copy, ["plain"], 3, jobs=1)
    assert {p: p.stat().st_mtime_ns for p in times} == times
    assert sorted(longer.runs_of("plain", "kl")) == [0, 1, 2]
    bases = {row.seed: row.base for row in longer}
    assert bases[2] == bases[0]
    again = run_without_report(file, copy)
    assert [r for r in again if r.arm == "plain"] == [r for r in longer if r.seed < 2]
    for run in copy.glob("runs/*/*"):
        files = {str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()}
        assert files == {"config.yaml", "NOTES.md", "results/curves.svg", "results/summary.json",
                         "results/metrics.jsonl", "results/events.jsonl", "results/rows.jsonl"}  # fmt: skip
        assert sum(p.stat().st_size for p in run.rglob("*")) < 100_000


def test_warnings_of_runs_reach_the_console_once_and_are_counted(
    file: Path,
    complete: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No completion of the mock model ends within two tokens; within 24 nearly all do, and no run warns."""
    assert count_warnings(plan_runs(load_study(file), complete)) == {}
    monkeypatch.setattr("glasshouse.study.runner.ProcessPool", InProcessPool)
    study = load_study(file, ["steps=1", "evaluate.every=1", "generate.max_tokens=2"])
    result = run_study(study, tmp_path / "out")
    printed = capsys.readouterr().out
    assert result.warnings == {"cut completions": 4}
    assert printed.count("generate.max_tokens") == 1
    assert "plain seed 0: " in printed
    assert "Warning in 4 of 4 runs: cut completions" in printed
    again = run_study(study, tmp_path / "out", progress=False)  # nothing is trained
    assert again.warnings == result.warnings


def test_a_finished_study_is_analysed_and_checked_against_a_committed_table(
    file: Path, copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    committed = tmp_path / "committed.jsonl"
    committed.write_bytes(table_bytes(copy))
    assert run_command(file, copy, "--seeds", "1", "--check", str(committed)) == 0
    output = capsys.readouterr().out
    assert "2 of 2 runs are already finished" in output
    assert "identical: " in output
    own = copy / "results" / "table.jsonl"  # overwritten by the study, but compared as it was
    own.write_bytes(committed.read_bytes().replace(b'"step": 24', b'"step": 25', 1))
    assert run_command(file, copy, "--check", str(own)) == 1
    assert "different from" in capsys.readouterr().out
    assert table_bytes(copy) == committed.read_bytes()
    assert (copy / "results" / "report.html").stat().st_size > 10_000
    assert json.loads((copy / "results" / "study.json").read_text())["questions"]
    assert run_command(file, copy, "--check", "nowhere") == 2


def test_dry_run_lists_the_runs_and_a_directory_with_other_files_is_refused(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(file, tmp_path / "out", "--dry-run", "steps=7") == 0
    assert capsys.readouterr().out.count("7 steps") == 4
    assert not (tmp_path / "out").exists()
    assert run_command(file, tmp_path) == 2
    assert str(tmp_path) in capsys.readouterr().err
    for arguments in ([], ["--dry-run"]):
        assert run_command(file, file / "out", *arguments) == 2
        assert f"{file} is a file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "arguments", "message"),
    [
        ("measure: kl,", "measure: k1l,", [], ['questions.0: "k1l"', '"kl"']),
        ("pass_at_1:", "pass_at_11:", [], ['"pass_at_11"', '"pass_at_1"']),
        ("expect: falls", "expect: falls, at: 13", [], ["steps 0, 12, 24", "13"]),
        ("learn.kl_coef: 0.3", "learn.kl_coef: 0.2", [], ["learn.kl_coef", "kl (0.3 → 0.2)"]),
        ("seeds: 2", "seeds: 2", ["steps=9"], ["steps", "plain (24 → 9)"]),
        ("seeds: 2", "seeds: 2", ["--seeds", "0"], ['"seeds" is 0']),
        ("seeds: 2", "seeds: 2", ["--jobs", "0"], ["--jobs is 0"]),
    ],
)  # fmt: skip
def test_a_mistake_is_an_error_and_the_finished_study_is_unchanged(
    file: Path, complete: Path, old: str, new: str, arguments: list[str], message: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    before = table_bytes(complete)
    file.write_text(file.read_text().replace(old, new, 1))
    assert run_command(file, complete, "--keep", *arguments) == 2
    error = capsys.readouterr().err
    assert all(part in error for part in message), error
    assert table_bytes(complete) == before


MOCK_MODEL = Path(__file__).resolve().parents[2] / "models" / "mock"
SMALL = [
    f"model={MOCK_MODEL}", "steps=200", "data.groups_per_step=4", "generate.group_size=4",
    "generate.max_tokens=24", "evaluate.problems=4", "evaluate.samples=1", "checkpoints.every=0",
    "checkpoints.save_above_reward=null", "checkpoints.save_best=false",
]  # fmt: skip


def make_run(out: Path, *overrides: str) -> StudyRun:
    config = load_config([], [*SMALL, f"out={out}", *overrides])
    return StudyRun(out.name, config.model, 0, out, config)


def test_a_worker_is_reused_after_an_error_and_saves_its_run_on_ctrl_c(tmp_path: Path) -> None:
    """test_runner.py kills the process of the pool: the worker saves its run then, too."""
    with suppress(KeyboardInterrupt), ProcessPool(1) as pool:
        with pytest.raises(RunError, match=r'^The run bad seed 0 \(nowhere\): .*"nowhere"'):
            list(pool.train([make_run(tmp_path / "bad", "model=nowhere")]))
        [worker] = pool.workers
        events = list(pool.train([make_run(tmp_path / "short", "steps=1")]))
        assert events[-1].kind == "finished"
        assert events[-1].value["steps_done"] == 1
        for event in pool.train([make_run(tmp_path / "long")]):
            if event.kind == "step" and event.value == 3:
                signal.raise_signal(signal.SIGTERM)  # as Ctrl-C does
        raise AssertionError("it was not interrupted")
    assert pool.workers == [worker]
    summary = json.loads((tmp_path / "long" / "results" / "summary.json").read_text())
    assert summary["interrupted_at"] >= 3
    assert Path(summary["checkpoint"]).is_dir()
    assert worker.process.returncode is not None
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_crashed_worker_is_replaced_once(tmp_path: Path) -> None:
    """test_runner.py kills a worker once: its run is resumed by another."""
    stop = threading.Event()

    def kill_each_new_worker() -> None:
        """As soon as they exist, before they have imported torch."""
        while not stop.wait(0.01):
            for worker in list(pool.workers):
                worker.process.kill()

    killer = threading.Thread(target=kill_each_new_worker)
    with ProcessPool(1) as pool:
        killer.start()
        with pytest.raises(RunError, match=r"^The run crashing .* failed: .*signal 9.*2 times"):
            list(pool.train([make_run(tmp_path / "crashing")]))
        stop.set()
        killer.join()
