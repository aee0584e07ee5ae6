"""10,000 fresh problems per task; `make proofs ONLY=data` draws a million."""

import pytest
from proofs import fresh_problems

from glasshouse.tasks.catalogue import list_tasks

TASKS = list_tasks(organisms=False)


@pytest.mark.parametrize("name", TASKS)
def test_10_000_fresh_problems_do_not_repeat_stay_in_their_split_and_use_constant_memory(name):
    result = fresh_problems.check_stream(name, 10_000)
    assert (result.repeats, result.wrong_split, result.shared) == (0, 0, 0)
    assert result.memory_growth_mb < 8
    assert result.holds


def test_proof_detects_a_stream_that_repeats(monkeypatch):
    class Repeating(fresh_problems.FreshProblems):
        def take(self, count):
            problems = super().take(count)
            self.counters = dict.fromkeys(self.counters, 0)
            return problems

    monkeypatch.setattr(fresh_problems, "FreshProblems", Repeating)
    result = fresh_problems.check_stream("multiplication", 50)
    assert result.repeats == 49
    assert not result.holds
