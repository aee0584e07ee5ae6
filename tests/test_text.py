"""Text from users and models: nothing that a terminal would execute, and commands that can be pasted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from unicodedata import category

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glasshouse.terminal import (
    count_noun,
    format_duration,
    shell_command,
    terminal_safe,
    terminal_safe_json,
)

HOSTILE = [
    "\x1b[2J",  # clears the screen
    "\x1b]0;title\x07",  # sets the window title
    "\x1b]52;c;aGk=\x07",  # sets the clipboard
    "\x9b2J",  # the same as \x1b[ in one character
    "\x7f",
    "\u202e",  # right-to-left override
    "\u2066",
    "\u200b",
    "\u2028",
    "\udc80",
    "\U000e0041",  # a tag character
]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_terminal_sequences_are_escaped_and_lossless_in_json(hostile: str) -> None:
    encoded = terminal_safe_json(json.dumps({hostile: "é"}, ensure_ascii=False))
    assert terminal_safe(hostile).isprintable()
    assert encoded.isprintable()
    assert json.loads(encoded) == {hostile: "é"}


def test_ordinary_text_is_unchanged_and_durations_are_written() -> None:
    for text in ("12 + 34 = 46\n\tnext line", "[bold]ä, 日本, ∑, 🙂[/]", "back\\slash"):
        assert terminal_safe(text) == terminal_safe_json(text) == text
    assert [count_noun(n, "step") for n in (0, 1, 2000)] == ["0 steps", "1 step", "2,000 steps"]
    durations = [format_duration(s) for s in (0.4, 59.4, 60, 3725)]
    assert durations == ["0 s", "59 s", "1:00 min", "1:02:05 h"]


@given(st.text())
def test_no_text_leaves_a_control_character(text: str) -> None:
    safe = terminal_safe(text)
    assert all(c in "\n\t" or category(c) not in ("Cc", "Cf", "Cs") for c in safe)
    assert json.loads(terminal_safe_json(json.dumps(text, ensure_ascii=False))) == text


def test_a_pasted_command_has_the_same_arguments() -> None:
    arguments = [
        "plain", "two words", "x[/b]", "it's", 'a "quote"', "$HOME `date` !x", "", "-x", "a\\b",
        ":smile:", "tab\there", "line\nend", "é日本", *(h for h in HOSTILE if h != "\udc80"),
        os.fsdecode(b"\x80\xff"),
    ]  # fmt: skip
    script = "import os,sys; print([os.fsencode(a) for a in sys.argv[1:]])"
    command = shell_command([sys.executable, "-c", script, *arguments])
    assert command.isprintable()
    output = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert output.stdout == f"{[os.fsencode(argument) for argument in arguments]}\n"
