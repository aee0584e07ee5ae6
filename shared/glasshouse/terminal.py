"""What is printed: text from users and models made safe for a terminal, and the rich console."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from glasshouse.errors import shorten_path

if TYPE_CHECKING:
    from rich.console import Console

UNSAFE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories of control, format (bidirectional marks) and surrogate characters, and of line and
paragraph separators."""
HEARTBEAT_SECONDS = 30.0


def terminal_safe(text: str) -> str:
    """Replace control, escape and bidirectional characters and lone surrogates, except line ends and
    tabs, by their escapes: a terminal must show them, not execute them.

    Example: `terminal_safe("a\\x1b[2J")` gives `a\\\\x1b[2J`
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in "\n\t" or _is_safe(c) else ascii(c)[1:-1] for c in text)


def terminal_safe_json(line: str) -> str:
    """Escape the same characters in JSON text. They occur only inside its strings, so the result is
    JSON with the same value."""
    if not line.isascii():
        line = "".join(c if c in "\n\t" or _is_safe(c) else json.dumps(c)[1:-1] for c in line)
    return line.replace(
        "\x7f", "\\u007f"
    )  # the only control character that json.dumps does not escape


def shell_command(arguments: Sequence[str | os.PathLike[str]]) -> str:
    """Return a command line that a POSIX shell splits into exactly these arguments. An argument with
    characters that a terminal would execute is written as $'…', which bash and zsh read. A program of this
    environment is named by its path unless it is the one that the shell would find.

    Example: `shell_command(["glasshouse", "eval", "my run"])` gives `glasshouse eval 'my run'`
    """
    program, *others = [os.fspath(argument) for argument in arguments]
    ours, found = Path(sys.executable).parent / program, shutil.which(program)
    if ours.is_file() and not (found and ours.samefile(found)):
        program = shorten_path(ours)
    return " ".join(map(_quote, [program, *others]))


def count_noun(number: int, noun: str) -> str:
    """Example: `count_noun(1, "step")` gives `1 step`, and `count_noun(2000, "step")` gives `2,000 steps`"""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_duration(seconds: float) -> str:
    """Example: `format_duration(8)` gives `8 s`, and `format_duration(75)` gives `1:15 min`"""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{rest:02d} h"
    return f"{minutes}:{rest:02d} min" if minutes else f"{rest} s"


def format_bytes(count: float) -> str:
    """Example: `format_bytes(1_100_000)` gives `1.1 MB`"""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _is_safe(character: str) -> bool:
    return unicodedata.category(character) not in UNSAFE_CATEGORIES


def _quote(argument: str) -> str:
    if all(map(_is_safe, argument)):
        return shlex.quote(argument)
    escaped = "".join(
        f"\\{c}" if c in "\\'" else c if _is_safe(c) else _byte_escapes(c) for c in argument
    )
    return f"$'{escaped}'"


def _byte_escapes(character: str) -> str:
    """The bytes of a character in a file name; a surrogate stands for a byte that is not UTF-8."""
    try:
        data = character.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        data = character.encode("utf-8", "surrogatepass")
    return "".join(f"\\x{byte:02x}" for byte in data)


def make_console(*, stderr: bool = False) -> Console:
    """A console that prints texts as they are: no highlighting, no emoji codes."""
    from rich.console import Console  # not at the top: `glasshouse --help` does not need it

    return Console(highlight=False, emoji=False, stderr=stderr)


def shows_bars(console: Console) -> bool:
    """Can the console redraw a progress bar? Yes on a terminal, and in a notebook with ipywidgets;
    elsewhere lines are printed."""
    if console.is_jupyter:
        return importlib.util.find_spec("ipywidgets") is not None
    return console.is_terminal


@contextmanager
def show_status(console: Console, is_shown: bool = True) -> Iterator[Callable[[str], None]]:
    """Give a function that shows a text until the next one, where the console can redraw a line.

    Example: `with show_status(console) as show: show("step 1")`
    """
    if not is_shown or not shows_bars(console):
        yield lambda text: None
        return
    with console.status("") as status:
        yield lambda text: status.update(terminal_safe(text).replace("[", "\\["))


class Heartbeat:
    """Calls a function in a thread whenever nothing was printed for HEARTBEAT_SECONDS: a log without
    new lines looks like a run that hangs."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self.beat = beat
        self.stopped = threading.Event()
        self.postpone()

    def start(self) -> None:
        self.stopped.clear()
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def stop(self) -> None:
        self.stopped.set()

    def postpone(self) -> None:
        """Wait for the whole interval again."""
        self.due = time.monotonic() + HEARTBEAT_SECONDS

    def _run(self) -> None:
        while not self.stopped.wait(max(0.0, self.due - time.monotonic())):
            if time.monotonic() >= self.due:
                self.postpone()
                self.beat()

    def __enter__(self) -> Heartbeat:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


# --- Markdown, which rich prints and the page shows ---------------------------------------------------


def escape_markdown(text: str) -> str:
    """Text that Markdown shows as it is, with control characters escaped.

    Example: `escape_markdown("7 * 8")` gives `7 \\* 8`
    """
    return re.sub(r"([\\`*\[\]<>|&])", r"\\\1", terminal_safe(text))


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table in Markdown whose first columns are left-aligned, and the others right-aligned."""
    marks = [":---" if place < left else "---:" for place in range(len(columns))]
    lines = [columns, marks, *rows]
    return "\n".join(f"| {' | '.join(' '.join(c.split()) for c in line)} |" for line in lines)
