"""Enumeration of finite sets: a problem is an index, and the number of problems is known.

`Permutation(81000, key)(i)` for i = 0, 1, 2, … visits every index once, in an order that depends on the
key, in constant memory (a Feistel network with cycle walking). It can be resumed from a counter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

ROUNDS = 6
MASK = (1 << 64) - 1


def multiset_count(n: int, k: int) -> int:
    """The number of multisets of `k` elements from `n`. Example: (990, 2) gives 490545."""
    return math.comb(n + k - 1, k)


def multiset_at(n: int, k: int, index: int) -> tuple[int, ...]:
    """The multiset number `index`, as a non-decreasing tuple of elements of `range(n)`."""
    chosen: list[int] = []
    for size in range(k, 0, -1):
        low, high = 0, n + k - 1  # largest c with comb(c, size) <= index
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if math.comb(middle, size) <= index else (low, middle)
        index -= math.comb(low, size)
        chosen.append(low - size + 1)
    return tuple(reversed(chosen))


def mixed_radix(index: int, bases: Sequence[int]) -> tuple[int, ...]:
    """The digits of `index`, the last base varying fastest. Example: (7, (2, 5)) gives (1, 2)."""
    digits: list[int] = []
    for base in reversed(bases):
        index, digit = divmod(index, base)
        digits.append(digit)
    return tuple(reversed(digits))


class Permutation:
    """Example: `sorted(Permutation(10, 7)(i) for i in range(10)) == list(range(10))`."""

    def __init__(self, size: int, key: int) -> None:
        if size < 1:
            raise ValueError("a permutation needs at least one element")
        self.size = size
        self.half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
        self.round_keys = [_mix(key + (r + 1) * 0x9E3779B97F4A7C15) for r in range(ROUNDS)]

    def __call__(self, index: int) -> int:
        if not 0 <= index < self.size:
            raise IndexError(f"{index} is not in [0, {self.size})")
        mask = (1 << self.half_bits) - 1
        while True:  # the network permutes 4**half_bits numbers: fewer than 4 passes on average
            left, right = index >> self.half_bits, index & mask
            for key in self.round_keys:
                left, right = right, left ^ (self._round(right, key) & mask)
            index = left << self.half_bits | right
            if index < self.size:
                return index

    def _round(self, value: int, key: int) -> int:
        mixed = _mix((value & MASK) + key)
        while value > MASK:  # halves beyond 64 bits: mix in the remaining words
            value >>= 64
            mixed = mixed << 64 | _mix((value & MASK) ^ mixed & MASK)
        return mixed


def _mix(z: int) -> int:
    """SplitMix64's finaliser."""
    z &= MASK
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
    return z ^ z >> 31
