"""The keyed permutation."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glasshouse.tasks.enumeration import Permutation

HUGE = [2**64, 2**64 + 1, 10**20, 2**128 + 7, 2**131, 10**60]


@pytest.mark.parametrize("size", [*range(1, 40), 63, 64, 65, 255, 256, 257, 1000, 4097])
def test_every_index_is_visited_once(size):
    for key in (0, 1, 2**64 - 1):
        assert sorted(map(Permutation(size, key), range(size))) == list(range(size))


@pytest.mark.parametrize("size", HUGE)
def test_indices_beyond_64_bits_stay_in_range_and_differ(size):
    order = Permutation(size, 5)
    indices = [*range(300), *range(size - 300, size), *range(size // 2, size // 2 + 300)]
    visited = [order(i) for i in indices]
    assert len(set(visited)) == len(visited)
    assert all(0 <= v < size for v in visited)
    assert max(visited) > size * 0.9
    assert min(visited) < size * 0.1


@pytest.mark.parametrize("size", HUGE)
def test_indices_beyond_64_bits_have_spread_low_bits(size):
    order = Permutation(size, 5)
    assert len({order(i) % 2**32 for i in range(300)}) > 290


def test_order_depends_on_the_key():
    orders = {tuple(map(Permutation(20, key), range(20))) for key in range(50)}
    assert len(orders) == 50
    assert all(order != tuple(range(20)) for order in orders)


def test_orders_never_change():
    """Hard-coded: a changed network would change every run's problems."""
    assert [Permutation(10, 7)(i) for i in range(10)] == [0, 1, 6, 2, 3, 7, 4, 8, 9, 5]
    assert Permutation(81_000, 1)(0) == 35663
    assert Permutation(2**64 + 1, 1)(2**64) == 11330583848205759077


def test_first_indices_are_spread_evenly():
    """Uniform over many keys."""
    counts = [0] * 10
    for key in range(5000):
        counts[Permutation(10, key)(0)] += 1
    assert sum((c - 500) ** 2 / 500 for c in counts) < 33  # 9 degrees of freedom: p = 0.0001


@settings(max_examples=60)
@given(st.integers(1, 10**40), st.integers(0, 2**64 - 1), st.data())
def test_permutation_is_injective(size, key, data):
    order = Permutation(size, key)
    first, second = (data.draw(st.integers(0, size - 1)) for _ in range(2))
    assert 0 <= order(first) < size
    assert (order(first) == order(second)) == (first == second)


def test_out_of_range_index_raises():
    for index in (-1, 10):
        with pytest.raises(IndexError):
            Permutation(10, 0)(index)
    with pytest.raises(ValueError, match="at least one"):
        Permutation(0, 0)
