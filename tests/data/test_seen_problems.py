"""What has been drawn, on disk: exact, bounded, wound back to any draw."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glasshouse.data.seen_problems import Ledger
from glasshouse.errors import RunError


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=3), max_size=60), st.integers(0, 60))
def test_it_is_a_set_that_can_be_wound_back(keys, back):
    ledger, model = Ledger(), {}
    for number, key in enumerate(keys):
        assert ledger.add(key, number) == (key not in model)
        model.setdefault(key, number)
    assert ledger.size == len(model)
    ledger.rewind(back)
    model = {k: n for k, n in model.items() if n < back}
    assert ledger.size == len(model)
    for key in set(keys):
        assert ledger.add(key, 99) == (key not in model)


def test_it_lasts(tmp_path):
    file = tmp_path / "data" / "drawn.sqlite"
    first = Ledger(file)
    assert first.add("12*345", 0)
    first.close()
    second = Ledger(file)
    assert second.size == 1
    assert not second.add("12*345", 1)


def test_what_was_not_committed_is_gone_and_the_rest_is_whole(tmp_path):
    file = tmp_path / "drawn.sqlite"
    killed = Ledger(file)
    killed.add("a", 0)
    killed.commit()
    killed.add("b", 1)  # never committed: the process ends here
    killed.rows.close()
    again = Ledger(file)
    assert again.size == 1
    assert again.add("b", 1)


def test_two_hundred_thousand_keys_take_no_memory():
    with open("/proc/self/statm") as statm:

        def resident():
            statm.seek(0)
            return int(statm.read().split()[1]) * 4096 / 1e6

        ledger = Ledger()
        for number in range(20_000):
            ledger.add(str(number), number)
        early = resident()
        for number in range(20_000, 200_000):
            ledger.add(str(number), number)
        assert resident() - early < 12, "the page cache is 8 MB; a set would have grown by 18"
        assert not any(ledger.add(str(number), 0) for number in range(0, 200_000, 997))


def test_a_file_that_is_no_ledger_is_a_sentence(tmp_path):
    (tmp_path / "drawn.sqlite").write_bytes(b"not a database, but long enough to be one" * 50)
    with pytest.raises(RunError, match="cannot be opened"):
        Ledger(tmp_path / "drawn.sqlite")
