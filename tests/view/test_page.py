"""The page in a real browser: live curves, rollouts, keys, addresses, hostile text, no request outside."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.view.conftest import Watched, serve
from tests.view.example_runs import (
    log_evaluation,
    log_step,
    make_step,
    open_run,
)

from glasshouse.view.library import Library

pytestmark = pytest.mark.xdist_group("view page")  # one worker starts the browser once


@pytest.fixture(scope="module")
def address(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve(Library([runs], tmp_path_factory.mktemp("page-cache"))) as url:
        yield url


def matching(page: Any) -> int:
    """The number of rollouts that the list says match, once it has stopped changing."""
    page.locator(".summary b").wait_for()
    page.locator(".rollout-list[aria-busy]").wait_for(state="detached")
    return int(page.locator(".summary b").inner_text().replace(",", ""))


def wait_for_count(page: Any, expected: int) -> None:
    page.locator(".summary b", has_text=re.compile(rf"^{expected}$")).wait_for()


def test_list_run_click_and_back(watched: Watched) -> None:
    page = watched.open("")
    assert page.locator("table.runs tbody tr").count() == 2
    page.get_by_label("Filter runs").fill("pair")
    page.locator("tbody tr", has_text="plain").wait_for(state="detached")
    page.get_by_label("Filter runs").fill("")
    page.get_by_role("link", name="plain", exact=True).click()
    chart = page.locator("figure", has=page.get_by_role("heading", name="Reward")).locator("svg")
    chart.wait_for()
    box = chart.bounding_box()
    # the plot begins 46 px from the left and ends 12 px from the right; steps 0 to 6
    x = box["x"] + 46 + (box["width"] - 58) * 3 / 6
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


def test_hostile_completions_stay_text(watched: Watched) -> None:
    page = watched.open("#/run/plain/rollouts?first=1&last=1&ref=train.1.0")
    article = page.locator("article.rollout")
    article.wait_for()
    text = article.inner_text()
    assert "<img src=x onerror=" in text
    assert "</script><script>" in text
    assert "␛[31mred" in text
    assert "⟨U+202E⟩" in text
    assert page.locator("article img, article script, article pre a").count() == 0
    page.goto(f"{watched.address}#/run/plain/rollouts?first=1&last=1&ref=train.1.1")
    page.get_by_text("more characters are not shown").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.goto(f"{watched.address}#/run/plain/rollouts?suspicious=garbled")
    page.locator(".item", has_text="<img src=x").wait_for()
    assert page.title() == "plain · Glasshouse"


def test_a_run_that_does_not_exist_is_named(watched: Watched) -> None:
    page = watched.open("#/run/nothing")
    page.get_by_role("alert").wait_for()
    assert "There is no run" in page.get_by_role("alert").inner_text()
    watched.problems = [p for p in watched.problems if "404" not in p]


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


def test_downloads(watched: Watched, tmp_path: Path) -> None:
    page = watched.open("#/run/plain")
    panel = page.locator("figure", has=page.get_by_role("heading", name="Reward"))
    for kind, start in {"CSV": b"step,reward\r\n1,", "SVG": b"<svg"}.items():
        with page.expect_download() as download:
            panel.get_by_role("button", name=kind).click()
        assert download.value.suggested_filename == f"Reward.{kind.lower()}"
        download.value.save_as(tmp_path / kind)
        assert (tmp_path / kind).read_bytes().startswith(start)
    assert b"<title>Reward</title>" in (tmp_path / "SVG").read_bytes()


def test_steps_and_measures_appear_as_they_arrive(browser: Any, tmp_path: Path) -> None:
    with (
        open_run(tmp_path / "runs" / "live", steps=9, done=3) as directory,
        serve(Library([tmp_path / "runs"], tmp_path / "cache")) as address,
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
