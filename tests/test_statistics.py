"""Closed-form intervals and tests, compared with scipy, statsmodels and brute force."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from rich.console import Console
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import confint_proportions_2indep

from glasshouse.measurement.intervals import (
    clustered_rate_interval,
    difference_interval,
    holm_adjust,
    mean_interval,
    newcombe_interval,
    pass_at_k,
    t_quantile_975,
    wilson_interval,
)
from glasshouse.measurement.registry import HEADLINE_ACCURACY, headline_accuracy, lookup
from glasshouse.training.display import format_accuracies, results_table
from glasshouse.view.run_measures import summarize_run


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (10, 10), (3, 7), (90, 100), (1, 1000)])
def test_wilson_interval_equals_scipy(successes: int, trials: int) -> None:
    expected = stats.binomtest(successes, trials).proportion_ci(0.95, method="wilson")
    interval = wilson_interval(successes, trials)
    assert interval == pytest.approx((expected.low, expected.high), abs=1e-15)
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("freedom", [*range(1, 32), 40, 100, 10_000])
def test_t_quantile_equals_scipy(freedom: int) -> None:
    assert t_quantile_975(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), abs=6e-4)


def test_mean_interval_over_seeds_is_students() -> None:
    values = [0.1, 0.4, 0.3, 0.35, 0.2]
    expected = stats.t.interval(0.95, 4, loc=0.27, scale=stats.sem(values))
    assert mean_interval(values) == pytest.approx((0.27, *expected), abs=1e-3)
    assert mean_interval([0.5]) == (0.5, -math.inf, math.inf)


@pytest.mark.parametrize(("correct", "samples", "k"), [(0, 4, 2), (1, 4, 2), (3, 4, 2), (2, 5, 3)])
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_sample(
    correct: int, samples: int, k: int
) -> None:
    subsets = list(itertools.combinations([i < correct for i in range(samples)], k))
    assert pass_at_k(correct, samples, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@pytest.mark.parametrize(
    "counts", [(56, 70, 48, 80), (9, 10, 3, 10), (0, 10, 0, 20), (10, 10, 0, 20)]
)
def test_newcombe_interval_equals_statsmodels(counts: tuple[int, int, int, int]) -> None:
    expected = confint_proportions_2indep(*counts, method="newcomb", compare="diff")
    assert newcombe_interval(*counts) == pytest.approx(expected, abs=1e-9)
    assert newcombe_interval(0, 0, 3, 4) == (-1.0, 1.0)


@pytest.mark.parametrize("p_values", [[0.01, 0.04, 0.03], [0.5], [0.2, 0.2, 0.9, 0.001], []])
def test_holm_adjust_equals_statsmodels(p_values: list[float]) -> None:
    expected = multipletests(p_values, method="holm")[1] if p_values else []
    assert holm_adjust(p_values) == list(expected)


def test_interval_of_samples_is_between_that_of_problems_and_that_of_all_samples() -> None:
    """Samples of a problem that always agree are one observation; independent ones are all of them."""
    agreeing = [1.0] * 30 + [0.0] * 70
    assert clustered_rate_interval(agreeing, 4) == pytest.approx(wilson_interval(30, 100), abs=2e-3)
    assert clustered_rate_interval([0.25] * 100, 4) == pytest.approx(wilson_interval(25, 100))
    assert clustered_rate_interval([0.0] * 20, 4) == wilson_interval(0, 20)
    assert clustered_rate_interval([], 4) == (0.0, 1.0)
    rng, covered = random.Random(1), 0
    for _ in range(400):  # problems differ, as they do in practice: 95 % of intervals cover
        rates = [rng.choice((0.1, 0.5, 0.9)) for _ in range(60)]
        shares = [sum(rng.random() < rate for _ in range(4)) / 4 for rate in rates]
        low, high = clustered_rate_interval(shares, 4)
        covered += low <= 0.5 <= high
    assert 0.92 <= covered / 400 <= 0.98


def test_difference_uses_the_nearer_ends() -> None:
    low, high = difference_interval((0.5, 0.4, 0.7), (0.2, 0.1, 0.25))
    assert low == pytest.approx(0.3 - (0.1**2 + 0.05**2) ** 0.5)
    assert high == pytest.approx(0.3 + (0.2**2 + 0.1**2) ** 0.5)


def test_every_output_states_sampled_accuracy_first_and_greedy_only_without_samples() -> None:
    def results(greedy: float, **sampled: float) -> dict[str, object]:
        rates = {**sampled, "accuracy": greedy, "lenient": greedy, "strict": greedy, "format": 1.0}
        values: dict[str, object] = {"problems": 100, "length": 9.0, "levels": {}}
        for key, value in rates.items():
            values |= {key: value, f"{key}_low": value - 0.05, f"{key}_high": value + 0.05}
        return values

    before, after = results(0.0, pass_at_1=0.343), results(0.965, pass_at_1=0.903)
    assert headline_accuracy(after) == HEADLINE_ACCURACY == "pass_at_1"
    assert headline_accuracy(results(0.0)) == "accuracy"
    assert lookup("interventions.accuracy").stream == "accuracy"  # keys published streams
    console = Console(width=120)
    with console.capture() as capture:
        console.print(results_table(before=before, after=after))
    summary = summarize_run({"before": before, "after": after}, None)
    for text in (capture.get(), format_accuracies(after), summary):
        assert text.index("sampled") < text.lower().index("greedy"), text
        assert text.index("0.903") < text.index("0.965"), text
