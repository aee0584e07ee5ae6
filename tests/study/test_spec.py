"""The study file: what it says of each run, and every mistake as a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from glasshouse.errors import ConfigError
from glasshouse.study import spec

STUDY = """
title: Outcome RL on a leaked hint
bases: [leaked-hint-0, leaked-hint-1]
seeds: 3
config: {task: {name: leaked_hint}, steps: 40, reward: {pressures: {length: {weight: 0.1, budget: 9}}}}
arms:
  outcome:
  kl: {learn.kl_coef: 0.3, reward.penalties.length.weight: 0.2}
  random: {reward: {random: true}}
null_arm: random
measures: {reliance: follows a wrong key}
questions:
  - {ask: "Does it rise?", measure: reliance, arm: outcome, against: start, expect: rises}
  - {ask: "Does KL help?", measure: reliance, arm: kl, expect: falls}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    return path


def test_every_arm_lays_what_differs_over_the_shared_configuration(file: Path) -> None:
    study = spec.load(file)
    kl, outcome = study.run("kl", 1), study.run("outcome", 1)
    assert (kl.learn.kl_coef, outcome.learn.kl_coef) == (0.3, 0.0)
    assert kl.reward.penalties == {"length": {"weight": 0.2, "budget": 9}}
    assert outcome.reward.penalties == {"length": {"weight": 0.1, "budget": 9}}
    assert study.run("random", 0).reward.random
    assert (study.control, study.null_arm) == ("outcome", "random")


def test_a_seed_has_the_same_base_in_every_arm(file: Path) -> None:
    study = spec.load(file)
    for arm in study.arms:
        runs = [study.run(arm, seed) for seed in range(3)]
        assert [run.model for run in runs] == ["leaked-hint-0", "leaked-hint-1", "leaked-hint-0"]
        assert [run.seed for run in runs] == [0, 1, 2]
    assert list(study.runs())[:3] == [("outcome", 0), ("kl", 0), ("random", 0)]


def test_overrides_lie_over_the_configuration_and_under_the_arms(file: Path) -> None:
    study = spec.load(file, ["steps=2", "learn.kl_coef=0.1"])
    assert study.run("outcome", 0).steps == 2
    assert study.run("outcome", 0).learn.kl_coef == 0.1
    assert study.run("kl", 0).learn.kl_coef == 0.3


def test_what_is_written_is_the_same_study(file: Path) -> None:
    study = spec.load(file, ["steps=2"])
    again = spec.check(yaml.safe_load(spec.dump(study)), "again")
    assert again == study
    assert not study.differs(again)


def test_a_part_keeps_the_questions_that_it_can_answer(file: Path) -> None:
    study = spec.load(file)
    part = study.part(["kl", "outcome"], 2)
    assert list(part.arms) == ["outcome", "kl"]
    assert len(part.questions) == 2
    assert part.null_arm is None
    assert part.seeds == 2
    assert study.part(["kl"]).questions == ()
    assert part.run("kl", 1) == study.run("kl", 1)
    with pytest.raises(ConfigError, match=r'no arm "kll"\. Did you mean "kl"'):
        study.part(["kll"])


def test_what_makes_runs_different_is_named_and_more_arms_or_seeds_do_not(file: Path) -> None:
    study = spec.load(file)
    tree = yaml.safe_load(spec.dump(study))
    tree["arms"]["more"] = {"learn.learning_rate": 0.1}
    tree |= {"seeds": 9, "title": "Other", "questions": []}
    assert study.differs(spec.check(tree, "")) == []
    tree["arms"]["kl"] = {"learn": {"kl_coef": 0.1}, "reward.penalties.length.weight": 0.2}
    assert study.differs(spec.check(tree, "")) == ["learn.kl_coef in the arm kl (0.3 → 0.1)"]
    tree["bases"] = ["pocket"]
    assert study.differs(spec.check(tree, ""))[0].startswith("bases (leaked-hint-0")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("seeds: 3", "seeds: 0", r'"seeds" is 0: .*greater than or equal to 1'),
        ("title:", "titel:", r'no key "titel"\. Did you mean "title"'),
        ("expect: falls", "expct: falls", r'no key "questions.1.expct"\. Did you mean "expect"'),
        ("null_arm: random", "null_arm: randum", r'null_arm is "randum", which is no arm\. Did you mean "random"'),
        ("null_arm: random", "control: outcom", r'control is "outcom", which is no arm\. Did you mean'),
        ("arm: kl", "arm: kI", r'questions.1.arm is "kI", which is no arm'),
        ("arm: kl", "arm: outcome", r"with itself; set `against`"),
        ("learn.kl_coef", "learn.kll", r'arms.kl: there is no key "learn.kll"\. Did you mean "learn.kl_coef"'),
        ("steps: 40", "stebs: 40", r'config: there is no key "stebs"\. Did you mean "steps"'),
        ("steps: 40", "seed: 4", r"seed is set by the study itself, from seeds"),
        ("learn.kl_coef: 0.3", "model: pocket", r"arm kl: model is set by the study itself, from bases"),
        ("  random:", "  start:", r'an arm cannot be called "start"'),
        ("  random:", "  a/b:", r'an arm cannot be called "a/b"'),
        ("expect: rises", "expect: unchanged", r"questions.0: `expect: unchanged` needs a margin"),
        ("expect: rises", "expect: up", r"'rises', 'falls' or 'unchanged'"),
        ("against: start", "against: start, at: accuracy", r"compares two arms"),
        ("bases: [leaked-hint-0, leaked-hint-1]", "", r'"bases" is missing'),
        ("title:", "? [", r"is not valid YAML"),
    ],
)  # fmt: skip
def test_a_mistake_is_a_sentence(file: Path, old: str, new: str, sentence: str) -> None:
    assert old in STUDY
    file.write_text(STUDY.replace(old, new, 1))
    with pytest.raises(ConfigError, match=sentence):
        spec.load(file)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("stebs=4", r'the command line: there is no key "stebs"'),
        ("seed=4", r"the command line: seed is set by the study itself"),
        ("steps", r'"steps" is not an override'),
    ],
)
def test_a_wrong_override_is_a_sentence(file: Path, override: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        spec.load(file, [override])


def test_the_study_that_the_docs_walk_through_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "studies.md").read_text()
    (tmp_path / "mine.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])
    study = spec.load(tmp_path / "mine.yaml")
    assert list(study.arms) == ["outcome", "kl", "random"]
    assert study.null_arm == "random"
    assert [study.against(q) for q in study.questions] == ["start", "outcome", "outcome"]


def test_a_question_within_an_arm_takes_no_other_arm(file: Path) -> None:
    tree = yaml.safe_load(STUDY)
    within = {"ask": "?", "measure": "a", "over": "b", "arm": "kl", "expect": "rises"}
    assert spec.check({**tree, "questions": [within]}, "s").part(["kl"]).questions[0].over == "b"
    with pytest.raises(ConfigError, match="`over` compares within an arm"):
        spec.check({**tree, "questions": [{**within, "against": "start"}]}, "s")
