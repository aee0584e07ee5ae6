"""Where things stand in a completion: its think blocks, its tags, its boxes, its phrases.

One pass of linear patterns. Nothing here reads a number; `readings.py` does, at the places found
here. Only so many places are handed out (`PLACES`), the last ones first, and only so much text
after each (`REACH`), so that no text can make the parser slow.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

PLACES = 4
"""At most this many tags, boxes or phrases are read, counted from the end of the text."""
MARKS = 1024
"""A text with more tags and think markers than this is taken to have no answer."""
EQUALS = 8
"""At most this many equals signs are tried, counted from the end of the text."""
REACH = 512
"""How many characters after a tag or phrase its answer may take; a longer line is cut."""
TAIL = 4096
"""How many characters from the end the last number is looked for in."""

_MARK = re.compile(r"</?think>|\[ANSWER\]", re.IGNORECASE | re.ASCII)
_SAYS = re.compile(
    r"\banswer(?:[ \t]{1,8}is\b|[ \t]{0,8}[:=])[ \t*_`]{0,8}[:=]?", re.IGNORECASE | re.ASCII
)
_BOX = "\\boxed{"
_BRACE = re.compile(r"[{}]")
_BLANK = re.compile(r"\s*+")


@dataclass(frozen=True, slots=True)
class Place:
    """Where an answer is announced (`anchor`) and the stretch `[low, high)` that should hold it."""

    anchor: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Outline:
    """A completion's think blocks and tags."""

    body: int
    """Where what follows the last think block begins; the end of the text if one stays open."""
    thought: bool
    """There is a think block, closed or not."""
    tags: tuple[int, ...]
    """Where each `[ANSWER]` stands that is in no think block, the ones between blocks included."""


def outline(text: str) -> Outline:
    """Think blocks and tags in one pass.

    A `</think>` that nothing opened closes a block that the prompt opened, as some chat templates
    do: everything before it is thought. A `<think>` left open makes the whole text thought.

    Example: `outline("<think>[ANSWER] 1</think>[ANSWER] 2").tags` holds one tag, the second.
    """
    body, inside, thought = 0, False, False
    tags: list[int] = []
    for count, mark in enumerate(_MARK.finditer(text)):
        if count == MARKS:
            return Outline(len(text), True, ())
        if mark.group()[0] == "[":
            if not inside:
                tags.append(mark.start())
            continue
        thought = True
        opening = mark.group()[1] != "/"
        if not opening:
            if not inside:
                tags.clear()
            body = mark.end()
        inside = opening
    return Outline(len(text), True, ()) if inside else Outline(body, thought, tuple(tags))


def tagged(text: str, tags: tuple[int, ...]) -> list[Place]:
    """What each of the last tags announces, last first: up to the line's end or the next tag."""
    last = tags[-PLACES:]
    ends = (*last, len(text))[1:]
    pairs = list(zip(last, ends, strict=True))
    return [_line(text, tag, tag + len("[ANSWER]"), end) for tag, end in reversed(pairs)]


def boxes(text: str, body: int) -> Iterator[Place]:
    r"""What each of the last `\boxed{...}` holds, last first; a box that is not closed is none."""
    at = len(text)
    for _ in range(PLACES):
        at = text.rfind(_BOX, body, at)
        if at < 0:
            return
        low = at + len(_BOX)
        depth = 1
        for brace in _BRACE.finditer(text, low, low + REACH):
            depth += 1 if brace.group() == "{" else -1
            if not depth:
                yield Place(at, low, brace.start())
                break


def phrases(text: str, body: int) -> list[Place]:
    """What follows each of the last "answer is" or "answer:", last first."""
    found = deque(_SAYS.finditer(text, body), maxlen=PLACES)
    return [_line(text, m.start(), m.end(), len(text)) for m in reversed(found)]


def equals(text: str, body: int) -> Iterator[Place]:
    """What follows each of the last equals signs, last first; `!=`, `<=` and `>=` are none."""
    at = len(text)
    for _ in range(EQUALS):
        at = text.rfind("=", body, at)
        if at < 0:
            return
        if text[at - 1 : at] not in ("<", ">", "!", "≠") or at == body:
            yield _line(text, at, at + 1, len(text))


def tail(text: str, body: int) -> Place:
    """The end of the text, in which the last number is looked for."""
    low = max(body, len(text) - TAIL)
    return Place(low, low, len(text))


def last_line(text: str, body: int) -> Place:
    """The last line that is not blank, for a list given without any announcement."""
    high = len(text[body:].rstrip()) + body
    low = max(text.rfind("\n", body, high) + 1, body, high - REACH)
    return Place(low, low, high)


def _line(text: str, anchor: int, start: int, end: int) -> Place:
    """The first line with something on it, from `start`, cut at `end` and at `REACH`."""
    end = min(end, start + REACH)
    blank = _BLANK.match(text, start, end)
    low = blank.end() if blank else start
    stop = text.find("\n", low, end)
    return Place(anchor, start, end if stop < 0 else stop)
