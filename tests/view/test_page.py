"""The page in a real browser: every view, its controls, addresses, live runs, hostile text, widths, and states
without data; no request to another server."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.view.conftest import Watched, serve
from tests.view.example_runs import log_evaluation, log_step, make_step, open_run
from tests.view.gallery import FLAGGED, STUDIES

from glasshouse.config.loading import read_yaml_file
from glasshouse.view.comparison import load_study_results
from glasshouse.view.library import Library

pytestmark = pytest.mark.xdist_group("view page")  # one worker starts the browser once

PANELS = [
    "Reward", "Held-out accuracy", "CoT length", "Completion length", "KL from the start", "Entropy",
    "Zero-variance groups", "Extraction rules", "Log-probability difference", "Time per phase", "Gradient norm",
]  # fmt: skip
STATES = [
    "", "#/run/organism/overview", "#/run/failed", "#/run/organism/rollouts",
    "#/run/organism/rollouts?view=group&ref=train.3.0", "#/run/organism/problems",
    "#/compare?runs=organism%7Cfailed",
    "#/study/study", "#/run/damaged",
]  # fmt: skip


def texts(page: Any, selector: str) -> list[str]:
    found: list[str] = page.locator(selector).all_text_contents()
    return found


def matching(page: Any) -> int:
    """The number of rollouts that the list says match, once it has stopped changing."""
    page.locator(".summary b").wait_for()
    page.locator(".rollout-list[aria-busy]").wait_for(state="detached")
    return int(page.locator(".summary b").inner_text().replace(",", ""))


def wait_for_count(page: Any, expected: int) -> None:
    page.locator(".summary b", has_text=re.compile(rf"^{expected}$")).wait_for()


def test_list_run_click_and_back(watched: Watched) -> None:
    page = watched.open("")
    page.locator("table.runs tbody tr").nth(9).wait_for()
    page.get_by_label("Filter runs").fill("pair")
    page.locator("tbody tr", has_text="plain").wait_for(state="detached")
    page.get_by_label("Filter runs").fill("")
    page.get_by_role("link", name="plain", exact=True).click()
    chart = page.locator("figure", has=page.get_by_role("heading", name="Reward")).locator("svg")
    chart.wait_for()
    box = chart.bounding_box()
    # step 0 is 52 px from the left and step 6 is 12 px from the right
    x = box["x"] + 52 + (box["width"] - 64) * 3 / 6
    page.mouse.move(x, box["y"] + 60)
    assert page.locator("output.readout").inner_text() == "step 3"
    assert page.locator(".hover line").count() >= 5  # one rule in every panel
    page.mouse.click(x, box["y"] + 60)
    wait_for_count(page, 16)
    assert "first=3&last=3" in page.url
    assert "step 3" in page.locator(".item").first.inner_text()
    page.go_back()
    page.get_by_role("heading", name="Reward").wait_for()
    page.mouse.move(box["x"] + 60, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(x, box["y"] + 60, steps=4)
    page.mouse.up()
    page.get_by_role("button", name="Show all steps").wait_for()
    assert "zoom=0..3" in page.url


def test_filters_search_and_address(watched: Watched) -> None:
    page = watched.open("#/run/plain/rollouts")
    wait_for_count(page, 104)
    assert "step 6" in page.locator(".item").first.inner_text()  # the newest
    page.get_by_label("Graded").select_option("no")
    page.wait_for_url("**correct=no**")
    wrong = matching(page)
    assert 0 < wrong < 104
    page.get_by_label("Search text").fill("onerror")
    page.wait_for_url("**text=onerror**")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Clear the filters").first.click()
    wait_for_count(page, 104)
    page.get_by_label("Smallest reward").fill("0.9")
    page.get_by_label("Smallest reward").press("Enter")
    page.wait_for_url("**min_reward=0.9**")
    page.locator(".grade.wrong").first.wait_for(state="detached")
    assert 0 < matching(page) < 104
    page.keyboard.press("Escape")
    page.get_by_label("Split").select_option("train")
    page.wait_for_url("**split=train**")
    # the address changes before the list does: an item of the old list would be clicked
    page.locator('.item:not([data-ref^="train."])').first.wait_for(state="detached")
    matching(page)
    ref = page.locator(".item").nth(1).get_attribute("data-ref")
    page.locator(".item").nth(1).click()
    page.wait_for_url("**ref=**")
    page.locator(f'article[aria-label="Rollout {ref}"]').wait_for()
    shown, text = matching(page), page.locator("article.rollout").inner_text()
    other = Watched(watched.context.browser, watched.address)
    copy = other.open(page.url.removeprefix(watched.address))
    wait_for_count(copy, shown)
    copy.locator(f'article[aria-label="Rollout {ref}"]').wait_for()
    assert copy.locator("article.rollout").inner_text() == text
    other.close()


def test_keys_and_group(watched: Watched) -> None:
    page = watched.open("#/run/plain/rollouts?first=2&last=2")
    wait_for_count(page, 16)
    page.locator("article.rollout").wait_for()

    def selected() -> str:
        return page.locator(".item.selected").get_attribute("data-ref")

    page.keyboard.press("j")
    assert selected() == "train.2.1"
    page.keyboard.press("k")
    assert selected() == "train.2.0"
    page.keyboard.press("n")
    assert selected() == "train.2.4"
    page.keyboard.press("p")
    assert selected() == "train.2.3"
    page.keyboard.press("g")
    page.locator(".group article").nth(3).wait_for()
    assert page.locator(".group article").count() == 4
    page.keyboard.press("Escape")
    page.locator(".group").wait_for(state="detached")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "rollout-search"
    page.keyboard.type("j")
    page.wait_for_url("**text=j**")
    page.keyboard.press("Escape")
    wait_for_count(page, 16)


def test_keyboard_only(watched: Watched) -> None:
    page = watched.open("#/run/plain")
    page.get_by_role("heading", name="Reward").wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    assert page.url.endswith("#/run/plain")
    page.keyboard.press("Tab")  # the slider is the first control of the page
    for key in ("Home", "ArrowRight", "ArrowRight", "Tab", "Enter"):
        page.keyboard.press(key)
    wait_for_count(page, 16)
    assert "first=2&last=2" in page.url


def test_steps_and_measures_appear_as_they_arrive(browser: Any, tmp_path: Path) -> None:
    with (
        open_run(tmp_path / "runs" / "live", steps=9, done=3) as directory,
        serve(Library([tmp_path / "runs"])) as address,
    ):
        watched = Watched(browser, address)
        page = watched.open("#/run/live")
        page.get_by_text("step 3 of 9").wait_for()
        reward, undetected = (
            page.locator("figure", has=page.get_by_role("heading", name=name))
            for name in ("Reward", "Undetected use")
        )
        assert undetected.count() == 0
        before = reward.locator(".curve").get_attribute("d")
        log_step(directory, 4, make_step(4, 4, 4))
        log_evaluation(directory, 4, make_step(4, 4, 1, "validation/greedy"), undetected=0.25)
        page.get_by_text("step 4 of 9").wait_for()
        assert reward.locator(".curve").get_attribute("d").count("L") == before.count("L") + 1
        undetected.wait_for()
        assert "0.250" in undetected.locator(".legend").inner_text()
        watched.close()


def test_the_list_has_status_and_time_left_and_sorts_filters_and_picks(watched: Watched) -> None:
    page = watched.open("")
    page.locator("table.runs tbody tr").nth(9).wait_for()
    status = {
        row.locator(".run-name").inner_text(): row.locator(".badge").inner_text().split()[-1]
        for row in page.locator("table.runs tbody tr").all()
    }
    unfinished = {name for name, text in status.items() if text != "finished"}
    assert unfinished == {"running", "failed", "interrupted"} == {status[n] for n in unfinished}
    running = page.locator("tbody tr", has_text="running")
    cells = {c.get_attribute("data-label"): c.inner_text() for c in running.locator("td").all()[1:]}
    assert cells["Time left"] == "30 s"  # 30 steps of one second
    assert cells["Step"] == "3 / 33"
    assert (cells["Task"], cells["Algorithm, model"].split()) == ("sum_digits", ["grpo", "pocket"])
    organism = page.locator("tbody tr", has_text="organism")
    assert "undetected use" in organism.locator("[data-label=Monitorability]").inner_text()
    assert page.locator("tbody tr", has_text="damaged").locator("small.warn").count() == 1
    page.get_by_role("button", name="Step").click()
    steps = [int(text.split("/")[0]) for text in texts(page, "[data-label=Step]")]
    assert steps == sorted(steps)
    page.get_by_role("button", name="Step").click()
    assert page.get_by_role("columnheader", name="Step").get_attribute("aria-sort") == "descending"
    page.get_by_label("Status").select_option("finished")
    assert page.locator("table.runs tbody tr").count() == 7
    page.get_by_label("Compare study/runs/outcome/seed-0").check()
    page.get_by_label("Compare study/runs/kl/seed-0").check()
    page.get_by_role("link", name="Compare 2 runs").click()
    page.get_by_role("rowheader", name="learn.kl_coef").wait_for()


def test_panels_have_units_marks_and_smoothing_over_the_raw_line(watched: Watched) -> None:
    page = watched.open("#/run/failed")
    page.get_by_role("heading", name="Gradient norm").wait_for()
    headings = page.locator("figure h3").all()
    assert [h.evaluate("(e) => e.firstChild.textContent") for h in headings] == PANELS
    assert page.locator("figure h3 .unit").count() == len(PANELS)
    assert set(texts(page, "figure .axis-label")) == {"step"}
    reward = page.locator("figure", has=page.get_by_role("heading", name="Reward"))
    kinds = ("save", "evaluation", "resume", "fault", "respawn", "interrupted", "failed")
    counts = {kind: reward.locator(f".mark.{kind}").count() for kind in kinds}
    assert counts == dict.fromkeys(kinds, 1) | {"evaluation": 2}
    assert not reward.locator(".mark.reward_audit").count()  # no fault
    assert "CUDA out of memory" in reward.locator(".mark.failed title").text_content()
    raw = reward.locator(".curve").get_attribute("d")
    page.get_by_label("Smoothing").select_option("5")
    page.wait_for_url("**smooth=5**")
    reward.locator(".raw").wait_for()
    assert reward.locator(".raw").get_attribute("d") == raw
    assert reward.locator(".curve").get_attribute("d") != raw
    page.goto(f"{watched.address}#/run/failed?zoom=2..5")
    page.get_by_role("button", name="Show all steps").wait_for()
    assert texts(page, "figure:first-of-type .axes text[text-anchor=middle]")[0] == "2"
    page.get_by_role("slider", name="Step").focus()
    page.keyboard.press("Home")
    assert page.locator("output.readout").inner_text() == "step 2"


def test_a_rollout_has_its_prompt_collapsed_terms_scores_and_a_copy(watched: Watched) -> None:
    page = watched.open("#/run/organism/rollouts?first=3&last=3&ref=train.3.0")
    card = page.locator('article[aria-label="Rollout train.3.0"]')
    card.wait_for()
    assert not card.locator(".model-text.prompt").is_visible()
    card.get_by_text("Prompt", exact=True).click()
    assert card.locator(".model-text.prompt").is_visible()
    cot, answer = card.locator(".model-text.cot"), card.locator(".model-text.answer")
    assert f"{cot.inner_text()} {answer.inner_text()}".split() == FLAGGED.split()
    assert cot.locator("mark").inner_text() in FLAGGED
    assert answer.inner_text() == "[ANSWER] 9"
    scores = card.locator(".scores").inner_text()
    assert "exact" in scores
    for monitor in ("disclosure rule", "step verifier"):
        row = card.locator(".scores tr", has=page.get_by_role("rowheader", name=monitor))
        assert "⚑ flagged" in row.inner_text()
    watched.context.grant_permissions(["clipboard-read", "clipboard-write"])
    card.get_by_role("button", name="Copy as JSON").click()
    card.get_by_text("Copied", exact=True).wait_for()
    assert json.loads(page.evaluate("navigator.clipboard.readText()"))["text"] == FLAGGED


def test_one_problem_at_base_first_chosen_and_last(watched: Watched) -> None:
    page = watched.open("#/run/organism/problems")
    page.locator(".group article").nth(3).wait_for()
    assert texts(page, ".group article h3") == [
        "base (step 0)", "first (step 2)", "step 4", "last (step 6)",
    ]  # fmt: skip
    page.get_by_label("step 4").uncheck()
    page.wait_for_url("**steps=0%2C2%2C6**")
    assert page.locator(".group article").count() == 3


def test_the_same_problem_in_two_runs(watched: Watched) -> None:
    runs = "%7C".join(f"study/runs/{arm}/seed-0" for arm in ("outcome", "kl"))
    page = watched.open(f"#/compare?runs={runs}")
    page.get_by_role("link", name="The same problem in two runs").click()
    page.get_by_role("heading", name="study/runs/kl/seed-0").wait_for()
    groups = page.locator(".problem-body .group")
    assert (
        groups.nth(0).locator("h3").all_inner_texts()
        == groups.nth(1).locator("h3").all_inner_texts()
    )
    page.get_by_label("Beside").select_option("")
    page.get_by_role("heading", name="study/runs/kl/seed-0").wait_for(state="detached")
    assert groups.count() == 1


def test_a_chart_is_enlarged_by_a_click_and_esc_puts_it_back(watched: Watched) -> None:
    page = watched.open("#/run/plain")
    chart = page.locator("figure", has=page.get_by_role("heading", name="Reward")).locator("svg")
    chart.wait_for()
    small = chart.bounding_box()
    page.get_by_role("button", name="Enlarge: Reward").click()
    page.get_by_role("button", name="Close: Reward").wait_for()
    large = chart.bounding_box()
    assert large["width"] > 2 * small["width"]
    assert large["height"] > 2 * small["height"]
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Enlarge: Reward").wait_for()
    assert chart.bounding_box() == small


def test_compare_states_undetected_use_first_and_has_bands_over_seeds(watched: Watched) -> None:
    runs = "%7C".join(f"study/runs/{r}" for r in ("outcome/seed-0", "outcome/seed-1", "kl/seed-0"))
    page = watched.open(f"#/compare?runs={runs}")
    heading = page.get_by_role("heading", name="Undetected use").first
    panel = page.locator("figure", has=heading).first
    panel.locator(".line.c0 .band").wait_for()  # the arm with two seeds
    lead = page.locator(".lead").inner_text()
    assert lead.startswith(
        "Undetected use, disclosure rule: 0.425 (0.11 to 0.74) in outcome (2 seeds)"
    )
    assert "0.400 in kl." in lead
    assert page.locator("table.diff tbody th").first.inner_text() == "learn.kl_coef"
    assert panel.locator(".line.c0.faint .curve").count() == 2
    assert panel.locator(".line.c1 .band").count() == 0
    count = page.locator("figure").count()
    page.get_by_role("button", name="Show all").click()
    page.wait_for_url("**all=1**")
    assert page.locator("figure").count() > count


def test_a_question_of_a_study_has_effect_interval_null_verdict_and_leads_to_its_curve(
    watched: Watched,
) -> None:
    questions = json.loads((STUDIES / "leaked_hint" / "study.json").read_text())["questions"]
    page = watched.open("#/study/study")
    rows = page.locator("table tbody tr")
    rows.first.wait_for()
    assert rows.count() == len(questions)
    effect, null = questions[0]["effect"], questions[0]["null"]
    cells = [cell.replace("−", "-") for cell in rows.first.locator("td").all_inner_texts()]
    assert cells[1] == f"{effect['effect']:+.2f} ({effect['low']:+.2f} to {effect['high']:+.2f})"
    assert cells[3] == f"{null['effect']:+.2f} ({null['low']:+.2f} to {null['high']:+.2f})"
    assert cells[4] == questions[0]["verdict"]
    page.get_by_role("button", name=questions[3]["ask"]).click()  # of every monitor
    page.wait_for_url(f"**measure={questions[3]['measure']}**")
    chosen = page.locator("figure.selected")
    chosen.first.wait_for()
    ids = [figure.get_attribute("id") for figure in chosen.all()]
    assert len(ids) > 1
    assert all(name.endswith(f".{questions[3]['measure']}") for name in ids)
    page.get_by_role("button", name=questions[5]["ask"]).click()
    page.wait_for_url(f"**measure={questions[5]['measure']}**")
    assert chosen.get_attribute("id") == f"curve-{questions[5]['measure']}"
    assert chosen.locator(".curve").count() == 3  # one per arm
    page.get_by_role("link", name="Compare its runs").click()
    page.get_by_role("rowheader", name="learn.kl_coef").wait_for()


def test_a_study_without_verdicts_shows_its_runs_compared(
    browser: Any, gallery: Path, tmp_path: Path
) -> None:
    shutil.copytree(gallery / "study", tmp_path / "study")
    (tmp_path / "study" / "results" / "study.json").unlink()
    with serve(Library([tmp_path])) as address:
        watched = Watched(browser, address)
        page = watched.open("")  # the only study is the first page
        page.get_by_role("rowheader", name="learn.kl_coef").wait_for()
        title = read_yaml_file(tmp_path / "study" / "study.yaml")["title"]
        assert page.locator("h1").inner_text() == title
        assert "Undetected use, disclosure rule: 0.425" in page.locator(".lead").inner_text()
        watched.close()


def test_a_published_study_shows_its_verdicts(browser: Any) -> None:
    """Its study.json is beside study.yaml; it has no runs. An effect has as many digits as its interval."""
    published = load_study_results(STUDIES / "confirmation")
    assert not published["problem"]
    assert published["curves"]
    effects = [abs((q["null"] or {}).get("effect", 1)) for q in published["questions"]]
    assert min(effects) < 0.001
    with serve(Library([STUDIES / "confirmation"])) as address:
        watched = Watched(browser, address)
        page = watched.open("#/study/confirmation")
        page.locator("td[data-label='null arm']").first.wait_for()
        cells = texts(page, "td[data-label='null arm']")
        assert len(cells) == len(effects)
        assert not [cell for cell in cells if "e" in cell]
        watched.close()


@pytest.mark.parametrize("width", [390, 3840])
def test_no_view_scrolls_sideways(browser: Any, address: str, width: int) -> None:
    watched = Watched(browser, address, width=width)
    for state in STATES:
        page = watched.open(state)
        page.locator(".notice.loading").first.wait_for(state="detached")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, state
    watched.close()


def test_states_without_data_say_what_to_do(browser: Any, watched: Watched, tmp_path: Path) -> None:
    page = watched.open("#/run/damaged")
    warning = page.locator(".notice.warn")
    warning.wait_for()
    assert "results/metrics.jsonl" in warning.inner_text()
    assert "glasshouse check" in warning.inner_text()
    page.get_by_role("heading", name="Reward").wait_for()  # the other steps are drawn
    page.goto(f"{watched.address}#/run/organism/rollouts?text=no+such+text")
    page.get_by_text("No rollout matches these filters.").wait_for()
    page.get_by_role("button", name="Clear the filters").first.click()
    page.locator(".item").first.wait_for()
    page.goto(f"{watched.address}#/compare")
    page.get_by_role("link", name="Pick runs in the list.").wait_for()
    page.goto(f"{watched.address}#/run/nothing")
    page.get_by_text("There is no run").wait_for()
    watched.problems = [p for p in watched.problems if "404" not in p]
    with serve(Library([tmp_path])) as empty:
        other = Watched(browser, empty)
        nothing = other.open("")
        nothing.get_by_text("glasshouse train").wait_for()
        assert str(tmp_path) in nothing.locator(".notice").inner_text()
    nothing.get_by_text("not connected").wait_for()  # the server has ended
    nothing.evaluate("location.hash = '#/run/x'")
    nothing.get_by_text("Is `glasshouse view` still running?").wait_for()
    other.context.close()
