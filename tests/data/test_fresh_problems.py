"""50,000 fresh problems a task in CI; `make data-million` does a fresh_problems."""

import pytest
from proofs import fresh_problems

from glasshouse.tasks import TASKS


@pytest.mark.parametrize("name", TASKS)
def test_50_000_fresh_problems_never_repeat_stay_in_their_split_and_need_no_memory(name):
    found = fresh_problems.draw(name, 50_000)
    assert (found.repeats, found.strays, found.shared) == (0, 0, 0)
    assert found.grown_mb < 8
    assert found.holds


def test_the_proof_sees_a_stream_that_repeats_itself(monkeypatch):
    class Stuck(fresh_problems.Fresh):
        def take(self, count):
            problems = super().take(count)
            self.counters = dict.fromkeys(self.counters, 0)
            return problems

    monkeypatch.setattr(fresh_problems, "Fresh", Stuck)
    found = fresh_problems.draw("multiplication", 50)
    assert found.repeats == 49
    assert not found.holds


def test_the_proof_sees_a_stream_that_mixes_splits(monkeypatch):
    class Mixed(fresh_problems.Fresh):
        def __init__(self, task, split, seed):
            super().__init__(task, fresh_problems.Split.TRAIN, seed)

    monkeypatch.setattr(fresh_problems, "Fresh", Mixed)
    found = fresh_problems.draw("multiplication", 500)
    assert found.shared > 0
    assert not found.holds
