"""Frozen study files: what is registered, amendments, and seeds that another study has used."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pytest
from rich.console import Console
from tests.study.synthetic_study import TREE, make_row, make_table

from glasshouse.cli.app import main
from glasshouse.config.loading import dump_yaml, parse_yaml
from glasshouse.errors import ConfigError
from glasshouse.study.analysis import analyse_study
from glasshouse.study.freeze import (
    check_seeds_are_fresh,
    describe_registration,
    freeze_study,
    list_amendments,
)
from glasshouse.study.records import hash_model
from glasshouse.study.report import publish_study, write_report
from glasshouse.study.spec import load_study, parse_study
from glasshouse.study.table import Table

STUDY = """\
title: Outcome RL on a leaked hint
bases: [leaked-hint-0, leaked-hint-1]
seeds: {first: 100, count: 4}  # fresh seeds
config: {task: {name: leaked_hint}, steps: 40, reward: {penalties: {length: {weight: 0.1, budget: 9}}}}
arms:
  outcome:
  kl: {learn.kl_coef: 0.3, reward.penalties.length.weight: 0.2}
questions:
  - {ask: "Does it rise?", measure: reliance, arm: outcome, against: start, expect: rises}
  - {ask: "Does KL help?", measure: reliance, arm: kl, expect: falls}
"""
DAY = datetime.date(2026, 11, 16)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "studies" / "mine" / "study.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(STUDY)
    return path


def test_freezing_appends_date_hash_and_a_copy_and_keeps_the_rest(file: Path) -> None:
    frozen = freeze_study(file, DAY)
    text = file.read_text()
    assert text.startswith(STUDY)  # comments included
    study = load_study(file)
    assert study.frozen == frozen
    assert study.frozen.date == DAY
    assert study.frozen.content["config"]["steps"] == 40  # the horizon
    assert study.frozen.content["seeds"] == [100, 101, 102, 103]
    assert list_amendments(study) == []
    assert "2026-11-16" in describe_registration(study)


def test_comments_layout_and_words_are_no_amendments_but_settings_are(file: Path) -> None:
    freeze_study(file, DAY)
    frozen = file.read_text()
    same = (
        frozen.replace("# fresh seeds", "")
        .replace("title: Outcome RL on a leaked hint", "title: Other\nabout: words")
        .replace("learn.kl_coef: 0.3", "learn: {kl_coef: 0.3}", 1)
        .replace("{first: 100, count: 4}", "[100, 101, 102, 103]", 1)
    )
    assert same != frozen
    file.write_text(same)
    assert list_amendments(load_study(file)) == []
    for old, new, amendment in [
        ("steps: 40", "steps: 50", "config.steps: 40 → 50"),
        ("count: 4", "count: 5", "seeds: 100, 101, 102, 103 → 100, 101, 102, 103, 104"),
        ("[leaked-hint-0, leaked-hint-1]", "[leaked-hint-0]", "bases: "),
        ("weight: 0.2", "weight: 0.5", "arms.kl.reward.penalties.length.weight: 0.2 → 0.5"),
        ("  outcome:\n", "  outcome:\n  more: {learn.kl_coef: 1}\n", "arms.more: added"),
        ("arms:", "evaluation_problems: per_seed\narms:", "evaluation_problems: shared → per_seed"),
        ("expect: falls", "expect: rises", 'question "Does KL help?".expect: falls → rises'),
        ("Does KL help?", "Does KL hurt?", 'question "Does KL help?": removed'),
    ]:
        assert old in frozen
        file.write_text(frozen.replace(old, new, 1))
        amendments = list_amendments(load_study(file))
        assert amendments, new
        assert any(line.startswith(amendment) for line in amendments), amendments
    file.write_text(frozen)
    assert list_amendments(load_study(file, ["steps=4"])) == ["config.steps: 40 → 4"]
    assert list_amendments(load_study(file, seeds=2))[0].startswith("seeds: ")


def test_commit_bases_pilot_and_earlier_freezes_are_registered(file: Path) -> None:
    pilot = file.with_name("pilot.jsonl")
    rows = [
        make_row("outcome", 0, step, name, 0.5) for step in (0, 9) for name in ("reliance", "x")
    ]
    Table(rows).save(pilot)
    first = freeze_study(file, DAY, pilot=pilot)
    assert first.content["base_sha256"]["leaked-hint-0"] == hash_model("leaked-hint-0")
    assert re.match(r"[0-9a-f]{7,}", first.content["commit"])
    assert [line.split(": ")[1] for line in first.content["pilot"]] == ["reliance 0.5"] * 2
    file.write_text(file.read_text().replace("steps: 40", "steps: 50", 1))
    with pytest.raises(ConfigError, match="--again"):
        freeze_study(file)
    second = freeze_study(file, again=True)
    assert second.earlier[0]["sha256"] == first.sha256
    assert second.earlier[0]["changed_after"] == ["config.steps: 40 → 50"]
    study = load_study(file)
    assert list_amendments(study) == []
    assert "1 earlier freeze" in describe_registration(study)
    known = {
        ("outcome", seed): {"model": first.content["base_sha256"][study.base_of(seed)]}
        for seed in (100, 101)
    }
    assert list_amendments(study, Table([], known)) == []
    other = Table([], known | {("outcome", 101): {"model": "other"}})
    assert list_amendments(study, other) == [
        "leaked-hint-1: trained from other weights than the registered ones"
    ]


def test_the_copy_of_a_frozen_file_cannot_be_edited(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", "freeze", str(file)]) == 0
    assert "commit the file first" in capsys.readouterr().out
    frozen = file.read_text()
    file.write_text(frozen.replace("steps: 40\n", "steps: 50\n"))
    with pytest.raises(ConfigError, match=r"frozen.*sha256"):
        load_study(file)


def test_seeds_of_another_study_are_refused_unless_it_is_named(file: Path) -> None:
    root = file.parents[2]
    for other in (
        root / "studies" / "other" / "study.yaml",
        root / "training" / "other.grpo" / "study.yaml",
    ):
        other.parent.mkdir(parents=True)
        other.write_text(STUDY.replace("first: 100", "first: 103"))
        with pytest.raises(ConfigError, match=r"seeds: 103 .*other.*first: 200.*reuse_seeds"):
            check_seeds_are_fresh(load_study(file), file)
        assert main(["study", "freeze", str(file)]) == 2
        assert file.read_text() == STUDY
        file.write_text(f"{STUDY}reuse_seeds: [{other.parent.name}]\n")
        check_seeds_are_fresh(load_study(file), file)
        check_seeds_are_fresh(load_study(other), other)  # one of the two names the other
        file.write_text(STUDY)
        other.write_text(STUDY.replace("first: 100", "first: 104"))
        check_seeds_are_fresh(load_study(file), file)
        other.write_text(STUDY.replace("[leaked-hint-0, leaked-hint-1]", "[pocket]"))
        check_seeds_are_fresh(load_study(file), file)


def test_a_frozen_study_is_not_run_with_seeds_that_another_study_has_used_since(file: Path) -> None:
    freeze_study(file, DAY)
    assert main(["study", str(file), "--dry-run"]) == 0
    file.with_name("later.yaml").write_text(STUDY)
    assert main(["study", str(file), "--dry-run"]) == 2


def test_seeds_are_a_number_a_range_or_a_list() -> None:
    tree = parse_yaml(STUDY)
    valid = ((3, (0, 1, 2)), ({"first": 100, "count": 2}, (100, 101)), ([7, 5], (5, 7)))
    for seeds, expected in valid:
        assert parse_study({**tree, "seeds": seeds}, "s").seeds == expected
    too_long = {"first": 1, "count": 2, "step": 3}
    for wrong in (0, True, [], [1, 1], [-1], "3", {"first": 1}, too_long):
        with pytest.raises(ConfigError, match="seeds"):
            parse_study({**tree, "seeds": wrong}, "s")


def test_amendments_are_in_the_report_the_readme_and_the_printed_table(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(dump_yaml({**TREE, "config": {**TREE["config"], "steps": 30}}))
    freeze_study(file, DAY)
    study = load_study(file, ["steps=40"])
    console = Console(record=True, width=150)
    results = tmp_path / "results"
    table = make_table()
    analysis = analyse_study(study, table)
    write_report(analysis, tmp_path, console)
    publish_study(analysis, table, tmp_path, tmp_path / "published", "glasshouse study s.yaml")
    for text in (
        console.export_text(),
        (results / "report.html").read_text(),
        (results / "study.json").read_text(),
        (tmp_path / "published" / "README.md").read_text(),
    ):
        assert "2026-11-16" in text
        assert "config.steps: 30 → 40" in text
