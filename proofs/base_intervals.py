"""Coverage of the intervals of a study, by simulation (`make proofs ONLY=coverage`, 1 min).

    python -m proofs.base_intervals [simulations]

Over bases (a random effect): base effects vary between bases, differences between the seeds of a
base. The 95 % interval over base means must cover the mean of all bases in 94 to 96 % of studies, with
equal and unequal numbers of seeds, and its t test must reject a true null in 4 to 6 %. The interval over
seeds, which ignores bases, is printed beside it. Over seeds (fewer than four bases): the same for the
interval within the ceiling of a bounded measure. Skewed effects are printed, not required.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from glasshouse.measurement.intervals import compare_differences, mean_interval
from glasshouse.study.contrasts import max_effect, respect_bounds

TRUE_EFFECT = 0.2
DESIGNS = {"2 per base": (2, 2), "1 to 4 per base": (1, 4)}


def main(simulations: int) -> int:
    rng = np.random.default_rng(0)
    failures = 0
    print("bases  seeds            sd between/within  shape    over bases  rejects  over seeds")
    for num_bases in (4, 6, 8):
        for design, (fewest, most) in DESIGNS.items():
            counts = [fewest + i % (most - fewest + 1) for i in range(num_bases)]
            for ratio in (0.0, 1.0, 3.0):
                for shape in ("normal", "skewed"):
                    row = simulate_bases(rng, counts, ratio, shape, simulations)
                    # without variation between bases, unequal numbers make the interval a little too wide
                    passed = 0.94 <= row[0] <= 0.965 and 0.035 <= row[1] <= 0.06
                    failures += shape == "normal" and not passed
                    print(
                        f"{num_bases:>5}  {design:<16} {ratio:>17.1f}  {shape:<8} {row[0]:>9.3f} {row[1]:>8.3f} "
                        f"{row[2]:>11.3f}{'' if passed or shape == 'skewed' else '  FAILED'}"
                    )
    print("\nseeds  reference  effect  within the ceiling")
    for seeds in (8, 12):
        for reference, effect in ((0.2, 0.3), (0.2, 0.75), (0.5, 0.45)):
            covered = simulate_ceiling(rng, seeds, reference, effect, simulations)
            failures += covered < 0.9
            print(f"{seeds:>5}  {reference:>9}  {effect:>6}  {covered:>18.3f}")
    print("FAILED" if failures else "passed")
    return min(1, failures)


def simulate_bases(
    rng: np.random.Generator, counts: Sequence[int], ratio: float, shape: str, simulations: int
) -> tuple[float, float, float]:
    """Coverage over bases, rejections of a true null, and coverage over seeds."""
    bases = [str(base) for base, n in enumerate(counts) for _ in range(n)]
    index = np.repeat(np.arange(len(counts)), counts)
    covered = rejected = covered_over_seeds = 0
    for _ in range(simulations):
        draws = (
            rng.normal(size=len(counts))
            if shape == "normal"
            else rng.exponential(size=len(counts)) - 1
        )
        noise = 0.1 * ratio * draws[index] + rng.normal(0, 0.1, len(index))
        result = compare_differences((TRUE_EFFECT + noise).tolist(), bases=bases)
        covered += contains(result.low, result.high, TRUE_EFFECT)
        rejected += (compare_differences(noise.tolist(), bases=bases).p or 0.0) <= 0.05
        _, low, high = mean_interval((TRUE_EFFECT + noise).tolist())
        covered_over_seeds += contains(low, high, TRUE_EFFECT)
    return covered / simulations, rejected / simulations, covered_over_seeds / simulations


def simulate_ceiling(
    rng: np.random.Generator, seeds: int, reference: float, effect: float, simulations: int
) -> float:
    """Coverage for rates: beta-distributed, so that the arm comes near 1."""
    covered = 0
    for _ in range(simulations):
        before = rng.beta(20 * reference, 20 * (1 - reference), seeds)
        mean = reference + effect
        after = rng.beta(20 * mean, 20 * (1 - mean), seeds)
        plain = compare_differences((after - before).tolist())
        result = respect_bounds(plain, max_effect("reliance", before.tolist()))
        covered += contains(result.low, result.high, effect)
    return covered / simulations


def contains(low: float | None, high: float | None, value: float) -> bool:
    return low is not None and high is not None and low <= value <= high


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 4000))
