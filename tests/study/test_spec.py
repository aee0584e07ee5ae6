"""The study file: what it accepts, and what the study can show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.study import synthetic_study

from glasshouse.config.loading import parse_yaml
from glasshouse.errors import ConfigError
from glasshouse.measurement.evaluate import draw_validation
from glasshouse.measurement.intervals import compare_differences, sign_flip_test
from glasshouse.study.power import describe_power, smallest_effect, smallest_rise
from glasshouse.study.spec import dump_study, load_study, parse_study
from glasshouse.tasks.base import make_task

STUDY = """
title: Outcome RL on a leaked hint
bases: [leaked-hint-0, leaked-hint-1]
seeds: 3
config: {task: {name: leaked_hint}, steps: 40, reward: {penalties: {length: {weight: 0.1, budget: 9}}}}
arms:
  outcome:
  kl: {learn.kl_coef: 0.3, reward.penalties.length.weight: 0.2}
  random: {reward: {random: true}}
null_arm: random
measures: {reliance: follows a wrong hint}
questions:
  - {ask: "Does it rise?", measure: reliance, arm: outcome, against: start, expect: rises}
  - {ask: "Does KL help?", measure: reliance, arm: kl, expect: falls}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    return path


def test_an_arm_overrides_the_shared_configuration(file: Path) -> None:
    study = load_study(file)
    kl, outcome = study.run_config("kl", 1), study.run_config("outcome", 1)
    assert (kl.learn.kl_coef, outcome.learn.kl_coef) == (0.3, 0.0)
    assert kl.reward.penalties == {"length": {"weight": 0.2, "budget": 9}}
    assert outcome.reward.penalties == {"length": {"weight": 0.1, "budget": 9}}
    assert study.run_config("random", 0).reward.random
    assert (study.control, study.null_arm) == ("outcome", "random")
    assert [study.run_config("kl", s).model[-1] for s in range(3)] == ["0", "1", "0"]
    assert list(study.arm_seed_pairs())[:3] == [("outcome", 0), ("kl", 0), ("random", 0)]


def test_each_seed_can_have_its_own_evaluation_problems_the_same_in_every_arm(file: Path) -> None:
    shared = load_study(file)
    assert {shared.run_config("kl", seed).evaluate.seed for seed in (0, 1)} == {0}
    file.write_text(f"{STUDY}evaluation_problems: per_seed\n")
    study = load_study(file)
    for seed in (0, 1):
        drawn = {
            arm: [p.key for p in draw_validation(config, make_task("leaked_hint", {}))]
            for arm in ("outcome", "kl")
            for config in [study.run_config(arm, seed)]
        }
        assert drawn["outcome"] == drawn["kl"]
        assert study.run_config("kl", seed).evaluate.seed == seed
    file.write_text(file.read_text().replace("learn.kl_coef: 0.3", "evaluate.seed: 3"))
    with pytest.raises(ConfigError, match=r"arm kl: evaluate.seed .*evaluation_problems"):
        load_study(file)


def test_command_line_overrides_apply_before_the_arms(file: Path) -> None:
    study = load_study(file, ["steps=2", "learn.kl_coef=0.1"])
    assert study.run_config("outcome", 0).steps == 2
    assert study.run_config("outcome", 0).learn.kl_coef == 0.1
    assert study.run_config("kl", 0).learn.kl_coef == 0.3
    for wrong in ("stebs=4", "seed=4", "steps"):
        with pytest.raises(ConfigError, match=wrong.partition("=")[0]):
            load_study(file, [wrong])


def test_another_number_of_seeds_begins_with_the_same_ones(file: Path) -> None:
    study = load_study(file)
    assert study.with_seeds(2).seeds == (0, 1)
    assert study.with_seeds(5).seeds == (0, 1, 2, 3, 4)
    assert study.with_seeds(2).run_config("kl", 1) == study.run_config("kl", 1)


def test_differences_between_runs_are_named_and_more_arms_or_seeds_are_none(file: Path) -> None:
    study = load_study(file)
    tree = parse_yaml(dump_study(study))
    assert parse_study(tree, "dumped") == study
    tree["arms"]["more"] = {"learn.learning_rate": 0.1}
    tree |= {"seeds": 9, "title": "Other", "questions": []}
    assert study.run_differences(parse_study(tree, "")) == []
    tree["arms"]["kl"] = {"learn": {"kl_coef": 0.1}, "reward.penalties.length.weight": 0.2}
    [difference] = study.run_differences(parse_study(tree, ""))
    assert "learn.kl_coef" in difference
    assert "0.3 → 0.1" in difference
    tree["bases"] = ["pocket"]
    assert study.run_differences(parse_study(tree, ""))[0].startswith("bases (leaked-hint-0")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds: 3", "seeds: 0", r"seeds: give a number"),
        ("title:", "titel:", r'"titel".*"title"'),
        ("expect: falls", "expct: falls", r'"questions.1.expct".*"expect"'),
        ("null_arm: random", "null_arm: randum", r'null_arm is "randum".*"random"'),
        ("null_arm: random", "control: outcom", r'control is "outcom".*"outcome"'),
        ("arm: kl", "arm: kI", r'questions.1.arm is "kI"'),
        ("arm: kl", "arm: outcome", r"questions.1 .*`against`"),
        ("learn.kl_coef", "learn.kl_cef", r'arms.kl: .*"learn.kl_cef".*"learn.kl_coef"'),
        ("steps: 40", "stebs: 40", r'config: .*"stebs".*"steps"'),
        ("steps: 40", "seed: 4", r"config: seed .*from seeds"),
        ("learn.kl_coef: 0.3", "model: pocket", r"arm kl: model .*from bases"),
        ("  random:", "  start:", r'"start"'),
        ("  random:", "  a/b:", r'"a/b"'),
        ("expect: rises", "expect: unchanged", r"questions.0: .*margin"),
        ("expect: rises", "expect: up", r"'rises', 'falls' or 'unchanged'"),
        ("against: start", "against: start, at: -1", r"questions.0.at"),
        ("bases: [leaked-hint-0, leaked-hint-1]", "", r'"bases" is missing'),
        ("title:", "? [", r"YAML"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_an_error_that_names_the_key(
    file: Path, old: str, new: str, message: str
) -> None:
    assert old in STUDY
    file.write_text(STUDY.replace(old, new, 1))
    with pytest.raises(ConfigError, match=message):
        load_study(file)


def test_a_question_about_two_measures_takes_no_other_arm() -> None:
    tree = parse_yaml(STUDY)
    question = {"ask": "?", "measure": "a", "against_measure": "b", "arm": "kl", "expect": "rises"}
    study = parse_study({**tree, "questions": [question]}, "s")
    assert study.reference_of(study.questions[0]) == "kl"
    with pytest.raises(ConfigError, match="`against_measure`"):
        parse_study({**tree, "questions": [{**question, "against": "start"}]}, "s")


def test_a_null_arm_with_other_prompts_is_refused(file: Path) -> None:
    other = STUDY.replace(
        "random: {reward: {random: true}}", "random: {task.options: {hint_rate: 0.1}}"
    )
    assert other != STUDY
    file.write_text(other)
    with pytest.raises(ConfigError, match=r'questions.0: the null arm "random".*null_arm: none'):
        load_study(file)
    file.write_text(other.replace("expect:", "null_arm: none, expect:"))
    study = load_study(file)
    assert [study.null_arm_of(question) for question in study.questions] == [None, None]


def test_eight_seeds_see_an_effect_of_1_2_deviations_and_fewer_than_six_see_nothing() -> None:
    alone = smallest_effect(8, 0.05, over_bases=False)
    assert alone == pytest.approx(1.2, abs=0.1)
    assert smallest_effect(5, 0.05, over_bases=False) is None
    assert smallest_effect(8, 0.05 / 7, over_bases=False) is None  # 2/2⁸ > 0.05/7
    assert smallest_effect(9, 0.05 / 7, over_bases=False) is not None


@pytest.mark.parametrize("over_bases", [False, True])
def test_the_analysis_finds_this_effect_in_four_of_five_studies(over_bases: bool) -> None:
    level, n = 0.05 / 3, 8
    effect = smallest_effect(n, level, over_bases)
    assert effect is not None
    draws = np.random.default_rng(5).normal(effect, 1, (300, n)).tolist()
    bases = [str(i) for i in range(n)]
    p_values = [
        compare_differences(d, bases=bases).p if over_bases else sign_flip_test(d) for d in draws
    ]
    assert np.mean([p <= level for p in p_values]) == pytest.approx(0.8, abs=0.07)


def test_the_sentence_names_the_test_the_units_and_the_number_of_questions() -> None:
    over_seeds = describe_power(synthetic_study.make_study())
    assert "sign-flip test over seeds, 8 seeds, Holm over 4 questions" in over_seeds
    assert all(part in over_seeds for part in ("a difference of", "beyond the null", "unchanged"))
    bases = [f"b{i}" for i in range(6)]
    over_bases = describe_power(synthetic_study.make_study(bases=bases, seeds=12))
    assert "t test over base means, 6 bases" in over_bases
    few = describe_power(synthetic_study.make_study(seeds=4))
    assert "cannot be shown with so few seeds" in few
    described = describe_power(synthetic_study.make_study(questions=[]))
    assert "0.10 from 0.1" in described
    assert "no verdict" in described


def test_the_smallest_rise_is_found_in_four_of_five_simulated_runs() -> None:
    rise = smallest_rise(0.1, 60)
    assert rise is not None
    before, after = np.random.default_rng(0).binomial(60, [[0.1], [0.1 + rise]], (2, 2000)) / 60
    errors = np.sqrt((before * (1 - before) + after * (1 - after)) / 60)
    assert np.mean((after - before) > 1.96 * errors) == pytest.approx(0.8, abs=0.04)
    assert smallest_rise(0.5, 2) is None
