"""The examples in docs/monitorability.md print the output that the page shows."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "monitorability.md"


def test_examples_print_the_output_on_the_page() -> None:
    examples = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) == 2
    for code, output in examples:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            names: dict[str, Any] = {}
            exec(code, names)
        assert printed.getvalue() == output
