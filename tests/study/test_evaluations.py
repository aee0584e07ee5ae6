"""Kept evaluation rollouts: they give what the run measured, new monitors read them, and a table is continued."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score
from tests.study.in_process_pool import InProcessPool
from tests.study.synthetic_study import make_row

import glasshouse
from glasshouse.cli.app import main
from glasshouse.errors import GlasshouseError
from glasshouse.measurement.evaluate import draw_reserve, draw_validation
from glasshouse.measurement.rates import cohen_kappa
from glasshouse.models.sources import software_versions
from glasshouse.runs.labels import write_label
from glasshouse.runs.run_directory import load_evaluations
from glasshouse.study.analysis import analyse_study
from glasshouse.study.evaluations import (
    ROLLOUTS_FILE,
    keep_rollouts,
    load_rollouts,
    measure_rollouts,
    save_rollouts,
)
from glasshouse.study.export import HIDDEN
from glasshouse.study.records import gives_same_bits
from glasshouse.study.report import render_study
from glasshouse.study.runner import StudyResult, check_study, run_study, train_study
from glasshouse.study.spec import Study, load_study, parse_study
from glasshouse.study.table import Table, measure_again
from glasshouse.tasks.base import make_task

STUDY = """
title: Kept
bases: [leaked-hint-10]
seeds: {first: 700, count: 1}
config:
  task: {name: leaked_hint}
  steps: 2
  data: {groups_per_step: 2}
  generate: {group_size: 2, max_tokens: 72}
  evaluate: {problems: 20, samples: 2, every: 2, reserve: 120}
arms:
  outcome:
  kl: {learn.kl_coef: 0.3}
monitors: [step_verifier, ngrams_base.cot]
questions:
  - {ask: "Does it rise?", measure: undetected_use, arm: kl, expect: rises}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study in study.yaml, and its finished runs in out."""
    folder = tmp_path_factory.mktemp("kept")
    (folder / "study.yaml").write_text(STUDY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("glasshouse.study.runner.ProcessPool", InProcessPool)
        train_study(load_study(folder / "study.yaml"), folder / "out", keep_all=True)
    return folder


def test_a_reserve_without_the_package_that_fits_on_it_is_an_error_before_the_first_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    study = load_study(folder / "study.yaml")
    with pytest.raises(GlasshouseError, match=r"\[monitor\]"):
        train_study(study, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_kept_rollouts_give_what_the_run_measured(folder: Path, tmp_path: Path) -> None:
    study, run = load_study(folder / "study.yaml"), folder / "out" / "runs" / "kl" / "seed-700"
    kept = keep_rollouts(run, "kl", 700)
    save_rollouts(tmp_path / "rollouts.zst", kept)
    assert load_rollouts(tmp_path / "rollouts.zst") == {("kl", 700): kept}
    values = {(v.step, v.measure): v for v in measure_rollouts(kept, study.run_config("kl", 700))}
    for evaluation in load_evaluations(run):
        organism = evaluation["organism"]
        for name, value in organism["step_verifier"].items():
            assert values[evaluation["step"], f"step_verifier.{name}"].value == value
        assert values[evaluation["step"], "reliance"].value == organism["reliance"]
    disclosure = values[0, "step_verifier.disclosure"]
    uses = [r for r in kept if r["model_answer"] == r["meta"]["wrong_hint"] and r["step"] == 0]
    assert disclosure.n == sum(not row["split"].startswith("reserve") for row in uses)
    assert values[0, "ngrams_base.cot.tnr"].value > 0.8  # the threshold allows 5 % of benign ones
    assert values[0, "ngrams_base.prompt.auroc_planted"].value is not None
    assert -1 <= values[0, "disclosure_rule~step_verifier.kappa"].value <= 1  # type: ignore[operator]


def test_a_cut_completion_is_no_use_of_the_hint(folder: Path) -> None:
    study, run = load_study(folder / "study.yaml"), folder / "out" / "runs" / "kl" / "seed-700"
    rows = keep_rollouts(run, "kl", 700)
    cut = [row | {"finish_reason": "length"} for row in rows]
    whole, none = (
        {
            v.measure: v.value
            for v in measure_rollouts(own, study.run_config("kl", 700))
            if not v.step
        }
        for own in (rows, cut)
    )
    assert whole["behaviour"]
    assert none["behaviour"] == none["reliance"] == 0


def test_without_questions_the_page_shows_each_run_with_intervals_over_problems(
    folder: Path, tmp_path: Path
) -> None:
    asked = load_study(folder / "study.yaml")
    measures = {"reliance": "", "step_verifier.undetected_use": ""}
    study = asked.model_copy(update={"questions": (), "measures": measures})
    table = folder / "out/results/table.jsonl"
    result = run_study(study, tmp_path / "again", table=table, progress=False)
    changes = result.analysis.run_changes
    assert [(own.measure, own.arm) for own in changes] == [
        (measure, arm) for measure in measures for arm in ("outcome", "kl")
    ]
    values = {(row.arm, row.step, row.measure): row.value for row in Table.load(table)}
    for own in changes:
        assert own.first.value == values[own.arm, 0, own.measure]
        assert own.last.value == values[own.arm, 2, own.measure]
        assert own.change
        assert own.change.value is not None
        assert own.change.units == 20
        assert own.change.value == pytest.approx(own.last.value - own.first.value)
        assert own.change.low is not None
        assert own.change.high is not None
        assert own.change.low <= own.change.value <= own.change.high
    page = render_study(result.analysis)
    assert "## Each run" in page
    assert "there is no verdict" in page
    assert "## Each run" not in render_study(analyse_study(asked, Table.load(table)))


def test_a_blind_sample_can_be_read_and_its_labels_compared_with_monitors(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, blind, named = (
        folder / "out/results" / ROLLOUTS_FILE,
        tmp_path / "blind.jsonl",
        tmp_path / "named.jsonl",
    )
    assert (
        main(["study", "export", str(source), "--count", "40", "--blind", "--out", str(blind)]) == 0
    )
    assert main(["study", "export", str(source), "--count", "40", "--out", str(named)]) == 0
    assert "40 rollouts" in capsys.readouterr().out
    rows, with_arms = (
        [json.loads(line) for line in file.read_text().splitlines()] for file in (blind, named)
    )
    assert [row["id"] for row in rows] == [row["id"] for row in with_arms]
    assert not any(set(HIDDEN) & row.keys() for row in rows)
    cells = Counter((row["study_arm"], row["seed"], row["checkpoint"]) for row in with_arms)
    assert max(cells.values()) - min(cells.values()) <= 1
    for row in rows:
        write_label(blind, row["id"], "key" in row["completion"])
    report = glasshouse.measure(
        str(blind), {"label": "human_label", "hint": ""}, monitors=["rule:key=key"]
    )
    assert report.cells[0].measures["key.kappa"].value == 1
    for wrong in (["--count", "0"], ["--out", str(tmp_path)]):
        assert main(["study", "export", str(source), "--out", str(blind), *wrong]) == 2


def test_the_reserve_and_the_evaluation_have_different_problems(folder: Path) -> None:
    config = load_study(folder / "study.yaml").run_config("kl", 700)
    task = make_task("leaked_hint")
    evaluated, reserve = (
        {problem.key for problem in draw(config, task)} for draw in (draw_validation, draw_reserve)
    )
    assert len(reserve) == 120
    assert not evaluated & reserve


def test_a_new_monitor_reads_old_runs(folder: Path) -> None:
    results = folder / "out" / "results"
    table, rollouts = Table.load(results / "table.jsonl"), load_rollouts(results / ROLLOUTS_FILE)
    monitors = {"wordy": {"kind": "rule", "patterns": ["[a-z]"]}}
    study = load_study(folder / "study.yaml", [f"evaluate.monitors={json.dumps(monitors)}"])
    again = measure_again(table, rollouts, study)
    added = {row.measure for row in again} - {row.measure for row in table}
    assert {"wordy.disclosure", "wordy.tnr", "step_verifier~wordy.kappa"} <= added
    kept = [row.to_json() for row in again if row.measure not in added]
    assert kept == [row.to_json() for row in table]
    assert again.records == table.records


class NoPool(InProcessPool):
    """Lists what it is asked to train."""

    asked: list[str] = []  # noqa: RUF012

    def train(self, runs: Iterable[Any], only_check: bool = False) -> Any:
        self.asked += [run.name for run in runs]
        return iter(())


def test_a_published_table_is_continued_where_configuration_and_model_are_the_same(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, published = folder / "out" / "results", tmp_path / "published"
    published.mkdir()
    Table.load(results / "table.jsonl").save(published / "table.jsonl.zst")
    shutil.copy(results / ROLLOUTS_FILE, published)
    monkeypatch.setattr("glasshouse.study.runner.ProcessPool", NoPool)
    study = load_study(folder / "study.yaml")
    options: dict[str, Any] = {"continue_from": published / "table.jsonl.zst", "progress": False}
    result = run_study(study, tmp_path / "out", **options)
    assert NoPool.asked == []
    for name in ("table.jsonl", ROLLOUTS_FILE):
        assert (tmp_path / "out" / "results" / name).read_bytes() == (results / name).read_bytes()
    [record] = {json.dumps(own["versions"]) for own in result.table.records.values()}
    assert "torch" in record
    other = load_study(folder / "study.yaml", ["learn.learning_rate=0.1"])
    with pytest.raises(Exception, match="rows"):  # nothing was trained
        run_study(other, tmp_path / "other", **options)
    assert set(NoPool.asked) == {"outcome seed 700", "kl seed 700"}


def make_study(**changes: Any) -> Study:
    tree = {
        "title": "t",
        "bases": ["leaked-hint-0", "leaked-hint-1"],
        "arms": {"plain": {}, "other": {"learn.kl_coef": 0.3}},
        "questions": [{"ask": "?", "measure": "reliance", "arm": "other", "expect": "rises"}],
    }
    return parse_study(tree | changes, "the study")


def test_what_a_worker_reports_of_its_software_can_be_read_without_torch() -> None:
    """PyTorch's version is a text of its own class: the process of the pool would import torch to unpickle it."""
    assert {type(version) for version in software_versions().values()} == {str}


def test_a_check_compares_bytes_or_verdicts_where_other_bits_are_expected() -> None:
    kernel = {"path": "llama, kernel for small models", "cpu": "a", "versions": {"glasshouse": "1"}}
    torch = {"path": "llama, Llama in torch", "cpu": "a", "versions": {"glasshouse": "1"}}
    assert gives_same_bits(kernel, kernel | {"cpu": "b"})
    assert gives_same_bits(torch, dict(torch))
    assert not gives_same_bits(torch, torch | {"cpu": "b"})
    assert not gives_same_bits(kernel, torch)
    assert not gives_same_bits(None, kernel)

    def table(record: dict[str, Any], effect: float) -> Table:
        ends = {"plain": 0.2, "other": 0.2 + effect}
        rows = [make_row(arm, s, 9, "reliance", end + s / 1e3 * (arm == "other"))
                for arm, end in ends.items() for s in range(8)]  # fmt: skip
        return Table(rows, {(arm, s): record for arm in ends for s in range(8)})

    study, here = make_study(), table(torch | {"cpu": "b"}, 0.5)
    result = StudyResult(
        study=study, path=Path(), table=here, analysis=analyse_study(study, here), warnings={}
    )
    for committed, code in (
        (table(kernel, 0.5), 0),
        (table(torch, 0.5001), 3),  # other bits, the same verdict
        (table(torch, -0.1), 1),  # another verdict
        (table(torch | {"cpu": "b"}, 0.5001), 1),  # the bits should be equal
    ):
        assert check_study(result, committed, "t")[0] == code


def test_kappa_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 2, (2, 50))
    assert cohen_kappa(one, other) == pytest.approx(cohen_kappa_score(one, other))
    failed = np.where(np.arange(50) < 5, -1, one)
    assert cohen_kappa(failed, other) == pytest.approx(cohen_kappa_score(one[5:], other[5:]))
    assert cohen_kappa(np.ones(9, int), np.ones(9, int)) is None
