r"""Words and signs around a number that change what it says: the classes of docs/tasks.md.

`find_objection_before` and `find_objection_after` serve both parsers: they name what makes a number
another value (`not 28`, `< 28`, `~~28~~`, `28 million`, `28 squared`). `parse_plain_lead` and
`is_plain_trail` serve the strict parser, which accepts only what these two list: open vocabulary
(`28 apples`, `28 umpteen`) cannot be told from a word that changes the value.

All patterns are applied to at most `CONTEXT_CHARS` characters or one answer line.
"""

from __future__ import annotations

import re

CONTEXT_CHARS = 64
"""How many characters before and after a number are examined."""

EXPRESSION = "an expression, not one number"
NEGATED = "a negation before it"
COMPARED = "a bound, not a value"
STRUCK = "struck out"
SCALED = "a scale word after it"


def _word_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


NUMBER_WORDS = _word_set(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety"
)
SCALE_WORDS = _word_set(
    "hundred thousand million billion trillion quadrillion quintillion sextillion zillion gazillion "
    "lakh lac crore dozen score gross myriad googol mil mio mln bil bln bio tln trn tn bn mn "
    "half halves third quarter fifth tenth hundredth thousandth millionth billionth"
)
SCALE_LETTERS = frozenset({*"eEkKMBTGxyznπ", "pi"})
"""After a number and a space: `28 k`, `28 x`. `28 m` is metres."""
_NEGATIONS = _word_set(
    "not no cannot cant dont isnt never neither nor unable except unlike wrong incorrect false"
)
_OPERATION_WORDS = _word_set(
    "squared cubed factorial fold plus minus mod modulo divided multiplied raised choose"
)
_OPERATION_WORDS_WITH_OPERAND = frozenset({"times", "over", "by"})
"""`28 times` counts something; `28 times ten` is a product."""

_GAP = (
    r"(?:[^\S\n]|[*_`~\"'’“”‘()\[\]{}\-‐‑–—]|\\[,;:! ]|"
    r"\\(?:text|mathrm|mathbf|textbf|mathit|q?quad|mathsf|operatorname)\b)*+"
)
_WORD_AFTER = re.compile(_GAP + r"([^\W\d_]++)(?!['’])")
_OPERAND = re.compile(
    rf"[\s\-]*+(?:[0-9(\\√]|[b-z]\b|(?:{'|'.join(sorted(NUMBER_WORDS))}|half)\b)",
    re.IGNORECASE,
)
_MARKUP = r"(?:[*_`}$]|\\[,;:! ]|\\[)\]])*+"
_OPERATOR_AFTER = re.compile(
    r"[^\S\n]*+\*[^\S\n]*+(?:[0-9(\\]|[b-zB-HJ-Z]\b)|"
    + _MARKUP
    + r"[^\S\n]*+(?:[±∓√∛‰∗∙∘≠≤≥^×÷·⋅²³]|\+[^\S\n]*+(?:[b-zB-HJ-Z]\b|[0-9(\\])|<(?![/A-Za-z!])|>[^\S\n]*+[0-9]|"
    r"\\(?:times|cdot|div|pm|mp|ast|star|over|bmod|pmod|mod|sqrt|frac|circ|neq?|leq?|geq?)(?![a-z])|"
    r"[-−–][^\S\n]*+(?:[b-zB-HJ-Z]\b|[0-9(\\])|/[^\S\n]*+(?:[0-9(\\]|[b-zB-Z]\b)|"
    r"or (?:more|less|fewer|greater|higher|lower|above|below)\b|and (?:up|above|below)\b|at (?:least|most)\b|"
    r"(?:\.\.\.?|…)(?=[0-9]))"
)

_COMPARISON_BEFORE = re.compile(
    r"(?:≠|≉|≢|≮|≯|!=|/=|<>|[≤≥≪≫]|[<>]=|\\(?:neq?|not ?=|leq?|geq?|lt|gt|ll|gg|nleq|ngeq))"
    r"[\s*_`$({]*+$|"
    r"\b(?:(?:more|less|fewer|greater|larger|smaller|higher|lower|bigger|other|rather)\s++than|"
    r"at\s++(?:least|most)|up\s++to|anything\s++but|instead\s++of|over|under|above|below|beyond|nearly|almost|exceeds|"
    r"exceeding)[\s*_`$({]*+$",
    re.IGNORECASE,
)
_ANGLE_BEFORE = re.compile(r"([<>])[\s*_`$({]*+$")
_HTML_TAG_BEFORE = re.compile(r"<(?:/?[A-Za-z][^<>\n]{0,40}|br ?/)>[\s*_`$({]*+$")
_CLOSING_ANGLE = re.compile(r"[^\W0-9_]{0,8}[\s*_`$)}]*+>")
_STRUCK_BEFORE = re.compile(
    r"(?:<(?:s|del|strike)>|<!--|\\(?:[bx]?cancel|sout|st|strikeout)\{)[^<}]{0,48}$", re.IGNORECASE
)
_FUNCTION_BEFORE = re.compile(
    r"(?:[√∛∜±∓¬]|[A-Za-z]\(|[-−0-9*/^+]\(|\\(?:sqrt|log|ln|sin|cos|tan|exp|pm|mp|lnot|neg)"
    r"(?:\[[0-9]\])?)"
    r"[\s*_`$({]*+$|"
    r"\b(?:root|half|third|quarter|double|twice|triple|thrice|square|cube|log|ln|sin|cos|tan|exp|"
    r"sqrt|factorial|logarithm|inverse|reciprocal)(?:\s++of)?[\s*_`$({]*+$|"
    r"[0-9A-Za-z)\]}][ \t]{1,4}[+×÷·⋅∙∗][ \t]{1,4}$|[0-9)][ \t]{1,4}[*/−–-][ \t]{1,4}$|"
    r"\\(?:times|cdot|div|bmod|ast)[\s{]*+$",
    re.IGNORECASE,
)
_MINUS_WORD = re.compile(r"(?:^|(?<=[^\w]))(minus|negative)[ \t]{1,4}$", re.IGNORECASE)
_MINUS_WORD_ENDS = frozenset("sSeEſ")
_BEFORE_MINUS_WORD = re.compile(
    r"(?:^|[:=(\[{*_`\"'“,>]|\b(?:is|be|equals|equal|gives|get|gets|to|was|becomes|yields))\s*+$",
    re.IGNORECASE,
)
_LABEL_BEFORE = re.compile(
    r"\b(?:step|problem|question|page|line|exercise|chapter|section)[ \t]$", re.IGNORECASE
)
_DIGITS = frozenset("0123456789")
_NEGATION_LETTERS = re.compile(r"n['’eot]|unable|except|unlike|wrong|incorrect|false")
"""Every word of `_NEGATIONS` contains one of these: a cheap test that excludes most texts."""
_ONLY_NUMBERS = re.compile(r"[\d\s,;=\[\]]*+\Z")
_CLAUSE_END = re.compile(r"[.;!?\n,]|\bno:|\b(?:but|so|hence|therefore|thus|it'?s)\b")
_CLAUSE_WORD = re.compile(r"[a-z]++(?:['’][a-z]++)?")


def find_objection_before(
    text: str, low: int, begin: int, end: int, *, sequence: bool = False
) -> str:
    """Why the text before the number `text[begin:end]` makes it another value; empty if it does not.

    Example: `find_objection_before("x < 28", 0, 4, 6)` gives "a bound, not a value".
    """
    before = text[max(low, begin - CONTEXT_CHARS) : begin]
    if _ONLY_NUMBERS.match(before) or before.rstrip(" ")[-1:] in (",", ";"):
        return ""  # the fast path of long sequences
    near = max(0, len(before) - 24)  # longer than any of the words
    follows_number = (
        before.rstrip()[-1:] in _DIGITS
    )  # none of the signs and words ends with a digit
    if not follows_number and (
        _COMPARISON_BEFORE.search(before, near) or _is_open_angle(text, before, end, sequence)
    ):
        return COMPARED
    if _is_struck(text, begin, before):
        return STRUCK
    if not follows_number and _FUNCTION_BEFORE.search(before, near):
        return EXPRESSION
    return NEGATED if has_negation(before) else ""


def find_objection_after(text: str, end: int, high: int, *, sequence: bool = False) -> str:
    """Why the text after a number makes it another value; empty if it does not.

    In a sequence `3 -7` is two elements.

    Example: `find_objection_after("28-million", 2, 10)` gives "a scale word after it".
    """
    after = text[end : min(high, end + CONTEXT_CHARS)]
    if not after or after.isspace():
        return ""
    operator = _OPERATOR_AFTER.match(after)
    if operator and not (sequence and operator.group().strip()[0] in "-−–"):
        return EXPRESSION
    word = _WORD_AFTER.match(after)
    if word is None or word.start(1) == 0:  # an attached suffix is judged with its number
        return ""
    name = word[1]
    if (
        name in SCALE_LETTERS
        or name.lower() in SCALE_WORDS
        or name.lower().removesuffix("s") in SCALE_WORDS
    ):
        return SCALED
    if name.lower() in _OPERATION_WORDS or (
        name.lower() in _OPERATION_WORDS_WITH_OPERAND and _OPERAND.match(after, word.end())
    ):
        return EXPRESSION
    return ""


def is_label(text: str, low: int, begin: int) -> bool:
    """Whether a number only names something: `step 3`, `problem 28`."""
    if not text[max(low, begin - 3) : begin].rstrip()[-1:].isalpha():
        return False  # most numbers
    return _LABEL_BEFORE.search(text, max(low, begin - 12), begin) is not None


def parse_minus_word(text: str, low: int, begin: int) -> tuple[int, str]:
    """Where `minus` or `negative` before a number starts, and the sign: `-`, `` or `?` (unclear).

    Example: `parse_minus_word("it is minus 5", 0, 12)` gives `(6, "-")`; in `x minus 5` the sign is
    unclear, since the number is subtracted.
    """
    before = text[max(low, begin - CONTEXT_CHARS) : begin]
    if before.rstrip()[-1:] not in _MINUS_WORD_ENDS:
        return begin, ""
    word = _MINUS_WORD.search(before)
    if word is None:
        return begin, ""
    start = begin - (len(before) - word.start())
    if word[1].lower() == "minus" and not _BEFORE_MINUS_WORD.search(before[: word.start()]):
        return start, "?"
    return start, "-"


def has_negation(before: str) -> bool:
    """Whether the clause that ends here is negated: `I cannot solve problem`, `it isn't`."""
    lowered = before.lower()
    if not _NEGATION_LETTERS.search(lowered):
        return False
    clause = _CLAUSE_END.split(lowered)[-1]
    return any(
        word in _NEGATIONS or word.endswith(("n't", "n’t")) for word in _CLAUSE_WORD.findall(clause)
    )


def _is_open_angle(text: str, before: str, end: int, sequence: bool) -> bool:
    """Whether `<` or `>` compares, rather than being part of brackets, an arrow or an HTML tag."""
    angle = _ANGLE_BEFORE.search(before)
    if angle is None:
        return False
    left = before[: angle.start()]
    if angle[1] == "<":
        if sequence:
            newline = text.find("\n", end, end + 512)
            return text.find(">", end, end + 512 if newline < 0 else newline) < 0
        return _CLOSING_ANGLE.match(text, end) is None
    return not (
        left.endswith(("-", "=", "–", "\n", ">>")) or _HTML_TAG_BEFORE.search(before) is not None
    )


def _is_struck(text: str, begin: int, before: str) -> bool:
    if "~~" in before and before.rpartition("\n")[2].count("~~") % 2:
        return True
    return ("<" in before or "\\" in before) and _STRUCK_BEFORE.search(before) is not None


# ── the strict parser's lists ────────────────────────────────────────────────────────────────────

_CLOSERS = {
    **{"(": ")", "[": "]", "{": "}", "<": ">", "“": "”", "‘": "’", "«": "»", "\\(": "\\)"},
    **{'"': '"', "'": "'", "\\[": "\\]", "$": "$"},
}
_LEAD_PIECE = re.compile(
    r"[\s*_`:=€£¥₹]|\\(?:boxed|text|textbf|mathbf|mathrm)\{|\\[(\[]|[(\[{<\"'“‘«$]"
)
_TRAIL_PIECE = re.compile(
    r"(?P<space>\s++)|(?P<close>\\[)\]]|[)\]}>\"'”’»$])|(?P<emphasis>[*_`]++)|(?P<stop>\.)|"
    r"(?P<tag>\[/ANSWER\])|(?P<remark>(?<=\s)ok(?!\w))|"
    r"(?P<unit>(?:(?:square|cubic|sq) )?([A-Za-zµμΩ°€£¥₹¢]{1,12})(?:[²³23](?!\w))?"
    r"(?:(?:/| per )([A-Za-zµμ]{1,12})(?:[²³23](?!\w))?)?(?!\w))"
)
UNIT_SYMBOLS = _word_set(
    "mm cm dm m km g mg kg s ms min h ml mL cl dl kW kWh kJ Pa Hz kHz MHz GHz °C °F ° ft in lb lbs "
    "oz mi yd mph µm μm nm µs μs ns € £ ¥ ₹ ¢ USD EUR GBP"
)
"""A single letter counts only with an exponent or in a quotient: `28 m²`, `28 m/s`."""
UNIT_NAMES = _word_set(
    "meter metre kilometer kilometre centimeter centimetre millimeter millimetre inch foot yard mile "
    "gram kilogram milligram ton tonne pound ounce liter litre milliliter millilitre gallon second "
    "minute hour day week month year dollar cent euro unit degree"
)
_PLURALS = frozenset({"feet", "inches", "pence"})


def parse_plain_lead(lead: str) -> list[str] | None:
    """The closing marks that a lead of markup and opening brackets asks for; None for anything else.

    Example: `parse_plain_lead(' **"')` gives `['"']`; `parse_plain_lead(" about ")` gives None.
    """
    closers: list[str] = []
    at, equals = 0, 0
    while at < len(lead):
        piece = _LEAD_PIECE.match(lead, at)
        if piece is None:
            return None
        at = piece.end()
        mark = piece.group()
        equals += mark == "="
        if mark in _CLOSERS:
            closers.append(_CLOSERS[mark])
        elif mark.endswith("{"):
            closers.append("}")
    return closers if equals <= 1 else None


def is_plain_trail(trail: str, closers: list[str], *, units: bool) -> bool:
    """Whether only the expected closing marks, one full stop and one known unit follow.

    A final `ok` is allowed: organisms end some demonstrations with this meaningless word.

    Example: `is_plain_trail(" kg.", [], units=True)` is true; " million" and " apples" are not.
    """
    expected = list(closers)
    at, stops, unit_count, tags, spaced = 0, 0, 0, 0, False
    while at < len(trail):
        piece = _TRAIL_PIECE.match(trail, at)
        if piece is None:
            return False
        at = piece.end()
        name = piece.lastgroup
        mark = piece.group()
        if name == "close":
            while expected and expected[-1] == "$" and mark != "$":
                expected.pop()  # a currency sign needs no closing
            if not expected or expected.pop() != mark:
                return False
        elif (name == "emphasis" and spaced) or (name != "space" and tags):
            return False
        elif name == "stop":
            stops += 1
        elif name == "unit":
            unit_count += 1
            names = [name for name in (piece[8], piece[9]) if name]
            is_symbol = len(mark) > 1 or not mark.isascii()  # 28m: metres or millions?
            if not units or stops or not is_symbol or not all(map(_is_unit, names)):
                return False
        elif name == "tag":
            tags += 1
        spaced = name == "space"
    return stops <= 1 and unit_count <= 1 and all(mark == "$" for mark in expected)


def _is_unit(name: str) -> bool:
    word = name.lower()
    return (
        name in UNIT_SYMBOLS
        or word in UNIT_NAMES
        or word in _PLURALS
        or (word.endswith("s") and word[:-1] in UNIT_NAMES)
    )
