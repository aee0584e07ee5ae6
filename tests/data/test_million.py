"""50,000 fresh problems a task in CI; `make data-million` does a million."""

import importlib.util
import sys
from pathlib import Path

import pytest

from glasshouse.tasks import TASKS

spec = importlib.util.spec_from_file_location(
    "million", Path(__file__).resolve().parents[1] / "million.py"
)
million = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(million)


@pytest.mark.parametrize("name", TASKS)
def test_50_000_fresh_problems_never_repeat_stay_in_their_split_and_need_no_memory(name):
    found = million.draw(name, 50_000)
    assert (found.repeats, found.strays, found.shared) == (0, 0, 0)
    assert found.grown_mb < 8
    assert found.holds


def test_the_proof_sees_a_stream_that_repeats_itself(monkeypatch):
    class Stuck(million.Fresh):
        def take(self, count):
            problems = super().take(count)
            self.counters = dict.fromkeys(self.counters, 0)
            return problems

    monkeypatch.setattr(million, "Fresh", Stuck)
    found = million.draw("multiplication", 50)
    assert found.repeats == 49
    assert not found.holds


def test_the_proof_sees_a_stream_that_mixes_splits(monkeypatch):
    class Mixed(million.Fresh):
        def __init__(self, task, split, seed):
            super().__init__(task, million.Split.TRAIN, seed)

    monkeypatch.setattr(million, "Fresh", Mixed)
    found = million.draw("multiplication", 500)
    assert found.shared > 0
    assert not found.holds
