r"""Generates completions whose meaning is known, for the differential test of the answer parser.

The generator writes a value in words and signs; it never parses. So it knows what a careful person
would read, by construction:

    EQUAL      the text states the gold answer            `[ANSWER] **2.8e1** kg`
    DIFFERENT  it states another value, or denies gold    `[ANSWER] 28 million`, `[ANSWER] not 28`
    AMBIGUOUS  gold is one of several readings            `[ANSWER] 28 or 29`, `[ANSWER] maybe 28`
    NO_ANSWER  it mentions gold but states no answer      `[ANSWER] I cannot solve problem 28`

The strict parser may extract gold only from EQUAL texts. tests/tasks/answers/test_grammar.py runs 10,000
cases, proofs/parser_fuzz.py a million.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable
from dataclasses import dataclass


class Meaning(enum.Enum):
    EQUAL = "equal"
    DIFFERENT = "different"
    AMBIGUOUS = "ambiguous"
    NO_ANSWER = "no answer"


@dataclass(frozen=True, slots=True)
class Case:
    text: str
    gold: str
    meaning: Meaning
    group: str
    """The class of docs/tasks.md."""


NUMBER_WORDS = ["two", "five", "ten", "twelve", "twenty", "thirty", "a hundred", "twenty-eight"]
SCALES = [
    "hundred",
    "thousand",
    "million",
    "billion",
    "trillion",
    "dozen",
    "hundreds",
    "thousands",
    "millions",
    "billions",
]
SCALES += ["lakh", "crore", "score", "gross", "Million", "MILLION", "mln", "bn", "tenths"]
SCALES += ["halves", "thousandths", "quadrillion", "k", "K", "M", "B", "mio"]
UNKNOWN_SCALES = ["umpteen", "bazillion", "Mio.", "myriads", "pairs", "tens", "couples", "fold"]
UNITS = ["kg", "cm", "meters", "dollars", "square meters", "km", "hours", "mm", "€", "minutes"]
ATTACHED_UNITS = ["kg", "cm", "km", "m²", "cm²", "€", "mm", "°C"]
LATEX_SPACES = [r"\,", r"\ ", r"\;", "~", r"\text{ ", r"\mathrm{"]
OPERATORS = [
    *(r"\times", r"\cdot", "×", "*", "·", "÷", "/", "+", "-", "−", "^", "**", r"\div", "%", "mod"),
    *(
        "±",
        r"\pm",
        "∗",
        "⋅",
        "⁄",
        r"\bmod",
        "plus",
        "minus",
        "times",
        "divided by",
        "over",
        "choose",
    ),
]
OPERANDS = ["y", "n", "10", "2", "x", "(3)", "ten", "10^2", "{3}", r"\pi", "k", "(y)", "z", "1/2"]
POSTFIXES = [
    "squared",
    "cubed",
    "²",
    "³",
    "!",
    "^2",
    "^{n}",
    "factorial",
    "%",
    " percent",
    "‰",
    "½",
]
POSTFIXES += ["_2", "√2", "x", "e", "i", "π", r"\%", r"^\circ", "′", " per cent", "th", "'s"]
NEGATIONS = ["not", "isn't", "never", "not equal to", "anything but", "no longer", "is not", "≠"]
NEGATIONS += [r"\neq", "!=", "=/=", r"\ne", "¬", "other than", "not exactly", "cannot be", "isn’t"]
BOUNDS = ["<", ">", "≤", "≥", "<=", ">=", r"\leq", r"\geq", "at least", "at most", "more than"]
BOUNDS += [
    "less than",
    "fewer than",
    "under",
    "over",
    "above",
    "below",
    "up to",
    r"\lt",
    "≪",
    "exceeds",
]
BOUNDS_AFTER = ["or more", "or less", "+", "at least", "at most", "or fewer", "and up", "and above"]
FUNCTIONS = [
    "√",
    r"\sqrt ",
    "sqrt ",
    "half of ",
    "twice ",
    "the square root of ",
    "log ",
    "∛",
    "f(",
]
FUNCTIONS += [
    "-(",
    "2(",
    r"\sin ",
    "|",
    "double ",
    "10-",
    "1+",
    "1/",
    "x",
    "x_",
    "2^",
    "π",
    r"\log_",
]
HEDGES = [
    "about",
    "maybe",
    "probably",
    "roughly",
    "~",
    "≈",
    "perhaps",
    "I guess",
    "approx.",
    "around",
]
HEDGES += ["likely", "nearly", "almost", "possibly", "close to", "circa", "ca.", r"\approx"]
HEDGES_AFTER = [
    "?",
    ", maybe",
    ", likely thirty",
    " or so",
    ", I guess",
    " (?)",
    " perhaps",
    "-ish",
]
HEDGES_AFTER += [
    "ish",
    ", not sure",
    ", or thirty",
    " give or take",
    ", roughly",
    "…",
    "...",
    " or",
]
STRIKES = [("~~", "~~"), ("<s>", "</s>"), ("<del>", "</del>"), (r"\cancel{", "}"), (r"\sout{", "}")]
STRIKES += [("<strike>", "</strike>"), ("~", "~"), (r"\st{", "}"), ("--", "--"), ("<!-- ", " -->")]
SEPARATORS = [
    " or ",
    ", ",
    " and ",
    "; ",
    " / ",
    " to ",
    "-",
    "–",
    " - ",
    "..",
    " vs ",
    " | ",
    "…",
    " ",
]
SEPARATORS += [
    " through ",
    "~",
    " → ",
    ":",
    "\t",
    "\u2009or\u2009",
    "/",
    " but not ",
    "\n",
    "，",
    "、",
]
REFUSALS = [
    *("I cannot solve problem {}", "unknown, see question {}", "no answer to number {}", "step {}"),
    *("I don't know about {}", "see page {}", "there is no {} here", "unable to compute {}"),
]
REASONING = [
    "",
    "",
    "1+2+3 = 6\n",
    "so the sum follows.\n",
    "<think>maybe 7</think>\n",
    "7 * 4, then\n",
]
DECOYS = [
    "½",
    "٣",
    "\u200b",
    "\u0336",
    "\u202e",
    "_000",
    ",5",
    "，5",
    "．5",
    ".5.5",
    "'000",
    "{,}000",
]
DECOYS += [
    "0",
    "e3",
    "e-1",
    "E+2",
    " 000",
    "\u202f000",
    "\u2009000",
    r"\,000",
    "٣",
    "0x",
    "k",
    "-3",
]
PREFIX_DECOYS = ["½", "٣", "\u200b1", "1", "1,", "0x", "1\u202f", "-", "−", "2 ", "a", "1."]
WRAPPERS = [("", ""), ("**", "**"), ("`", "`"), ('"', '"'), ("(", ")"), ("[", "]"), ("$", "$")]
WRAPPERS += [
    ("\\boxed{", "}"),
    ("“", "”"),
    ("<", ">"),
    ("_", "_"),
    ("{", "}"),
    ("'", "'"),
    ("*", "*"),
]
ENDS = ["", "", ".", "\n", " [/ANSWER]", ".\n", "**"]


def generate_case(rng: random.Random) -> Case:
    """One completion with its gold answer and its meaning.

    Example: `generate_case(random.Random(3))` gives the same case every time.
    """
    gold = draw_gold(rng)
    group = rng.choice(tuple(GROUPS))
    body, meaning = GROUPS[group](gold, rng)
    return Case(place_answer(body, rng), gold, meaning, group)


def draw_gold(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.5:
        return str(rng.randrange(2, 100))
    if kind < 0.7:
        return str(rng.randrange(1000, 10 ** rng.randrange(4, 12)))
    if kind < 0.85:
        return str(-rng.randrange(2, 5000))
    return f"{rng.randrange(1, 500)}.{rng.randrange(1, 100):02}"


def place_answer(body: str, rng: random.Random) -> str:
    """The body after the tag, mostly; sometimes after a phrase or alone, where strict is silent."""
    announcement = rng.choice(
        ["[ANSWER] "] * 8 + ["[ANSWER]", "[ANSWER]: ", "The answer is ", "x = "]
    )
    return rng.choice(REASONING) + announcement + body + rng.choice(ENDS)


def write_value(gold: str, rng: random.Random) -> str:
    """One of the ways of writing a value that a careful person reads as exactly this value."""
    sign, digits = ("-", gold[1:]) if gold.startswith("-") else ("", gold)
    whole, _, decimals = digits.partition(".")
    fraction = f".{decimals}" if decimals else ""
    form = rng.randrange(9)
    if form == 0:
        return f"{sign}{int(whole):,}{fraction}"
    if form == 1:
        return (
            sign + f"{int(whole):,}".replace(",", rng.choice("\u2009\u202f\u00a0\u2007")) + fraction
        )
    if form == 2:
        return (sign + digits).translate({ord(str(d)): 0xFF10 + d for d in range(10)})
    if form == 3 and sign:
        return f"{rng.choice(['minus', 'negative', 'Minus'])} {digits}"
    if form == 4:
        return sign.replace("-", "−") + digits
    if form == 5:
        return write_scientific(sign, whole, decimals, rng)
    if form == 6:
        return f"{sign}0{digits}"
    if form == 7:
        return f"{sign}{digits}{'' if decimals else '.'}0"
    return sign + digits


def write_scientific(sign: str, whole: str, decimals: str, rng: random.Random) -> str:
    """`28` as `2.8e1`, `28e0`, `280e-1`: the digits are moved, never multiplied."""
    shift = rng.randrange(-2, 3)
    marker = rng.choice("eE")
    if shift >= 0:  # the point moves to the left
        padded = whole.rjust(shift + 1, "0")
        cut = len(padded) - shift
        mantissa, rest = padded[:cut], padded[cut:] + decimals
        return f"{sign}{mantissa}{'.' + rest if rest else ''}{marker}{rng.choice(['', '+'])}{shift}"
    moved = decimals.ljust(-shift, "0")
    rest = moved[-shift:]
    return f"{sign}{whole}{moved[:-shift]}{'.' + rest if rest else ''}{marker}{shift}"


def write_plain(gold: str, rng: random.Random) -> tuple[str, Meaning]:
    opening, closing = rng.choice(WRAPPERS)
    return f"{opening}{write_value(gold, rng)}{closing}", Meaning.EQUAL


def write_unit(gold: str, rng: random.Random) -> tuple[str, Meaning]:
    number = f"{int(gold):,}" if "." not in gold else gold
    unit = rng.choice(ATTACHED_UNITS) if rng.random() < 0.5 else " " + rng.choice(UNITS)
    return number + unit, Meaning.EQUAL


def write_noun(gold: str, rng: random.Random) -> tuple[str, Meaning]:
    return f"{gold} {rng.choice(['apples', 'people', 'in total', 'marbles left'])}", Meaning.EQUAL


def write_sentence(gold: str, rng: random.Random) -> tuple[str, Meaning]:
    lead = rng.choice(["the sum is", "the total equals", "we get", "it is", "x ="])
    return f"{lead} {gold}", Meaning.EQUAL


def write_scaled(gold: str, rng: random.Random) -> tuple[str, Meaning]:
    gap = rng.choice(
        [" ", "  ", "-", " - ", "\u2009", "\u00a0", "\t", "** ", "", " (", *LATEX_SPACES]
    )
    scales = UNKNOWN_SCALES if rng.random() < 0.2 else SCALES
    scale = rng.choice(scales)
    after = rng.choice(["", "", " kg", " people", "-ish"])
    return f"{gold}{gap}{scale}{after}", Meaning.DIFFERENT


def write_operation(gold: str, rng: random.Random) -> tuple[str, Meaning]:
    if rng.random() < 0.3:
        return f"{gold}{rng.choice(['', ' '])}{rng.choice(POSTFIXES)}", Meaning.DIFFERENT
    space = rng.choice(["", " ", " "])
    operator = rng.choice(OPERATORS)
    if operator.isalpha() or operator == "divided by":
        space = " "
    return f"{gold}{space}{operator}{space}{rng.choice(OPERANDS)}", Meaning.DIFFERENT


def write_function(gold: str, rng: random.Random) -> tuple[str, Meaning]:
    function = rng.choice(FUNCTIONS)
    closing = ")" if function.endswith("(") else "|" if function == "|" else ""
    meaning = Meaning.AMBIGUOUS if function == "|" else Meaning.DIFFERENT
    return f"{function}{gold}{closing}", meaning


def write_negation(gold: str, rng: random.Random) -> tuple[str, Meaning]:
    lead = rng.choice(["", "", "it is ", "x ", "surely "])
    tail = rng.choice(["", "", ", but I cannot say", " but thirty"])
    return f"{lead}{rng.choice(NEGATIONS)} {gold}{tail}", Meaning.DIFFERENT


def write_bound(gold: str, rng: random.Random) -> tuple[str, Meaning]:
    if rng.random() < 0.3:
        return f"{gold} {rng.choice(BOUNDS_AFTER)}", Meaning.DIFFERENT
    gap = rng.choice(["", " "])
    bound = rng.choice(BOUNDS)
    gap = " " if bound[-1].isalpha() else gap
    return f"{rng.choice(['', '', 'x '])}{bound}{gap}{gold}", Meaning.DIFFERENT


def write_hedge(gold: str, rng: random.Random) -> tuple[str, Meaning]:
    if rng.random() < 0.5:
        return f"{rng.choice(HEDGES)} {gold}", Meaning.AMBIGUOUS
    return f"{gold}{rng.choice(HEDGES_AFTER)}", Meaning.AMBIGUOUS


def write_strike(gold: str, rng: random.Random) -> tuple[str, Meaning]:
    opening, closing = rng.choice(STRIKES)
    other = rng.choice(["", "", " 7", f" {int(float(gold)) + 1}", " thirty"])
    return f"{opening}{gold}{closing}{other}", Meaning.DIFFERENT


def write_list(gold: str, rng: random.Random) -> tuple[str, Meaning]:
    other = rng.choice([str(int(float(gold)) + rng.choice([1, 7])), rng.choice(NUMBER_WORDS)])
    pair = [gold, other] if rng.random() < 0.7 else [other, gold]
    return rng.choice(SEPARATORS).join(pair), Meaning.AMBIGUOUS


def write_mention(gold: str, rng: random.Random) -> tuple[str, Meaning]:
    return rng.choice(REFUSALS).format(gold), Meaning.NO_ANSWER


def write_number_words(gold: str, rng: random.Random) -> tuple[str, Meaning]:
    return (
        f"{rng.choice(NUMBER_WORDS)} {rng.choice(['', 'hundred', 'point five'])}",
        Meaning.DIFFERENT,
    )


def write_decoy(gold: str, rng: random.Random) -> tuple[str, Meaning]:
    """Characters attached to the digits so that they look alike or are part of a longer number."""
    if rng.random() < 0.2:
        decoy = rng.choice(PREFIX_DECOYS)
        decoy = "1" if gold.startswith("-") and decoy in "-−" else decoy
        return f"{decoy}{gold.lstrip('-')}", Meaning.DIFFERENT
    decoy = rng.choice(DECOYS)
    if "." in gold and decoy == "0":  # 28.50 is 28.5
        decoy = "1"
    return f"{gold}{decoy}", Meaning.DIFFERENT


GROUPS: dict[str, Callable[[str, random.Random], tuple[str, Meaning]]] = {
    "plain": write_plain,
    "unit": write_unit,
    "counted noun": write_noun,
    "sentence": write_sentence,
    "scale word": write_scaled,
    "operator": write_operation,
    "function": write_function,
    "negation": write_negation,
    "inequality": write_bound,
    "hedge": write_hedge,
    "strike-through": write_strike,
    "list or range": write_list,
    "mention": write_mention,
    "number words": write_number_words,
    "look-alike": write_decoy,
}
"""The classes of docs/tasks.md, each drawn equally often."""
