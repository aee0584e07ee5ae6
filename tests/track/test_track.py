"""A tracker that is unknown, not installed, failing or slow is reported and changes no result."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from proofs.resume import Result, list_differences, train
from tests.training.short_runs import SHORT, MessageRecorder

from glasshouse.cli.app import main
from glasshouse.errors import TrackError
from glasshouse.track.trackers import (
    LoggedSteps,
    RunOutcome,
    StepMetrics,
    TrackedRun,
    Trackers,
    TrackerThread,
    flatten_numbers,
    read_step_metrics,
    run_display_name,
    tracker,
)

NEVER = 10**9


class MemoryTracker:
    """Keeps metrics in memory. Fails at a step, or at start if that step is negative."""

    url = "nowhere"
    fail_step = NEVER
    last: MemoryTracker

    def start(self, run: TrackedRun) -> LoggedSteps:
        MemoryTracker.last = self
        self.logged, self.outcomes = list[StepMetrics](), list[RunOutcome]()
        if self.fail_step < 0:
            raise ConnectionError("connection refused\nsecond line")
        return {}

    def log(self, metrics: StepMetrics) -> None:
        if metrics.step == self.fail_step:
            raise ConnectionError("connection lost")
        self.logged.append(metrics)

    def finish(self, summary: Mapping[str, float], outcome: RunOutcome) -> None:
        self.outcomes.append(outcome)


@pytest.fixture
def memory_tracker(monkeypatch: pytest.MonkeyPatch) -> type[MemoryTracker]:
    monkeypatch.setitem(tracker.parts, "memory", MemoryTracker)
    monkeypatch.setattr(MemoryTracker, "fail_step", NEVER)
    return MemoryTracker


def test_live_run_logs_what_its_directory_holds(
    tmp_path: Path, memory_tracker: type[MemoryTracker], expected: Result
) -> None:
    train(tmp_path / "run", None, (*SHORT, "trackers=memory"))
    tracker = memory_tracker.last
    assert tracker.logged == list(read_step_metrics(tmp_path / "run"))
    assert [(metrics.kind, metrics.step) for metrics in tracker.logged] == [
        ("evaluate", 0), *(("train", step) for step in range(1, 6)), ("evaluate", 5),
    ]  # fmt: skip
    assert tracker.outcomes == ["finished"]
    assert not list_differences(tmp_path / "run", expected)


def test_failing_tracker_is_reported_once_and_changes_no_result(
    tmp_path: Path, memory_tracker: type[MemoryTracker], expected: Result,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    run, display = tmp_path / "run", MessageRecorder()
    monkeypatch.setattr(memory_tracker, "fail_step", 2)
    train(run, display, (*SHORT, "trackers=[memory]"))
    (message,) = [message for message in display.messages if "tracker" in message]
    assert "memory failed: connection lost" in message
    events = map(json.loads, (run / "results" / "events.jsonl").read_text().splitlines())
    assert [e["text"] for e in events if e["event"] == "tracker_failed"] == [message]
    assert not list_differences(run, expected)
    monkeypatch.setattr(memory_tracker, "fail_step", NEVER)
    assert main(["report", "track", str(run), "--to", "memory"]) == 0
    assert len(memory_tracker.last.logged) == 7
    monkeypatch.setattr(memory_tracker, "fail_step", -1)
    with pytest.raises(TrackError, match=r"memory could not start: connection refused\. "):
        train(tmp_path / "other", None, (*SHORT, "trackers=[memory]"))
    assert not (tmp_path / "other" / "results" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("name", "message"), [("trakio", 'Did you mean "trackio"?'), ("wandb", "shared[wandb]")]
)
def test_unknown_or_missing_tracker_is_refused_before_the_run_starts(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    assert main(["train", f"out={tmp_path / 'run'}", f"trackers=[{name}]"]) == 2
    error = capsys.readouterr().err
    assert "trackers" in error
    assert message in error
    assert not (tmp_path / "run").exists()


def test_run_does_not_wait_for_a_tracker_that_blocks() -> None:
    release, messages = threading.Event(), list[str]()

    class BlockingTracker(MemoryTracker):
        def log(self, metrics: StepMetrics) -> None:
            release.wait()

    trackers = Trackers(Path("run"), lambda kind, text, **_: messages.append(text))
    trackers.threads.append(TrackerThread("blocking", BlockingTracker(), {}))
    for step in range(1000):
        trackers.log(StepMetrics("train", step, 0.0, {}))
    trackers.finish({}, "finished", timeout=0.1)  # returns although `log` never does
    assert ["did not finish in time" in message for message in messages] == [True]
    release.set()


def test_evaluations_after_the_last_metrics_are_left_out(
    tmp_path: Path, finished_run: Path
) -> None:
    run = shutil.copytree(finished_run, tmp_path / "run")
    metrics = run / "results" / "metrics.jsonl"  # resuming truncates metrics, but not events
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:2]))
    steps = [(metrics.kind, metrics.step) for metrics in read_step_metrics(run)]
    assert steps == [("evaluate", 0), ("train", 1), ("train", 2)]
    tree = {"a": 1, "b": {"c": 0.5, "time": "noon"}, "d": float("nan"), "e": None, "f": [1]}
    assert flatten_numbers("train", tree) == {"train/a": 1, "train/b/c": 0.5}
    assert run_display_name(Path("runs/sum_digits-grpo-1")) == "sum_digits-grpo-1"
    assert run_display_name(Path("study/runs/penalty/seed-3")) == "penalty-seed-3"
