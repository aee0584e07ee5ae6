"""Enumeration of finite sets: a problem is an index, and the number of problems is known."""

from __future__ import annotations

import math
from collections.abc import Sequence


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
