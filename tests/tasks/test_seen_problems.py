"""The database of seen problems: exact, bounded memory, can be rewound to any draw."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glasshouse.errors import RunError
from glasshouse.tasks.seen_problems import SeenProblems


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=3), max_size=60), st.integers(0, 60))
def test_behaves_like_a_set_that_can_be_rewound(keys, draw):
    seen, model = SeenProblems(), {}
    for number, key in enumerate(keys):
        assert seen.add(key, number) == (key not in model)
        model.setdefault(key, number)
    assert seen.size == len(model)
    seen.rewind(draw)
    model = {k: n for k, n in model.items() if n < draw}
    assert seen.size == len(model)
    for key in set(keys):
        assert seen.add(key, 99) == (key not in model)


def test_keys_persist_on_disk(tmp_path):
    file = tmp_path / "data" / "seen_problems.sqlite"
    first = SeenProblems(file)
    assert first.add("12*345", 0)
    first.close()
    second = SeenProblems(file)
    assert second.size == 1
    assert not second.add("12*345", 1)


def test_uncommitted_keys_are_lost_and_committed_ones_kept(tmp_path):
    file = tmp_path / "seen_problems.sqlite"
    killed = SeenProblems(file)
    killed.add("a", 0)
    killed.commit()
    killed.add("b", 1)  # not committed: the process is killed here
    killed.database.close()
    reopened = SeenProblems(file)
    assert reopened.size == 1
    assert reopened.add("b", 1)


def test_memory_is_bounded_for_200_000_keys():
    with open("/proc/self/statm") as statm:

        def resident():
            statm.seek(0)
            return int(statm.read().split()[1]) * 4096 / 1e6

        seen = SeenProblems()
        for number in range(20_000):
            seen.add(str(number), number)
        early = resident()
        for number in range(20_000, 200_000):
            seen.add(str(number), number)
        assert resident() - early < 12, "the page cache is 8 MB; a set would have grown by 18"
        assert not any(seen.add(str(number), 0) for number in range(0, 200_000, 997))


def test_invalid_database_file_is_a_run_error(tmp_path):
    (tmp_path / "seen_problems.sqlite").write_bytes(
        b"not a database, but long enough to be one" * 50
    )
    with pytest.raises(RunError, match="cannot be opened"):
        SeenProblems(tmp_path / "seen_problems.sqlite")
