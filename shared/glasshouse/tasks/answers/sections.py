"""Where think blocks, `[ANSWER]` tags, boxes and answer phrases are in a completion.

Linear patterns only, and no number is parsed here: `parsing.py` does that at the locations returned
by this module. At most `MAX_LOCATIONS` locations are returned, the last ones first, with at most
`ANSWER_WINDOW` characters each, so that no text can make the parser slow.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

MAX_LOCATIONS = 4
"""At most this many tags, boxes or phrases are parsed, counted from the end of the text."""
MAX_MARKERS = 1024
"""A text with more tags and think markers than this is treated as having no answer."""
MAX_EQUALS_SIGNS = 8
"""At most this many equals signs are tried, counted from the end of the text."""
ANSWER_WINDOW = 512
"""How many characters after a tag or phrase may hold its answer; a longer line is cut."""
TAIL_WINDOW = 4096
"""The last number is searched for in this many characters at the end of the text."""

_MARKER = re.compile(r"</?think>|\[ANSWER\]", re.IGNORECASE | re.ASCII)
_PHRASE = re.compile(
    r"\banswer(?:[ \t]{1,8}is\b|[ \t]{0,8}[:=])[ \t*_`]{0,8}[:=]?", re.IGNORECASE | re.ASCII
)
_BOX = "\\boxed{"
_BRACE = re.compile(r"[{}]")
_WHITESPACE = re.compile(r"\s*+")


@dataclass(frozen=True, slots=True)
class AnswerLocation:
    """Where an answer is announced (`anchor`) and the range `[start, end)` that should hold it."""

    anchor: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Markers:
    """The think blocks and tags of a completion."""

    body_start: int
    """End of the last think block; the end of the text if a block is left open."""
    has_think_block: bool
    """There is a think block, closed or not."""
    tag_positions: tuple[int, ...]
    """Start of each `[ANSWER]` outside think blocks, those between blocks included."""


def find_markers(text: str) -> Markers:
    """Finds think blocks and tags in one pass.

    A `</think>` without an opening marker closes a block that the prompt opened, as some chat
    templates do: everything before it is reasoning. An open `<think>` makes the whole text
    reasoning.

    Example: `find_markers("<think>[ANSWER] 1</think>[ANSWER] 2").tag_positions` holds one tag, the
    second.
    """
    body_start, inside, has_think_block = 0, False, False
    tags: list[int] = []
    for count, marker in enumerate(_MARKER.finditer(text)):
        if count == MAX_MARKERS:
            return Markers(len(text), True, ())
        if marker.group()[0] == "[":
            if not inside:
                tags.append(marker.start())
            continue
        has_think_block = True
        opening = marker.group()[1] != "/"
        if not opening:
            if not inside:
                tags.clear()
            body_start = marker.end()
        inside = opening
    if inside:
        return Markers(len(text), True, ())
    return Markers(body_start, has_think_block, tuple(tags))


def locate_after_tags(text: str, tag_positions: tuple[int, ...]) -> list[AnswerLocation]:
    """Locations after the last tags, last first: up to the end of the line or the next tag."""
    tags = tag_positions[-MAX_LOCATIONS:]
    ends = (*tags, len(text))[1:]
    pairs = list(zip(tags, ends, strict=True))
    return [_first_line(text, tag, tag + len("[ANSWER]"), end) for tag, end in reversed(pairs)]


def locate_in_boxes(text: str, body_start: int) -> Iterator[AnswerLocation]:
    r"""Contents of the last `\boxed{...}`, last first; a box that is not closed does not count."""
    box = len(text)
    for _ in range(MAX_LOCATIONS):
        box = text.rfind(_BOX, body_start, box)
        if box < 0:
            return
        start = box + len(_BOX)
        depth = 1
        for brace in _BRACE.finditer(text, start, start + ANSWER_WINDOW):
            depth += 1 if brace.group() == "{" else -1
            if not depth:
                yield AnswerLocation(box, start, brace.start())
                break


def locate_after_phrases(text: str, body_start: int) -> list[AnswerLocation]:
    """Locations after the last "answer is" or "answer:", last first."""
    phrases = deque(_PHRASE.finditer(text, body_start), maxlen=MAX_LOCATIONS)
    return [_first_line(text, p.start(), p.end(), len(text)) for p in reversed(phrases)]


def locate_after_equals(text: str, body_start: int) -> Iterator[AnswerLocation]:
    """Locations after the last equals signs, last first; `!=`, `=/=`, `<=` and `>=` do not count."""
    sign = len(text)
    for _ in range(MAX_EQUALS_SIGNS):
        sign = text.rfind("=", body_start, sign)
        if sign < 0:
            return
        if text[sign - 1 : sign] not in ("<", ">", "!", "≠", "/") or sign == body_start:
            yield _first_line(text, sign, sign + 1, len(text))


def locate_tail(text: str, body_start: int) -> AnswerLocation:
    """The end of the text, where the last number is searched for."""
    start = max(body_start, len(text) - TAIL_WINDOW)
    return AnswerLocation(start, start, len(text))


def locate_last_line(text: str, body_start: int) -> AnswerLocation:
    """The last line that is not blank, for a list without a tag, box or phrase."""
    end = len(text[body_start:].rstrip()) + body_start
    start = max(text.rfind("\n", body_start, end) + 1, body_start, end - ANSWER_WINDOW)
    return AnswerLocation(start, start, end)


def _first_line(text: str, anchor: int, start: int, end: int) -> AnswerLocation:
    """From `start` to the end of the first non-blank line, cut at `end` and at `ANSWER_WINDOW`."""
    end = min(end, start + ANSWER_WINDOW)
    whitespace = _WHITESPACE.match(text, start, end)
    newline = text.find("\n", whitespace.end() if whitespace else start, end)
    return AnswerLocation(anchor, start, end if newline < 0 else newline)
