"""The examples of docs/monitorability.md print what the page says they print."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "monitorability.md"


def test_the_page_shows_what_its_examples_print() -> None:
    examples = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) == 2
    for code, shown in examples:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            names: dict[str, Any] = {}
            exec(code, names)
        assert printed.getvalue() == shown
