"""The verdict of the controls: what it says for pipelines that learn, leak, or do neither."""

from __future__ import annotations

from glasshouse.study.control import Gain, verdict


def gains(*pairs: tuple[float, float]) -> list[Gain]:
    return [Gain(seed, a, b, a, b) for seed, (a, b) in enumerate(pairs)]


LEARNS = gains((0.3, 0.9), (0.31, 0.92), (0.3, 0.88))
FLAT = gains((0.3, 0.28), (0.31, 0.33), (0.3, 0.29))


def test_a_pipeline_that_learns_only_from_its_rewards_passes() -> None:
    passed, sentence = verdict(LEARNS, FLAT)
    assert passed
    assert "The pipeline learns" in sentence
    assert "does not learn from noise" in sentence


def test_a_gain_from_shuffled_rewards_is_called_a_leak() -> None:
    passed, sentence = verdict(LEARNS, LEARNS)
    assert not passed
    assert "something leaks" in sentence


def test_one_seed_that_does_not_learn_fails_the_control() -> None:
    passed, sentence = verdict(gains((0.3, 0.9), (0.3, 0.9), (0.3, 0.35)), FLAT)
    assert not passed
    assert "It does not learn" in sentence


def test_the_likeliest_reason_follows_from_where_it_started() -> None:
    assert "never right" in verdict(gains((0, 0), (0, 0.01)), None)[1]
    assert "right already" in verdict(gains((0.95, 0.95), (0.96, 0.95)), None)[1]
    assert "collapses" in verdict(gains((0.4, 0.1), (0.4, 0.38)), None)[1]
