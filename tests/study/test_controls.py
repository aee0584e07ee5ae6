"""`glasshouse study control`: its verdict, and the study that it runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.study.in_process_pool import InProcessPool
from tests.study.test_runner import SMALL

from glasshouse.cli.app import main
from glasshouse.study.analysis import analyse_study
from glasshouse.study.controls import CONTROLS, judge_control
from glasshouse.study.runner import StudyResult
from glasshouse.study.spec import study_from_config
from glasshouse.study.table import StudyRow, Table


def result(positive: tuple[float, float], negative: tuple[float, float]) -> StudyResult:
    """Eight seeds per arm, with the accuracy before and after; seeds differ a little."""
    question = {"measure": "pass_at_1", "against": "start", "expect": "rises"}
    study = study_from_config(
        [],
        [],
        title="t",
        arms=CONTROLS,
        null_arm="negative",
        seeds=8,
        questions=[{"ask": "?", "arm": arm, **question} for arm in CONTROLS],
    )
    values = zip(CONTROLS, (positive, negative), strict=True)
    table = Table(
        StudyRow(arm, seed, step, "pass_at_1", study.bases[0], value + 0.01 * step * (seed % 3))
        for arm, curve in values
        for seed in range(8)
        for step, value in enumerate(curve)
    )
    analysis = analyse_study(study, table)
    return StudyResult(study=study, path=Path(), table=table, analysis=analysis, warnings={})


@pytest.mark.parametrize(
    ("positive", "negative", "expected", "words"),
    [
        ((0.3, 0.9), (0.3, 0.29), True, "Passed"),
        ((0.3, 0.9), (0.3, 0.2), True, "Passed"),  # noise may also harm
        ((0.3, 0.9), (0.3, 0.5), False, "answers leak"),
        ((0.3, 0.29), (0.3, 0.29), False, "not shown"),
    ],
)
def test_a_pipeline_must_learn_and_only_from_its_rewards(
    positive: tuple[float, float], negative: tuple[float, float], expected: bool, words: str
) -> None:
    passed, sentence = judge_control(result(positive, negative))
    assert passed == expected
    assert words in sentence


def test_control_trains_both_arms_once_and_reports_them_as_a_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glasshouse.study.runner.ProcessPool", InProcessPool)
    out = tmp_path / "control"
    command = ["study", "control", "--seeds", "1", "--out", str(out), *SMALL, "steps=2"]
    assert main(command) == 1
    printed = capsys.readouterr().out
    assert "positive seed 0" in printed
    assert "negative seed 0" in printed
    assert "that it learns is not shown" in printed
    assert (out / "results" / "report.html").exists()
    report = (out / "results" / "study.json").read_text()
    times = {p: p.stat().st_mtime_ns for p in out.glob("runs/*/*/results/summary.json")}
    assert len(times) == 2
    assert main(command) == 1
    assert {p: p.stat().st_mtime_ns for p in times} == times
    assert (out / "results" / "study.json").read_text() == report
