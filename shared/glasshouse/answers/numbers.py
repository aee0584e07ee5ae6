"""What counts as a number in running text, and what only looks like one.

The parser is adversarial ground: whatever it misreads, RL will find. So a number here is what a
person reads as one plain number, in ASCII digits, and everything else that looks numeric (`1e5`,
`1_000`, `12,34`, `10-3`, `3/4`, `٣`, `1k`, 5,000 digits) is *opaque*: it is seen, so that it can
spoil an answer, and it is never read as one of its own pieces.

    "28kg"   28           "1,234"  1234         "-$5"    -5
    "[1, 2]" 1 and 2      "12,34"  opaque       "x2"     a word, skipped

Everything is linear: a token is one possessive run, and no token longer than `LONGEST` is read.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

DIGITS = 40
"""A number with more digits than this is opaque; so no arithmetic on one is ever slow."""
LONGEST = 96
"""Longest token, in characters, that is looked into."""

MINUS = "-−‐‑‒–﹣－"
"""Hyphen-minus, U+2212, hyphens, figure and en dash, and two wide forms. The em dash is prose."""
CURRENCY = "$€£¥₹"
_NARROW = "\u00a0\u202f\u2009\u2007"
"""Spaces that group digits: `1 234` with one of these is one number to a person, none to us."""
_OPERATORS = "+/⁄∕^×·⋅÷:" + MINUS
_NO_SIGN_AFTER = ")]}%.+^/" + MINUS
_ORDINALS = frozenset({"st", "nd", "rd", "th"})
_MAGNITUDES = frozenset({"hundred", "thousand", "million", "billion", "trillion", "dozen"})
_SCALES = _MAGNITUDES | {*"eEkKMBTGxyznijπ", "bn", "mn", "pi"}
"""Glued suffixes that change the value: `1k` is not 1, `3x` is not 3. `28kg` is fine."""

_GLUE = re.escape(_OPERATORS) + ".,'’"
_TOKEN = re.compile(rf"∞|\w++(?:(?<=[0-9])(?:[{_GLUE}]|\*\*?)(?=[0-9])\w++)*+")
_ELEMENT = re.compile(_TOKEN.pattern.replace(".,'’", ".'’"))
"""The same without the comma, which in a sequence always separates."""
_SHAPE = re.compile(r"([0-9]{1,3}(?:,[0-9]{3})++|[0-9]++)(\.[0-9]++)?+([^\W0-9_]*+)")
_CANONICAL = re.compile(r"-?[0-9]{1,40}(?:\.[0-9]{1,40})?")
_LATEX_BEFORE = re.compile(
    r"(?:\}|\^|\\[dt]?frac|\\sqrt|\\binom)\{$|\{,\}$|[0-9]\\[,;!: ]$|[0-9)]\*$"
)
_AFTER = re.compile(rf"\^|\((?=[0-9])|\{{,\}}|\\[,;!: ](?=[0-9])|[{_NARROW}](?=[0-9])")
_PRODUCT_BEFORE = re.compile(r"[0-9)]\*\*?.$")
_NEXT_WORD = re.compile(r"[ \t]{1,4}([A-Za-z]{3,8})\b")


@dataclass(frozen=True, slots=True)
class Token:
    """Something numeric in the text. `why` is empty for a number, else what is wrong with it."""

    value: str | None
    start: int
    end: int
    why: str = ""

    @property
    def expression(self) -> bool:
        """Is it a sum still to be worked out (`1+2+3`), rather than a number badly written?"""
        return self.why == EXPRESSION


EXPRESSION = "an expression, not one number"


def scan(
    text: str, low: int = 0, high: int | None = None, *, sequence: bool = False
) -> Iterator[Token]:
    """The numbers and opaque tokens of `text[low:high]`, in order; plain words are left out.

    What stands before `low` is not looked at, so that the `]` of a tag is no operand.
    With `sequence`, commas separate: `1,234` is then two elements.

    Example: `[t.value for t in scan("it was 1,234, not 1e5")]` gives `["1234", None]`.
    """
    high = len(text) if high is None else high
    pattern = _ELEMENT if sequence else _TOKEN
    for match in pattern.finditer(text, low, high):
        if (token := _token(text, low, high, match)) is not None:
            yield token


def scan_back(text: str, low: int, high: int) -> Iterator[Token]:
    """As `scan`, from the end: the last number costs one token, not the whole text."""
    for match in reversed(list(_TOKEN.finditer(text, low, high))):
        if (token := _token(text, low, high, match)) is not None:
            yield token


def canonical(text: str, *, sequence: bool = False) -> str | None:
    """The one number that `text` is, as the parser prints it, or None.

    Example: `canonical("+01,234.50")` gives `"1234.50"`; `canonical("1e5")` gives None.
    """
    tokens = list(islice(scan(text, sequence=sequence), 2))
    if len(tokens) != 1 or text[: tokens[0].start].strip() or text[tokens[0].end :].strip():
        return None
    return tokens[0].value


def value_of(number: str) -> Fraction | None:
    """A canonical number exactly; None for anything else. Bounded by `DIGITS`, so never slow."""
    return Fraction(number) if _CANONICAL.fullmatch(number) else None


def _token(text: str, low: int, high: int, match: re.Match[str]) -> Token | None:
    start, end = match.span()
    token = match.group() if end - start <= LONGEST else text[start : start + LONGEST]
    if token.startswith("_"):  # markdown's _28_ and __28__
        bars = len(token) - len(token.lstrip("_"))
        if end - start > LONGEST or token[len(token.rstrip("_")) :] != "_" * bars:
            return None
        start, end, token = start + bars, end - bars, token.strip("_")
    if not token or not _numeric(token):
        return None
    if end - start > LONGEST:
        return Token(None, start, end, "too long to be a number")
    shape = _SHAPE.fullmatch(token)
    if shape is None:
        return Token(None, start, end, _complaint(token))
    whole, decimals, suffix = shape[1], shape[2] or "", shape[3]
    if suffix in _ORDINALS:
        return None
    if why := _suffix_complaint(whole, suffix) or _after_complaint(text, end, high):
        return Token(None, start, end, why)
    end -= len(suffix)
    begin, sign, why = _before(text, low, start, bare=not decimals and "," not in whole)
    if why == "word":
        return None
    if not why and len(whole) + len(decimals) - whole.count(",") > DIGITS:
        why = "too long to be a number"
    if not why and "," in whole and whole.startswith("0"):
        why = "not grouped in thousands"
    if why:
        return Token(None, begin, end, why)
    digits = whole.replace(",", "")
    if text[start - 1 : start] == "." and begin < start and "." in text[begin:start]:
        digits, decimals = "0", "." + digits
    digits = digits.lstrip("0") or "0"
    zero = digits == "0" and not decimals.strip(".0")
    return Token(("-" if sign == "-" and not zero else "") + digits + decimals, begin, end)


def _numeric(token: str) -> bool:
    """Does it start like a number, of whatever script, or name one that is none?"""
    first = token[0]
    if first in "0123456789∞":
        return True
    if first.isascii():
        return token.lower() in ("nan", "inf", "infinity")
    return unicodedata.category(first) in ("Nd", "No", "Nl")


def _complaint(token: str) -> str:
    if not token.isascii() and any(not c.isascii() and c.isnumeric() for c in token):
        return "digits that are not 0 to 9"
    if any(c in _OPERATORS or c == "*" for c in token):
        return EXPRESSION
    if "," in token:
        return "not grouped in thousands"
    return "not a plain number"


def _suffix_complaint(whole: str, suffix: str) -> str:
    if not suffix:
        return ""
    based = whole == "0" and suffix[0] in "xXoObB"
    if based or suffix in _SCALES or suffix.lower() in _MAGNITUDES:
        return "not a plain number"
    return "" if suffix.isalpha() else "digits that are not 0 to 9"


def _after_complaint(text: str, end: int, high: int) -> str:
    """What follows may change the value: `10^{5}`, `1{,}234`, `2\\u200b8`, `3 million`."""
    following = text[end : end + 16]
    if not following:
        return ""
    if _hidden(following[0]):
        return "joined to characters that do not show"
    if found := _AFTER.match(following):
        return EXPRESSION if found.group() in "^(" else "not a plain number"
    if following[0] in ".,'" and len(following) > 1 and _foreign(following[1]):
        return "digits that are not 0 to 9"
    word = _NEXT_WORD.match(following) if following[0] in " \t" else None
    if word and word[1].lower() in _MAGNITUDES and end + word.end() <= high:
        return "a magnitude in words"
    return ""


def _before(text: str, low: int, start: int, *, bare: bool) -> tuple[int, str, str]:
    """Sign, currency and leading point: where the number begins, its sign, what is wrong."""
    at = start
    before = text[max(low, start - 8) : start]
    if not before:
        return at, "", ""
    if _hidden(before[-1]) or (before[-1] in _NARROW and before[-2:-1].isdigit()):
        return at, "", "joined to characters that do not show"
    if before[-1] in ".,'" and len(before) > 1 and _foreign(before[-2]):
        return at, "", "digits that are not 0 to 9"
    if before.endswith("_{"):
        return at, "", "word"  # a subscript
    marked = "{" in before or "*" in before or "\\" in before  # else the patterns need no try
    if before[-1] in "^/" or (marked and _LATEX_BEFORE.search(before)):
        return at, "", EXPRESSION
    if bare and before[-1] == "." and before[-2:-1] in ("", *" \t\n(+", *CURRENCY, *MINUS):
        at, before = at - 1, before[:-1]
    if before and before[-1] in CURRENCY:
        if len(before) == 1 or before[-2] not in "+" + MINUS:
            return at, "", ""
        at, before = at - 1, before[:-1]
    if not before or before[-1] not in "+" + MINUS:
        return at, "", ""
    sign = "+" if before[-1] == "+" else "-"
    left = before[-2:-1]
    if left.isalpha() or left == "_":
        return at, "", "word"  # GPT-4, step-3
    product = marked and _PRODUCT_BEFORE.search(before)
    if left.isalnum() or (left and left in _NO_SIGN_AFTER) or product:
        return at, "", EXPRESSION
    return at - 1, sign, ""


def _hidden(char: str) -> bool:
    """Does it change how its neighbours look, or not show at all?"""
    return char not in "\t\n\r\v\f" and unicodedata.category(char) in ("Mn", "Me", "Cf", "Cc")


def _foreign(char: str) -> bool:
    return not char.isascii() and char.isnumeric()
