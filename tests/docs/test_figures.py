"""Every figure of the front page and of the page about the studies is recomputed from the tables.

A figure is a number written like `.86`, `+.39` or `.0078`, or a count like `8 of 8 seeds`. The lists in
front_page.py, studies_page.py and experiment_page.py say where each comes from, paragraph by paragraph. A figure
that is not listed fails the test, and so does one that is listed but differs from its table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import pytest
from tests.docs.experiment_page import experiment_page_figures
from tests.docs.front_page import front_page_figures
from tests.docs.studies_page import studies_page_figures
from tests.docs.tables import ROOT, Value

pytestmark = pytest.mark.xdist_group("figures")  # one worker reads the tables
FIGURE = re.compile(r"(?<![\d.])[+−]?[01]?\.\d{2,4}(?!\d)|\b\d+ of \d+ seeds")
PAGES: Mapping[str, Callable[[], dict[str, list[Value]]]] = {
    "README.md": cache(front_page_figures),
    "studies/README.md": cache(studies_page_figures),
    "training/monitorability.grpo/README.md": cache(experiment_page_figures),
}


def paragraphs(text: str) -> list[str]:
    """Table rows and list items, and runs of other lines between empty ones, that contain a figure.
    Each is one line, so that a figure may be broken over two lines of the page."""
    blocks = re.split(r"\n\s*\n|\n(?=\||- |\d\. )", text)
    lines = [" ".join(block.split()) for block in blocks]
    return [line for line in lines if FIGURE.search(line)]


def write_figure(value: Value, like: str) -> str:
    """The value in the notation of the page, with as many decimals as `like` has."""
    if isinstance(value, tuple):
        return f"{value[0]} of {value[1]} seeds"
    digits = f"{abs(value):.{len(like.rpartition('.')[2])}f}"
    if "." not in like:
        return digits
    sign = ("−" if value < 0 else "+") if like[0] in "+−" else ""
    return sign + (digits if digits.startswith("1") else digits.removeprefix("0"))


def check_page(text: str, figures: Mapping[str, Sequence[Value]]) -> None:
    found = paragraphs(text)
    for block in found:
        starts = [start for start in figures if block.startswith(start)]
        assert starts, f"no list says where the figures come from: {block[:70]!r}"
    for start, values in figures.items():
        block = next((block for block in found if block.startswith(start)), "")
        assert block, f"no paragraph with a figure begins with {start!r}"
        written = FIGURE.findall(block)
        assert len(written) == len(values), (start, written, values)
        assert written == [write_figure(v, w) for v, w in zip(values, written, strict=True)], start


@pytest.mark.parametrize("page", PAGES)
def test_figures_equal_the_tables(page: str) -> None:
    check_page((ROOT / page).read_text(), PAGES[page]())


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(".76", ".77", 1),
        lambda text: text.replace(".11 → .76", ".11 → .76 (.75 at step 35)"),
        lambda text: f"{text}\n\nUndetected use falls to .02 with a new method.\n",
        lambda text: text.replace("| Do monitors outside", "| Do other monitors outside"),
        lambda text: text.replace("8 of 8 seeds", "7 of 8 seeds"),
    ],
    ids=["wrong figure", "extra figure in a row", "figure elsewhere", "row renamed", "wrong count"],
)
def test_a_changed_figure_fails(change: Callable[[str], str]) -> None:
    text = (ROOT / "README.md").read_text()
    changed = change(text)
    assert changed != text
    with pytest.raises(AssertionError):
        check_page(changed, PAGES["README.md"]())
