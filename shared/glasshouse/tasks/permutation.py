"""A keyed permutation of 0..size-1 in constant memory: a Feistel network with cycle walking.

`Permutation(81000, key)(i)` for i = 0, 1, 2, … visits every index once, in an order that depends on the
key, and can be resumed from a counter.
"""

from __future__ import annotations

ROUNDS = 6
MASK = (1 << 64) - 1


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
