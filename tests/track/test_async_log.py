"""A tracker that is unknown, missing, broken or slow: a sentence, and never another result."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from proofs.resume import differing, result, train

from glasshouse.cli import main
from glasshouse.config import Config
from glasshouse.errors import TrackError
from glasshouse.store.run_directory import config_of
from glasshouse.track import MIRRORS, Mirrors, Record
from glasshouse.track.async_log import Feed
from glasshouse.track.base import Ending, Held, Subject, name
from glasshouse.track.records import flat, records
from glasshouse.track.registry import Kept
from glasshouse.train import resume
from glasshouse.train.display import Display

SHORT = (
    "steps=4",
    "checkpoints.every=2",
    "checkpoints.save_above_reward=null",
    "checkpoints.save_best=false",
)


class Remembers:
    """A tracker in memory that fails at a step, and at its start if that is step -1."""

    look = "nowhere"
    fails_at = 10**9
    last: Remembers

    def start(self, run: Subject) -> Held:
        Remembers.last, self.logged, self.ended = self, list[Record](), list[Ending]()
        if self.fails_at < 0:
            raise ConnectionError("nobody answers\nat all")
        return {}

    def log(self, record: Record) -> None:
        if record.step == self.fails_at:
            raise ConnectionError("gone")
        self.logged.append(record)

    def end(self, numbers: Mapping[str, float], how: Ending) -> None:
        self.ended.append(how)


class Warned(Display):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def warn(self, sentence: str) -> None:
        self.heard.append(sentence)


@pytest.fixture
def remembers(monkeypatch: pytest.MonkeyPatch) -> type[Remembers]:
    monkeypatch.setitem(sys.modules, "a_tracker", SimpleNamespace(Remembers=Remembers))
    monkeypatch.setitem(MIRRORS, "remembers", Kept("a_tracker", "Remembers", "json"))
    monkeypatch.setattr(Remembers, "fails_at", 10**9)
    return Remembers


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    train(out, None, SHORT)
    return out


def test_a_live_run_is_fed_what_its_directory_holds(
    tmp_path: Path, remembers: type[Remembers], whole: Path
) -> None:
    train(tmp_path / "run", None, (*SHORT, "trackers=remembers"))
    assert remembers.last.logged == list(records(tmp_path / "run"))
    assert [(r.kind, r.step) for r in remembers.last.logged] == [
        ("evaluate", 0), ("train", 1), ("train", 2), ("train", 3), ("train", 4), ("evaluate", 4),
    ]  # fmt: skip
    assert remembers.last.ended == ["finished"]
    assert not differing(tmp_path / "run", result(whole))


def test_one_that_fails_is_reported_once_and_changes_nothing(
    tmp_path: Path, remembers: type[Remembers], whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembers, "fails_at", 2)
    display = Warned()
    train(tmp_path / "run", display, (*SHORT, "trackers=[remembers]"))
    (sentence,) = display.heard
    assert sentence.startswith("The tracker remembers failed and is dropped: gone.")
    lines = (tmp_path / "run" / "results" / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    assert [e["text"] for e in events if e["event"] == "untracked"] == [sentence]
    assert not differing(tmp_path / "run", result(whole))
    monkeypatch.setattr(remembers, "fails_at", 10**9)
    assert main(["track", str(tmp_path / "run"), "--to", "remembers"]) == 0
    assert len(remembers.last.logged) == 6


def test_one_that_cannot_start_stops_the_run_with_the_reason(
    tmp_path: Path, remembers: type[Remembers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembers, "fails_at", -1)
    with pytest.raises(TrackError, match="remembers could not start: nobody answers"):
        train(tmp_path / "run", None, (*SHORT, "trackers=[remembers]"))
    assert not (tmp_path / "run" / "results" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("trakio", 'track: there is no tracker "trakio". Did you mean "trackio"?'),
        ("wandb", 'needs wandb, which is not installed: pip install "glasshouse[wandb]".'),
    ],
)
def test_an_unknown_or_missing_one_is_a_sentence_before_anything_is_made(
    given: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    assert main(["train", f"out={tmp_path / 'run'}", f"trackers=[{given}]"]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_does_not_wait_for_one_that_hangs(remembers: type[Remembers]) -> None:
    release, told = threading.Event(), list[str]()

    class Hangs(Remembers):
        def log(self, record: Record) -> None:
            release.wait(60)

    mirrors = Mirrors(Path("run"), lambda kind, text, **_: told.append(text))
    mirrors.feeds.append(Feed("hangs", Hangs(), {}))
    started = time.monotonic()
    for step in range(1000):
        mirrors.feed(Record("train", step, 0.0, {}))
    mirrors.end({}, "finished", patience=0.1)
    assert time.monotonic() - started < 30
    assert ["not taken everything" in text for text in told] == [True]
    release.set()


def test_a_fork_is_another_run_to_its_tracker(
    tmp_path: Path, remembers: type[Remembers], whole: Path
) -> None:
    assert main(["track", str(whole), "--to", "remembers"]) == 0
    resume.fork(whole, tmp_path / "fork", config_of(whole))
    assert (whole / "track" / "id").exists()
    assert not (tmp_path / "fork" / "track").exists()


def test_evaluations_beyond_the_record_are_not_of_it(tmp_path: Path, whole: Path) -> None:
    """A run that goes on has its metrics cut back, but not its events."""
    results = tmp_path / "results"
    results.mkdir()
    lines = (whole / "results" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (results / "metrics.jsonl").write_text("".join(lines[:2]))
    (results / "events.jsonl").write_text((whole / "results" / "events.jsonl").read_text())
    found = [(r.kind, r.step) for r in records(tmp_path)]
    assert found == [("evaluate", 0), ("train", 1), ("train", 2)]


def test_numbers_are_flat_and_finite() -> None:
    tree = {"a": 1, "b": {"c": 0.5, "time": "noon"}, "d": float("nan"), "e": None, "f": [1]}
    assert flat("train", tree) == {"train/a": 1, "train/b/c": 0.5}


def test_a_run_is_named_by_its_place() -> None:
    assert name(Path("runs/sum_digits-grpo-1")) == "sum_digits-grpo-1"
    assert name(Path("study/runs/penalty/seed-3")) == "penalty-seed-3"
    assert name(Path("/elsewhere/mine")) == "mine"


def test_one_name_is_a_list_of_one() -> None:
    assert Config.model_validate({"track": "wandb"}).trackers == ("wandb",)
    assert Config().trackers == ()
