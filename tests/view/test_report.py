"""The report of a run: the live page in one file, from disk, in a real browser."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.view.conftest import Watched
from tests.view.example_runs import HOSTILE, open_run, write_run

from glasshouse.cli.app import main
from glasshouse.runs.rollout_log import LOG
from glasshouse.view import report as reports
from glasshouse.view.library import Library
from glasshouse.view.report import read_asset, write_report
from glasshouse.view.rollout_index import parse_query

pytestmark = pytest.mark.xdist_group("view page")  # one worker starts the browser once


@pytest.fixture(scope="module")
def report(gallery: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(gallery / "plain", out=tmp_path_factory.mktemp("report") / "plain.html")


@pytest.fixture
def address(report: Path) -> str:
    return report.as_uri()


def read_data(page: str) -> Any:
    """The JSON value in a report."""
    element = re.search(r'<script type="application/json" id="snapshot">(.*?)</script>', page)
    assert element
    return json.loads(element[1])


def test_it_leads_with_verdict_figure_and_a_problem_before_and_after(watched: Watched) -> None:
    page = watched.open("")
    page.locator(".highlights article").nth(1).wait_for()
    lead = page.locator(".lead").inner_text()
    assert re.match(
        r"Held-out accuracy, sampled: no change is shown, 0\.\d+ to 0\.\d+ \(95 %", lead
    )
    questions = page.locator(".highlights .question").all_inner_texts()
    assert len(questions) == 2
    assert questions[0] == questions[1]
    legend = page.locator("figure").first.locator(".legend").inner_text()
    assert legend.index("sampled") < legend.index("greedy")
    assert page.locator("figure").first.locator(".curve").count() == 2  # also of two points
    assert page.locator("figure").first.locator("circle").count() == 4
    notes = page.locator(".page-text")
    assert "A result of [3, 4]. <img src=x" in notes.inner_text()
    assert notes.locator("strong").inner_text() == "result"
    assert notes.locator("img, math").count() == 0
    order = page.evaluate(
        "['.lead', '.lead-panels', '.highlights', 'details.fold'].map("
        "(name) => document.querySelector(name).getBoundingClientRect().top)"
    )
    assert order == sorted(order)
    assert page.locator("details.fold[open]").count() == 0
    assert page.locator("details.fold").count() >= 3
    assert page.get_by_text("glasshouse monitor").first.is_visible()  # not measured yet


def test_every_other_view_works_without_a_server(watched: Watched) -> None:
    page = watched.open("#/run/plain")
    page.get_by_role("heading", name="Reward").wait_for()
    page.goto(f"{watched.address}#/run/plain/problems")
    page.locator(".group article").nth(1).wait_for()
    page.goto(f"{watched.address}#/run/plain/rollouts?first=2&last=2")
    page.locator("article.rollout").wait_for()
    page.keyboard.press("j")
    assert page.locator(".item.selected").get_attribute("data-ref") == "train.2.1"
    page.keyboard.press("g")
    page.locator(".group article").nth(3).wait_for()
    page.goto(f"{watched.address}#/run/plain/rollouts?ref=train.99.1")
    page.get_by_text("does not hold that rollout").wait_for()


def test_hostile_text_stays_text(watched: Watched, report: Path) -> None:
    text = report.read_text()
    assert text.count("</script") == text.count("<script") == 2
    assert "<img src=x" not in text
    assert any(r["text"] == HOSTILE for r in read_data(text)["rollouts"]["plain"]["rows"])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    page = watched.open("#/run/plain/rollouts?first=1&last=1&ref=train.1.0")
    article = page.locator("article.rollout")
    article.wait_for()
    assert "</script><script>" in article.inner_text()
    assert "⟨U+202E⟩" in article.inner_text()
    assert page.locator("article img, article script, article pre a").count() == 0
    assert page.title() == "plain · Glasshouse"
    value = {"<!--</script>": "\u2028&amp;"}
    assert json.loads(reports.to_inline_json(value)) == value
    assert not set("<>&\u2028") & set(reports.to_inline_json(value))


def test_filters_agree_with_the_server(watched: Watched, library: Library) -> None:
    index = library.open_run("plain").open_index(budget=60)
    for query in (
        "correct=no&rule=last",
        "min_reward=-0.8&max_reward=0.5",
        "text=ONERROR",
        "split=validation&sort=-reward",
        "flagged=step_verifier&sort=length",
        "flagged=%21step_verifier&first=2&last=4",
        "label=none&sort=-step",
    ):
        fields = dict(part.replace("%21", "!").split("=") for part in query.split("&"))
        expected = index.search(parse_query({"sort": "-step", **fields, "limit": "200"}))
        column = fields.get("sort", "step").removeprefix("-")
        values = {row["ref"]: row[column] for row in expected["rows"]}
        watched.page.goto("about:blank")
        page = watched.open(f"#/run/plain/rollouts?{query}")
        page.locator(".item").first.wait_for()
        assert page.locator(".summary b").inner_text() == str(expected["matching"]), query
        refs = page.evaluate("[...document.querySelectorAll('.item')].map((i) => i.dataset.ref)")
        # rows with the same value come in any order
        assert len(set(refs)) == min(50, expected["matching"]), query
        assert [values[ref] for ref in refs] == list(values.values())[:50], query
        wrong = page.get_by_label("Graded").locator("option[value=no]").all_inner_texts()
        assert wrong == [f"wrong ({n})" for n in (expected["facets"]["correct"].get("no"),) if n]


def test_the_size_is_bounded_and_the_page_says_what_is_left_out(
    gallery: Path, browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = gallery / "pair" / "seed-1"
    whole = read_data(write_report(run, out=tmp_path / "a.html").read_text())
    assert len(whole["rollouts"]["seed-1"]["rows"]) == whole["rollouts"]["seed-1"]["total"] == 104
    monkeypatch.setattr(reports, "ROLLOUT_BYTES", 40_000)
    monkeypatch.setattr(reports, "CURVE_STEPS", 3)
    monkeypatch.setattr(reports, "MIN_CURVE_STEPS", 3)
    file = write_report(run, out=tmp_path / "b.html")
    assert file.read_bytes() == write_report(run, out=tmp_path / "c.html").read_bytes()
    data = read_data(file.read_text())
    sample = data["rollouts"]["seed-1"]
    assert 10 < len(sample["rows"]) < 60
    marked_up = write_run(tmp_path / "markup", steps=1, groups=1, samples=8, texts=["<" * 3000] * 8)
    size = write_report(marked_up, out=tmp_path / "d.html").stat().st_size
    assert size < len(read_asset("app.js")) + len(read_asset("app.css")) + 40_000 + 40_000
    assert data["run"]["seed-1"]["metrics"]["steps"] == [1, 3, 6]
    watched = Watched(browser, file.as_uri())
    page = watched.open("#/run/seed-1/rollouts")
    page.get_by_text("A sample of 104 rollouts").wait_for()
    page.goto(f"{watched.address}#/run/seed-1")
    page.get_by_text("The curves show 3 steps of 6").wait_for()
    watched.close()


def test_several_runs_are_compared_as_arms_and_seeds(
    gallery: Path, browser: Any, tmp_path: Path
) -> None:
    other = write_run(tmp_path / "seed-2", overrides=["seed=2", "learn.kl_coef=0.3"])
    named = [str(gallery / "plain"), str(gallery / "pair" / "seed-1"), str(other)]
    assert main(["report", *named, "--out", str(tmp_path / "all.html")]) == 0
    watched = Watched(browser, (tmp_path / "all.html").as_uri())
    page = watched.open("")
    page.locator("figure.panel").first.wait_for()
    lead = page.locator(".lead").inner_text()
    for text in ("Accuracy, sampled: ", "in learn.kl_coef=0.0", "in learn.kl_coef=0.3 (2 seeds)"):
        assert text in lead, text
    page.get_by_role("link", name="seed-2", exact=True).click()
    page.get_by_role("heading", name="Reward").wait_for()
    page.get_by_role("link", name="Runs", exact=True).click()
    page.locator("table.runs tbody tr").first.wait_for()  # the page draws after its address changed
    assert page.locator("table.runs tbody tr").count() == 3
    watched.close()


def test_a_folder_is_reported_as_the_runs_in_it(
    gallery: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "seeds"
    runs = [write_run(folder / f"run-{n}", overrides=[f"seed={n}"]) for n in (1, 2)]
    with open_run(folder / "without-a-step", steps=3, done=0, evaluates=False):
        assert main(["report", str(folder)]) == 0
    page = (tmp_path / "seeds.html").read_text()
    assert [run["id"] for run in read_data(page)["runs"]] == ["run-1", "run-2"]
    assert page == write_report(*runs, out=tmp_path / "named.html").read_text()
    study = read_data(write_report(gallery / "study", out=tmp_path / "study.html").read_text())
    found = [(run["arm"], run["seed"]) for run in study["compare"]["runs"]]
    assert found == [("kl", 0), ("outcome", 0), ("outcome", 1)]  # by the names of the study
    monkeypatch.chdir(folder)
    write_report(".")
    assert (folder / "seeds.html").is_file()


def test_a_damaged_run_has_a_report_that_says_so(
    gallery: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run")
    (run / "results" / "summary.json").unlink()
    log = run / "results" / LOG
    log.write_bytes(log.read_bytes()[:-30] + bytes(30))
    assert main(["report", str(run)]) == 0
    assert "results/rollouts" in capsys.readouterr().err
    data = read_data((run / "results" / "report.html").read_text())
    assert data["run"]["run"]["verdict"].startswith("Up to step 6: ")
    assert any("rollouts" in item["file"] for item in data["run"]["run"]["damage"])
    assert data["rollouts"]["run"]["damage"]
    assert data["rollouts"]["run"]["rows"]
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path / "empty")]) == 2
    assert main(["report", *[str(run)] * 41]) == 2
    assert "at most 40 runs" in capsys.readouterr().err
