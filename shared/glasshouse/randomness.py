"""Keyed random numbers: every random draw is a pure function of a key. There is no global generator.

`stream("problems", seed, step)` returns a new `random.Random` that depends only on these values, and
`uniforms` gives the sampler its noise, one number per (row key, position). So a completion does not
depend on the process that samples it, or on what that process did before.
"""

from __future__ import annotations

import hashlib
import random

import numpy as np

Part = str | int | float | bool


def key(*parts: Part) -> int:
    """Hashes the parts to a 64-bit key, the same on every machine.

    Example: `key("noise", 0, 12, "12*345", 3)`
    """
    text = "\x1f".join(f"{type(p).__name__}:{p}" for p in parts)
    return int.from_bytes(
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little"
    )


def stream(*parts: Part) -> random.Random:
    """A new random generator, seeded with the key of these parts."""
    return random.Random(key(*parts))


def uniforms(row_keys: np.ndarray, start: int, count: int) -> np.ndarray:
    """Uniform float64 numbers in (0, 1) of shape `(rows, count)`, for `(rows,)` keys and positions from `start`.

    SplitMix64 of key + position · golden ratio: counter-based, so each position is computed independently.
    """
    positions = np.arange(start + 1, start + count + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        z = row_keys.astype(np.uint64)[:, None] + positions[None, :] * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return ((z >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52  # never 0, never 1
