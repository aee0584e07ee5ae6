"""Keyed random numbers: every draw is a function of its key."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glasshouse import randomness


def test_keys_and_noise_never_change():
    """Hard-coded: a changed hash would move problems between splits and change every run."""
    assert randomness.key("noise", 0, 12, "12*345", 3) == 1449860621090210145
    assert randomness.key("split", "multiplication", "12*345") == 13361524304651956120
    assert randomness.key() == 13020603013274838756
    assert randomness.stream("demo", 0).random() == 0.3670483211821475
    noise = randomness.uniforms(np.array([0, 1, 2**64 - 1], dtype=np.uint64), 5, 2)
    assert noise.tolist() == [
        [0.32732576421812587, 0.17386786595968295],
        [0.7628943919117611, 0.877348686764173],
        [0.8246716106407089, 0.9426143746841554],
    ]


def test_type_and_position_of_key_parts_matter():
    keys = [("1",), (1,), (1.0,), (True,), ("a", "b"), ("b", "a"), ("ab",), ("a", "b", "")]
    assert len({randomness.key(*parts) for parts in keys}) == len(keys)
    assert all(0 <= randomness.key(*parts) < 2**64 for parts in keys)


def test_noise_is_uniform_in_0_to_1():
    keys = np.array([randomness.key("row", i) for i in range(200)], dtype=np.uint64)
    noise = randomness.uniforms(keys, 0, 1000)
    assert (noise.shape, noise.dtype) == ((200, 1000), np.float64)
    counts, _ = np.histogram(noise, bins=100, range=(0, 1))
    chi_square = ((counts - 2000) ** 2 / 2000).sum()
    assert 50 < chi_square < 160  # 99 degrees of freedom: mean 99, deviation 14


def unmix(z: int) -> int:
    """Inverts SplitMix64's finaliser."""
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
        whole = z
        for _ in range(3):
            z = whole ^ z >> shift
        z = z * pow(factor, -1, 2**64) % 2**64
    return z


@pytest.mark.parametrize("bits", [0, 1, 2**63, 2**64 - 1])
def test_extreme_bits_give_neither_0_nor_1(bits):
    key = (unmix(bits) - 0x9E3779B97F4A7C15) % 2**64
    [[noise]] = randomness.uniforms(np.array([key], dtype=np.uint64), 0, 1)
    assert noise == pytest.approx(bits / 2**64, abs=1e-12)
    assert 0 < noise < 1


@given(st.integers(0, 2**64 - 1), st.integers(0, 10_000), st.integers(1, 50))
def test_each_row_and_position_can_be_computed_alone(key, start, count):
    rows = np.array([11, key], dtype=np.uint64)
    together = randomness.uniforms(rows, start, count)[1].tolist()
    alone = [randomness.uniforms(rows[1:], start + i, 1)[0, 0] for i in range(count)]
    assert together == alone


@pytest.mark.parametrize("distance", [1, 2, 256, 2**32])
def test_adjacent_keys_and_positions_are_not_correlated(distance):
    keys = np.arange(1, 20_001, dtype=np.uint64) * np.uint64(distance)
    noise = randomness.uniforms(keys, 0, 2)
    for left, right in (
        (noise[:-1, 0], noise[1:, 0]),
        (noise[:, 0], noise[:, 1]),
        (noise[:-1, 1], noise[1:, 0]),
    ):
        assert abs(np.corrcoef(left, right)[0, 1]) < 4.5 / np.sqrt(len(left))
