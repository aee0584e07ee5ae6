"""What counts as a number in running text, and what only looks like one.

RL will exploit whatever the parser misreads. So a number here is what a person reads as one plain
number in ASCII or full-width digits. Everything else that looks numeric (`1_000`, `12,34`, `10-3`,
`3/4`, `٣`, `1k`, `< 28`, `not 28`, 5,000 digits) is *opaque*: it yields a token without a value, so
that it can invalidate an answer, and it is never read as one of its parts. docs/tasks.md decides
every class of these.

    "28kg"   28           "1,234"  1234         "-$5"    -5        "2.8e1"    28
    "[1, 2]" 1 and 2      "12,34"  opaque       "x2"     a word    "minus 5"  -5

The cost is linear in the text: a token is one possessive match, and tokens longer than
`MAX_TOKEN_CHARS` are not parsed.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

from glasshouse.tasks.answers.wording import (
    EXPRESSION,
    SCALE_WORDS,
    find_objection_after,
    find_objection_before,
    is_label,
    parse_minus_word,
)

MAX_DIGITS = 40
"""A number with more digits than this is opaque, which bounds the cost of arithmetic."""
MAX_TOKEN_CHARS = 96
"""The longest token, in characters, that is parsed."""

MINUS_SIGNS = "-−‐‑‒–﹣－"
"""Hyphen-minus, U+2212, hyphens, figure and en dash, and two wide forms. The em dash is prose."""
CURRENCY = "$€£¥₹"
_NARROW_SPACES = "\u00a0\u202f\u2009\u2007"
"""Spaces that group digits in thousands; an ordinary space does not, since it also separates."""
_OPERATORS = "+/⁄∕^×·⋅÷:" + MINUS_SIGNS
_NO_SIGN_AFTER = ")]}%.+^/" + MINUS_SIGNS
_ORDINALS = frozenset({"st", "nd", "rd", "th"})
_SCALES = SCALE_WORDS | {*"eEkKMBTGxyznijπ", "pi"}
"""Suffixes that change the value: `1k` is not 1, `3x` is not 3. `28kg` is 28."""
_FULL_WIDTH = {ord("０") + digit: str(digit) for digit in range(10)} | {
    ord("．"): ".",
    ord("，"): ",",
}

_JOINERS = re.escape(_OPERATORS) + ".'’．"
_COMMAS = ",，" + _NARROW_SPACES
"""Group digits in a number; in a sequence they separate elements."""
_EXPONENT = r"|(?<=[0-9][eE])[+\-−](?=[0-9])\w++"


def _token_pattern(joiners: str) -> re.Pattern[str]:
    digit = "[0-9０-９]"
    join = rf"(?<={digit})(?:[{joiners}]|\*\*?)(?={digit})\w++"
    return re.compile(rf"∞|\w++(?:{join}{_EXPONENT})*+")


_TOKEN = _token_pattern(_JOINERS + _COMMAS)
_ELEMENT = _token_pattern(_JOINERS)
_SHAPE = re.compile(
    rf"([0-9]{{1,3}}(?:,[0-9]{{3}})++|[0-9]{{1,3}}([{_NARROW_SPACES}])[0-9]{{3}}(?:\2[0-9]{{3}})*+|"
    r"[0-9]++)(\.[0-9]++)?+(?:[eE]([+\-−]?[0-9]{1,2})|([^\W0-9_]*+))"
)
_UNIT_EXPONENT = re.compile(r"[A-Za-zµμ]++[²³]")
_CANONICAL = re.compile(r"-?[0-9]{1,40}(?:\.[0-9]{1,40})?")
_LATEX_BEFORE = re.compile(
    r"(?:\}|\^|\\[dt]?frac|\\sqrt|\\binom)\{$|\{,\}$|[0-9]\\[,;!: ]$|[0-9)]\*$"
)
_AFTER = re.compile(rf"\^|\((?=[0-9])|\{{,\}}|\\[,;!: ](?=[0-9])|[{_NARROW_SPACES}](?=[0-9])")
_PRODUCT_BEFORE = re.compile(r"[0-9)]\*\*?.$")


@dataclass(frozen=True, slots=True)
class NumberToken:
    """A numeric token of the text. `reason` is empty for a number, else why it is opaque."""

    value: str | None
    start: int
    end: int
    reason: str = ""

    @property
    def is_expression(self) -> bool:
        """Whether it is an expression to evaluate (`1+2+3`), rather than a malformed number."""
        return self.reason == EXPRESSION


def scan_numbers(
    text: str, low: int = 0, high: int | None = None, *, sequence: bool = False
) -> Iterator[NumberToken]:
    """Yields the numbers and opaque tokens of `text[low:high]` in order, without plain words.

    Text before `low` is ignored, so that the `]` of a tag is not taken for an operand. With
    `sequence`, commas separate: `1,234` is then two elements.

    Example: `[t.value for t in scan_numbers("it was 1,234, not 1e5")]` gives `["1234", None]`.
    """
    high = len(text) if high is None else high
    pattern = _ELEMENT if sequence else _TOKEN
    for match in pattern.finditer(text, low, high):
        if (token := _classify_token(text, low, high, match, sequence)) is not None:
            yield token


def scan_numbers_reversed(text: str, low: int, high: int) -> Iterator[NumberToken]:
    """Like `scan_numbers`, from the end: finding the last number classifies only one token."""
    for match in reversed(list(_TOKEN.finditer(text, low, high))):
        if (token := _classify_token(text, low, high, match, False)) is not None:
            yield token


def canonical_number(text: str, *, sequence: bool = False) -> str | None:
    """The canonical form of a text that is exactly one number, else None.

    Example: `canonical_number("+01,234.50")` gives `"1234.50"`; `canonical_number("1e5")` gives None.
    """
    tokens = list(islice(scan_numbers(text, sequence=sequence), 2))
    if len(tokens) != 1 or text[: tokens[0].start].strip() or text[tokens[0].end :].strip():
        return None
    return tokens[0].value


def exact_value(number: str) -> Fraction | None:
    """The exact value of a canonical number; None for any other text."""
    return Fraction(number) if _CANONICAL.fullmatch(number) else None


def _classify_token(
    text: str, low: int, high: int, match: re.Match[str], sequence: bool
) -> NumberToken | None:
    start, end = match.span()
    token = (
        match.group() if end - start <= MAX_TOKEN_CHARS else text[start : start + MAX_TOKEN_CHARS]
    )
    if token.startswith("_"):  # markdown's _28_ and __28__
        bars = len(token) - len(token.lstrip("_"))
        if end - start > MAX_TOKEN_CHARS or token[len(token.rstrip("_")) :] != "_" * bars:
            return None
        start, end, token = start + bars, end - bars, token.strip("_")
    if not token.isascii():
        token = token.translate(_FULL_WIDTH)
    if not token or not _looks_numeric(token):
        return None
    if end - start > MAX_TOKEN_CHARS:
        return NumberToken(None, start, end, "too long to be a number")
    shape = _SHAPE.fullmatch(token)
    if shape is None:
        return NumberToken(None, start, end, _malformed_reason(token))
    whole, decimals, suffix = shape[1], (shape[3] or "")[1:], shape[5] or ""
    exponent = int((shape[4] or "0").replace("−", "-"))
    if suffix in _ORDINALS:
        return None
    reason = (
        _suffix_reason(whole, suffix)
        or _following_reason(text, end)
        or find_objection_after(text, end, high, sequence=sequence)
    )
    if reason:
        return NumberToken(None, start, end, reason)
    end -= len(suffix)
    bare = not decimals and whole.isdigit()
    begin, sign, reason = _parse_prefix(text, low, start, bare=bare)
    if reason == "word":
        return None
    reason = reason or find_objection_before(text, low, begin, end, sequence=sequence)
    if not reason and is_label(text, low, begin):
        return None
    word_begin, word_sign = parse_minus_word(text, low, begin)
    if word_sign:
        reason = reason or (EXPRESSION if sign or word_sign == "?" else "")
        begin, sign = word_begin, "-"
    digits = whole if whole.isdigit() else re.sub(r"\D", "", whole)
    if not reason and len(digits) != len(whole) and whole.startswith("0"):
        reason = "not grouped in thousands"
    too_long = len(digits) + len(decimals) > MAX_DIGITS
    if begin < start and text[start - 1] == ".":
        digits, decimals = "0", digits
    value = _shift_point(digits, decimals, exponent)
    if not reason and (value is None or too_long):
        reason = "too long to be a number"
    if reason or value is None:
        return NumberToken(None, begin, end, reason)
    return NumberToken(("-" if sign == "-" and value.strip("0.") else "") + value, begin, end)


def _shift_point(digits: str, decimals: str, exponent: int) -> str | None:
    """The plain decimal of `digits.decimals` times ten to the exponent; None beyond `MAX_DIGITS`."""
    if exponent > 0:
        moved = decimals[:exponent].ljust(exponent, "0")
        digits, decimals = digits + moved, decimals[exponent:]
    elif exponent < 0:
        padded = digits.rjust(1 - exponent, "0")
        digits, decimals = padded[:exponent], padded[exponent:] + decimals
    digits = digits.lstrip("0") or "0"
    if len(digits) + len(decimals) > MAX_DIGITS:
        return None
    return f"{digits}.{decimals}" if decimals else digits


def _looks_numeric(token: str) -> bool:
    """Whether a token starts like a number in any script, or is a name such as `NaN`."""
    first = token[0]
    if first in "0123456789∞":
        return True
    if first.isascii():
        return token.lower() in ("nan", "inf", "infinity")
    return unicodedata.category(first) in ("Nd", "No", "Nl")


def _malformed_reason(token: str) -> str:
    if not token.isascii() and any(not c.isascii() and c.isnumeric() for c in token):
        return "digits that are not 0 to 9"
    if any(c in _OPERATORS or c == "*" for c in token):
        return EXPRESSION
    if "," in token:
        return "not grouped in thousands"
    return "not a plain number"


def _suffix_reason(whole: str, suffix: str) -> str:
    if not suffix:
        return ""
    based = whole == "0" and suffix[0] in "xXoObB"
    word = suffix.lower()
    if based or suffix in _SCALES or word in _SCALES or word.removesuffix("s") in SCALE_WORDS:
        return "not a plain number"
    if suffix.isalpha() or _UNIT_EXPONENT.fullmatch(suffix):
        return ""
    return "digits that are not 0 to 9"


def _following_reason(text: str, end: int) -> str:
    """Why the characters after a number change it: `10^{5}`, `1{,}234`, `2\\u200b8`."""
    following = text[end : end + 16]
    if not following:
        return ""
    if _is_invisible(following[0]):
        return "joined to invisible characters"
    if suffix := _AFTER.match(following):
        return EXPRESSION if suffix.group() in "^(" else "not a plain number"
    if following[0] in ".,'" and len(following) > 1 and _is_non_ascii_digit(following[1]):
        return "digits that are not 0 to 9"
    return ""


def _parse_prefix(text: str, low: int, start: int, *, bare: bool) -> tuple[int, str, str]:
    """Sign, currency and leading point: where the number begins, its sign, why it is opaque."""
    at = start
    before = text[max(low, start - 8) : start]
    if not before:
        return at, "", ""
    if _is_invisible(before[-1]) or (before[-1] in _NARROW_SPACES and before[-2:-1].isdigit()):
        return at, "", "joined to invisible characters"
    if before[-1] in ".,'" and len(before) > 1 and _is_non_ascii_digit(before[-2]):
        return at, "", "digits that are not 0 to 9"
    if before.endswith("_{"):
        return at, "", "word"  # a subscript
    marked = "{" in before or "*" in before or "\\" in before  # else no pattern can match
    if before[-1] in "^/" or (marked and _LATEX_BEFORE.search(before)):
        return at, "", EXPRESSION
    if bare and before[-1] == "." and before[-2:-1] in ("", *" \t\n(+", *CURRENCY, *MINUS_SIGNS):
        at, before = at - 1, before[:-1]
    if before and before[-1] in CURRENCY:
        if len(before) == 1 or before[-2] not in "+" + MINUS_SIGNS:
            return at, "", ""
        at, before = at - 1, before[:-1]
    if not before or before[-1] not in "+" + MINUS_SIGNS:
        return at, "", ""
    sign = "+" if before[-1] == "+" else "-"
    left = before[-2:-1]
    if left.isalpha() or left == "_":
        return at, "", "word"  # GPT-4, step-3
    product = marked and _PRODUCT_BEFORE.search(before)
    if left.isalnum() or (left and left in _NO_SIGN_AFTER) or product:
        return at, "", EXPRESSION
    return at - 1, sign, ""


def _is_invisible(char: str) -> bool:
    """Whether a character is invisible or changes how its neighbours look."""
    return char not in "\t\n\r\v\f" and unicodedata.category(char) in ("Mn", "Me", "Cf", "Cc")


def _is_non_ascii_digit(char: str) -> bool:
    return not char.isascii() and char.isnumeric() and ord(char) not in _FULL_WIDTH
