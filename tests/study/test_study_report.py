"""The report of a study: HTML in a real browser, figures and the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console
from tests.study import synthetic_study
from tests.view.browser import CHROMIUM, RequestRecorder, hostile_text, open_in_browser
from tests.view.test_report import read_data

from glasshouse.study.analysis import Analysis, analyse_study
from glasshouse.study.figures import COLOURS, plan_figures, plot_curve, spread_labels
from glasshouse.study.report import (
    print_study,
    question_cells,
    render_report,
    render_study,
    write_report,
)
from glasshouse.study.table import Table
from glasshouse.view import figures


@pytest.fixture
def server() -> Iterator[RequestRecorder]:
    recorder = RequestRecorder()
    yield recorder
    recorder.shutdown()


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return analyse_study(synthetic_study.make_study(), synthetic_study.make_table())


def test_all_files_are_written_and_reproducible(tmp_path: Path) -> None:
    study, table = synthetic_study.make_study(), synthetic_study.make_table()
    for name in ("a", "b"):
        write_report(analyse_study(study, table), tmp_path / name)
    files = sorted(f.relative_to(tmp_path / "a") for f in (tmp_path / "a").rglob("*.*"))
    assert [str(f.relative_to("results")) for f in files] == [
        "figures/curve-disclosure-rule-disclosure.svg", "figures/curve-reliance.svg", "figures/effects.svg",
        "report.html", "study.json",
    ]  # fmt: skip
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file
    svg = (tmp_path / "a" / "results" / "figures" / "effects.svg").read_text()
    assert COLOURS[0] in svg


@pytest.mark.parametrize("width", [80, 170])
def test_terminal_and_page_show_the_same_answers(analysis: Analysis, width: int) -> None:
    console = Console(record=True, width=width)
    print_study(analysis, console)
    printed = "".join(console.export_text().split())
    study, markdown = read_data(render_report(analysis))["study"], render_study(analysis)
    page = study["text"]
    assert "reliance" in study["curves"]
    assert "learn.kl_coef: 0.3" in page
    assert "…" not in printed
    for answer in analysis.answers:
        *cells, verdict = *question_cells(answer), answer.verdict.value
        assert all(cell in markdown and cell in page for cell in cells)
        assert verdict in markdown
        assert answer.explanation in page
        assert "".join(answer.explanation.split()) in printed
        if width > 150:
            assert "".join("".join(cells).split()) in printed


def test_a_study_with_gaps_or_without_questions_has_a_page() -> None:
    rows = [
        row
        for row in synthetic_study.make_table(seeds=1)
        if (row.step, row.measure) != (16, "reliance")
    ]
    with_gaps = [
        synthetic_study.make_row(r.arm, r.seed, r.step, r.measure, None) if r.step == 24 else r
        for r in rows
    ]
    one_seed = analyse_study(synthetic_study.make_study(), Table(with_gaps))
    assert "Not measured" in render_report(one_seed)
    no_questions = analyse_study(
        synthetic_study.make_study(questions=[]), synthetic_study.make_table()
    )
    assert no_questions.headline in render_report(no_questions)


def test_effects_have_a_dot_per_seed_and_bands_stay_within_bounds(analysis: Analysis) -> None:
    axis = plan_figures(analysis)["effects"][1]().axes[0]
    drawn = [tuple(line.get_xdata()) for line in axis.lines]
    for answer in analysis.answers:
        differences = answer.effect.differences
        assert len(differences) == answer.effect.n
        assert differences in drawn
    for steps, lines in ((3, 1), (2, 0)):  # two points are no line
        _, axis = figures.new_axes("")
        rows = [(0.9, 0.7, 1.2)] * steps
        plot_curve(axis, (0, 5, 9)[:steps], rows, (0.0, 1.0), "#000000", "o")
        assert sum(line.get_linestyle() != "None" for line in axis.lines) == lines
        assert axis.dataLim.y1 <= 1


def test_labels_are_moved_apart_within_the_panel() -> None:
    assert spread_labels([0.5, 0.5], 0.1, 0, 1) == pytest.approx([0.45, 0.55])
    assert spread_labels([0.1, 0.9], 0.1, 0, 1) == pytest.approx([0.1, 0.9])
    assert spread_labels([0.97, 0.98, 0.99], 0.1, 0, 1) == pytest.approx([0.8, 0.9, 1.0])
    chain = spread_labels([0.50, 0.52, 0.58, 0.9], 0.1, 0, 1)
    assert all(b - a >= 0.1 - 1e-9 for a, b in pairwise(chain))


@pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed")
def test_a_browser_shows_hostile_text_without_errors_or_requests(
    tmp_path: Path, server: RequestRecorder
) -> None:
    bad = hostile_text(server.url).replace("\0", "")  # a study file with NUL is refused
    study = synthetic_study.make_study(
        title=bad,
        about=bad,
        questions=[{**q, "ask": bad} for q in synthetic_study.TREE["questions"]],
        measures=dict.fromkeys(synthetic_study.TREE["measures"], f"$x {bad}"),
    )
    analysis = analyse_study(study, synthetic_study.make_table())
    page = tmp_path / "report.html"
    page.write_text(render_report(analysis))
    dom, console_lines = open_in_browser(page, tmp_path)
    assert console_lines == []
    assert server.paths == []
    assert dom.count("<figure ") >= 2
    assert dom.count("<script") == 2  # the page's own
    assert "executed" in dom  # as text
