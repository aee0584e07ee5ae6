"""A study as people see it: the page in a real browser, its pictures, and the terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console
from tests.report.test_run_page import CHROMIUM, Site, hostile, opened
from tests.study import synthetic

from glasshouse.report import figures, study_figures, study_page
from glasshouse.report.study_output import present
from glasshouse.study.analysis import analyse
from glasshouse.study.table import Table

VERSIONS = {"glasshouse": "1", "torch": "2"}


@pytest.fixture
def site() -> Iterator[Site]:
    server = Site()
    yield server
    server.shutdown()


def test_everything_is_written_and_twice_the_same(tmp_path: Path) -> None:
    console = Console(record=True, width=160)
    for name in ("a", "b"):
        present(synthetic.study(), synthetic.table(), tmp_path / name, VERSIONS, console)
    files = sorted(f.relative_to(tmp_path / "a") for f in (tmp_path / "a").rglob("*.*"))
    assert [str(f) for f in files] == [
        "figures/curve-discloses-disclosure.png", "figures/curve-discloses-disclosure.svg",
        "figures/curve-reliance.png", "figures/curve-reliance.svg",
        "figures/effects.png", "figures/effects.svg", "report.html", "study.json",
    ]  # fmt: skip
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file
    svg = (tmp_path / "a" / "figures" / "effects.svg").read_text()
    assert study_figures.LIGHT[0] in svg
    assert not any(stand_in in svg for stand_in in figures.COLOURS)


def test_the_terminal_has_a_row_and_a_sentence_for_each_question() -> None:
    console = Console(record=True, width=170)
    study = synthetic.study()
    present_to(console, study, synthetic.table())
    out = console.export_text()
    for question in study.questions:
        assert out.count(question.ask) == 2
    first = next(line for line in out.splitlines() if study.questions[0].ask in line)
    assert re.search(r"\+0\.7\d \(\+0\.\d\d to \+0\.\d\d\) +0\.031 .*Shown", first)
    assert "within ±0.15" in out


def test_a_narrow_terminal_loses_nothing() -> None:
    narrow = Console(record=True, width=80)
    present_to(narrow, synthetic.study(), synthetic.table())
    out = narrow.export_text()
    rows = out[: out.index("1. Does")]
    assert "…" not in rows
    assert re.search(r"1 +\+0\.7\d +0\.031 +\+0\.09 +\+0\.78 Shown", rows)
    assert (
        len(re.findall(r"\([+-]0\.\d+ to [+-]0\.\d+\)", rows)) == 8
    )  # effect and null, each whole
    assert rows.count("Not shown") == 1


def present_to(console: Console, study: synthetic.Study, table: Table) -> None:
    from glasshouse.report.study_table import show

    show(analyse(study, table), console)


def test_the_page_holds_the_verdict_first_and_what_it_rests_on() -> None:
    page = study_page.page(analyse(synthetic.study(), synthetic.table()), VERSIONS)
    parts = (
        'class="verdict"', "Shown", "Not shown", "<h2>Questions", "Over training", "Before and after",
        "Arms, bases, seeds", "learn.kl_coef: 0.3", "leaked-hint-1", "How to read it", "TOST",
        "How to reproduce", "glasshouse study study.yaml", "reward.random",
    )  # fmt: skip
    places = [page.index(part, page.index("<body>")) for part in parts[:8]]
    assert places[0] < places[3] < places[4] < places[5] < places[6]
    for part in parts:
        assert part in page, part
    assert page.count("<svg ") == 3  # effects, and two measures
    assert figures.INK not in page
    assert "var(--line-4)" in page  # five arms, five colours


def test_a_study_of_one_seed_with_gaps_and_without_questions_has_a_page() -> None:
    rows = [r for r in synthetic.table(seeds=1) if (r.step, r.measure) != (16, "reliance")]
    gaps = [
        synthetic.row(r.arm, r.seed, r.step, r.measure, None) if r.step == 24 else r for r in rows
    ]
    page = study_page.page(analyse(synthetic.study(), Table(gaps)), VERSIONS)
    assert "Not measured" in page
    nothing = analyse(synthetic.study(questions=[], null=None), synthetic.table())
    assert "The study asks no question." in study_page.page(nothing, VERSIONS)


def test_labels_are_moved_apart_and_stay_inside() -> None:
    assert study_figures.spread([0.5, 0.5], 0.1, 0, 1) == pytest.approx([0.45, 0.55])
    assert study_figures.spread([0.1, 0.9], 0.1, 0, 1) == pytest.approx([0.1, 0.9])
    crowded = study_figures.spread([0.97, 0.98, 0.99], 0.1, 0, 1)
    assert crowded == pytest.approx([0.8, 0.9, 1.0])
    chain = study_figures.spread([0.50, 0.52, 0.58, 0.9], 0.1, 0, 1)
    assert all(b - a >= 0.1 - 1e-9 for a, b in pairwise(chain))


@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium on this machine")
def test_a_real_browser_shows_it_without_an_error_or_a_request(tmp_path: Path, site: Site) -> None:
    bad = hostile(site.url)
    asked = [{**q, "ask": bad} for q in synthetic.TREE["questions"]]
    told = dict.fromkeys(synthetic.TREE["measures"], f"$x {bad}")
    study = synthetic.study(title=bad, about=bad, questions=asked, measures=told)
    page = study_page.write(analyse(study, synthetic.table()), tmp_path, {bad: bad})
    shown, said = opened(page, tmp_path)
    assert said == []
    assert site.hits == []
    assert shown.count("<svg ") == 3
    assert "<script" not in shown
    assert "obeyed" in shown  # as text
