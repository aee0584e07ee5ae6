"""One headline accuracy: sampled, with its interval; greedy beside it, labelled."""

from __future__ import annotations

import random

import pytest
from rich.console import Console

from glasshouse.measurement.closed_forms import (
    clustered_rate_interval,
    difference_interval,
    wilson_interval,
)
from glasshouse.measurement.registry import HEADLINE_ACCURACY, headline_accuracy, lookup
from glasshouse.study.controls import Gain, judge_control
from glasshouse.training.display import comparison_table, format_accuracies
from glasshouse.view.run_measures import summarize_run


def results(sampled: float | None, greedy: float) -> dict[str, object]:
    rates = {"accuracy": greedy, "lenient": greedy, "strict": greedy, "format": 1.0}
    if sampled is not None:
        rates = {"pass_at_1": sampled, **rates}
    values: dict[str, object] = {"problems": 100, "length": 9.0}
    for key, value in rates.items():
        values |= {key: value, f"{key}_low": value - 0.05, f"{key}_high": value + 0.05}
    return values | {"levels": {}}


def test_samples_are_the_headline_and_greedy_only_without_them() -> None:
    assert headline_accuracy(results(0.3, 0.0)) == HEADLINE_ACCURACY == "pass_at_1"
    assert headline_accuracy(results(None, 0.0)) == "accuracy"
    assert "sampled" in lookup("pass_at_1").label
    assert "greedy" in lookup("accuracy").label
    assert lookup("interventions.accuracy").stream == "accuracy"  # keys published streams


def test_every_output_states_sampled_accuracy_first_and_labels_both() -> None:
    before, after = results(0.343, 0.0), results(0.903, 0.965)
    console = Console(width=120, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(comparison_table(before, after))
    texts = [capture.get(), format_accuracies(after)]
    texts.append(summarize_run({"before": before, "after": after}, None))
    for text in texts:
        assert text.index("sampled") < text.lower().index("greedy"), text
        assert text.index("0.903") < text.index("0.965"), text
    verdict = judge_control([Gain(0, 0.3, 0.9)], [Gain(0, 0.3, 0.3)])[1]
    assert verdict.count("sampled accuracy") == 2


def test_interval_of_samples_is_between_that_of_problems_and_that_of_all_samples() -> None:
    """Samples of a problem that always agree are one observation; independent ones are all of them."""
    agreeing = [1.0] * 30 + [0.0] * 70
    assert clustered_rate_interval(agreeing, 4) == pytest.approx(wilson_interval(30, 100), abs=2e-3)
    alike = [0.25] * 100
    assert clustered_rate_interval(alike, 4) == pytest.approx(wilson_interval(25, 100))
    rng = random.Random(0)
    independent = [sum(rng.random() < 0.3 for _ in range(4)) / 4 for _ in range(500)]
    rate = sum(independent) / 500
    low, high = clustered_rate_interval(independent, 4)
    wide, narrow = wilson_interval(500 * rate, 500), wilson_interval(2000 * rate, 2000)
    assert wide[0] < low <= narrow[0] + 2e-3
    assert narrow[1] - 2e-3 <= high < wide[1]
    assert clustered_rate_interval([0.0] * 20, 4) == wilson_interval(0, 20)
    assert clustered_rate_interval([], 4) == (0.0, 1.0)


def test_interval_of_samples_covers_the_true_rate() -> None:
    """Problems differ (rates 0.1, 0.5 and 0.9), as they do in practice: 95 % of intervals cover."""
    rng, covered = random.Random(1), 0
    for _ in range(400):
        rates = [rng.choice((0.1, 0.5, 0.9)) for _ in range(60)]
        shares = [sum(rng.random() < rate for _ in range(4)) / 4 for rate in rates]
        low, high = clustered_rate_interval(shares, 4)
        covered += low <= 0.5 <= high
    assert 0.92 <= covered / 400 <= 0.98


def test_difference_uses_the_nearer_ends() -> None:
    low, high = difference_interval((0.5, 0.4, 0.7), (0.2, 0.1, 0.25))
    assert low == pytest.approx(0.3 - (0.1**2 + 0.05**2) ** 0.5)
    assert high == pytest.approx(0.3 + (0.2**2 + 0.1**2) ** 0.5)
