"""The studies that ship: each file goes through the same code in small, and each published table says
what its page says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from glasshouse.cli import main
from glasshouse.report.study_output import present, publish
from glasshouse.study import spec
from glasshouse.study.analysis import FILE, analyse, write
from glasshouse.study.table import Row, Table

ROOT = Path(__file__).resolve().parents[2]
STUDIES = sorted([*(ROOT / "studies").glob("*.yaml"), *(ROOT / "training").glob("*/study.yaml")])
KEPT = {
    file: ROOT / "docs" / "studies" / file.stem
    for file in STUDIES
    if file.parent == ROOT / "studies"
}
KEPT |= {file: file.parent / "results" for file in STUDIES if file not in KEPT}
"""Where the results of each are."""
SMALL = [
    "data.groups_per_step=2", "generate.group_size=2", "generate.max_tokens=40", "evaluate.problems=6",
    "evaluate.samples=1", "monitor.problems=4", "monitor.samples=1",
]  # fmt: skip


@pytest.mark.parametrize("file", [f for f in STUDIES if f.parent.name == "studies"], ids=spec.name)
def test_a_shipped_study_runs_in_small(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = spec.load(file)
    asked = study.questions[0]
    against = study.against(asked)
    chosen = f"{asked.arm},{study.null_arm if against == spec.START else against}"
    asked_at = [q.at for q in study.questions if isinstance(q.at, int)]
    steps = [f"steps={max(asked_at, default=2)}", f"evaluate.every={min(asked_at, default=2)}"]
    given = [str(file), *SMALL, *steps, "--seeds", "2", "--arms", chosen, "--jobs", "1"]
    assert main(["study", *given, "--out", str(tmp_path / "s")]) == 0
    found = json.loads((tmp_path / "s" / "results" / FILE).read_text())
    assert {q["verdict"] for q in found["questions"]} <= {"Not shown", "Not measured"}
    assert "So few seeds can show nothing" in capsys.readouterr().out
    assert (tmp_path / "s" / "results" / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize("file", STUDIES, ids=spec.name)
def test_a_shipped_study_is_large_enough_to_show_something(file: Path) -> None:
    study = spec.load(file)
    assert 2.0 ** (1 - study.seeds) * len(study.questions) <= 0.05
    if file.parent.name == "studies":
        assert study.seeds >= 8
        assert len(study.bases) >= 2
        assert study.null_arm


@pytest.mark.parametrize("file", STUDIES, ids=spec.name)
def test_a_shipped_study_is_published_and_its_analysis_is_that_of_its_table(
    file: Path, tmp_path: Path
) -> None:
    table = Table.read(KEPT[file] / "table.jsonl.zst")
    study = spec.load(file)
    assert {(row.arm, row.seed) for row in table} == {
        (arm, seed) for arm in study.arms for seed in range(study.seeds)
    }
    assert write(analyse(study, table), tmp_path).read_bytes() == (KEPT[file] / FILE).read_bytes()


def test_a_table_is_published_packed_and_answers_without_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(
        "title: t\nbases: [a]\nseeds: 6\narms: {one: {}}\nmeasures: {m: it}\n"
        "questions: [{ask: q, measure: m, arm: one, against: start, expect: rises}]\n"
    )
    table = Table(
        Row(arm="one", seed=s, step=step, measure="m", base="a", value=step / 10 + s / 100)
        for s in range(6)
        for step in (0, 5)
    )
    found = present(spec.load(file), table, tmp_path / "results", {}, Console())
    publish(found, table, tmp_path / "results", tmp_path / "kept", "glasshouse study s.yaml")
    told = (tmp_path / "kept" / "README.md").read_text()
    assert "| 1 | q | +0.50 (+0.50 to +0.50) | 0.031 |" in told
    assert "](curve-m.png)" in told
    packed = tmp_path / "kept" / "table.jsonl.zst"
    assert Table.read(packed).text() == table.text()
    given = ["study", str(file), "--table", str(packed), "--check", str(packed)]
    capsys.readouterr()
    assert main([*given, "--out", str(tmp_path / "again")]) == 0
    said = capsys.readouterr().out
    assert "Shown: m rises in one" in said
    assert "identical: 12 rows" in said
    assert (tmp_path / "again" / "results" / FILE).read_bytes() == (
        tmp_path / "kept" / FILE
    ).read_bytes()
    packed.write_bytes(b"no table")
    assert main([*given, "--out", str(tmp_path / "bad")]) == 2
