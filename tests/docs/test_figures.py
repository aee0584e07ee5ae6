"""Figures of the pages about results, like `.86` or `8 of 8 seeds`, are recomputed from the tables of the studies.

A paragraph, list item or table row with figures ends with a marker that says where they come from, in their order:

    <!-- figures: ends("ladder", "plain", UNDETECTED, 40), published("confirmation", 3) -->

tests/docs/tables.py has the functions.
"""

from __future__ import annotations

import re

import pytest
from tests.docs import tables
from tests.docs.tables import ROOT, Value

pytestmark = pytest.mark.xdist_group("figures")  # one worker reads the tables
FIGURE = re.compile(r"(?<![\d.])[+−]?[01]?\.\d{2,4}(?!\d)|\b\d+ of \d+ seeds")
CODE = re.compile(r"`[^`]*`")
MARKER = re.compile(r"<!-- figures: (.*?) -->")
SECTIONS = {
    "README.md": (),
    "studies/README.md": (),
    "training/digits.reinforce/README.md": ("## Result", "\n    glasshouse study"),
    "training/hint.smollm2/README.md": ("## Result", "Cost, estimated"),
    "training/interleave.grpo/README.md": ("## Result", "\n    glasshouse study"),
    "training/monitorability.grpo/README.md": (),
    "training/positive_control.grpo/README.md": ("## Result: three digits", "## Where things are"),
    "training/smollm2.grpo/README.md": ("## Result", "\n## "),
    "docs/models.md": ("## Real models learn", "\n## "),
}
"""By page: where the section with figures begins and ends; empty: the whole page."""


def read_section(page: str) -> str:
    text = (ROOT / page).read_text()
    if SECTIONS[page]:
        begin, end = SECTIONS[page]
        text = text.split(begin)[1].split(end)[0]
    return text


def compute_figures(marker: str) -> list[Value]:
    values = eval(f"[{marker}]", vars(tables).copy())
    return [v for item in values for v in (item if isinstance(item, list) else [item])]


def write_figure(value: Value, like: str) -> str:
    """The value in the notation of the page, with as many decimals as `like` has."""
    if isinstance(value, tuple):
        return f"{value[0]} of {value[1]} seeds"
    digits = f"{abs(value):.{len(like.rpartition('.')[2])}f}"
    if "." not in like:
        return digits
    sign = ("−" if value < 0 else "+") if like[0] in "+−" else ""
    return sign + (digits if digits.startswith("1") else digits.removeprefix("0"))


def check_figures(text: str) -> None:
    """Check each table row, list item and run of other lines between empty ones."""
    for block in re.split(r"\n\s*\n|\n(?=\||- |\d\. )", text):
        line = " ".join(block.split())  # a figure may be broken over two lines
        written = FIGURE.findall(CODE.sub("", MARKER.sub("", line)))
        marker = MARKER.search(line)
        assert bool(written) == bool(marker), f"no marker, or no figure: {line[:70]!r}"
        values = compute_figures(marker[1]) if marker else []
        assert len(written) == len(values), (line[:70], written, values)
        assert written == [write_figure(v, w) for v, w in zip(values, written, strict=True)]


@pytest.mark.parametrize("page", SECTIONS)
def test_figures_equal_the_tables(page: str) -> None:
    check_figures(read_section(page))
